"""The command line: flags change a config, and every mistake is reported in one line."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml
from configs import LEGGED

from mjlab_dist import registry
from mjlab_dist.cli import train
from mjlab_dist.cli.help import (
    EVERYDAY,
    HelpRequest,
    Page,
    flags_of,
    prefix_page,
    short_page,
    take_help,
)
from mjlab_dist.cli.parsing import is_given, parse, split_task, take_flag
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError

PROG = "train cartpole-balance"

DEFAULT = registry.task_config("cartpole-balance")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")


def parsed(line: str) -> TrainConfig:
    return parse(DEFAULT, line.split(), PROG)


def refusal_of(line: str) -> str:
    with pytest.raises(UserError) as caught:
        parsed(line)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert f"{PROG} --help" in message
    return message


def test_bash_completes_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        train.main(["cartpole-balance", "--num-envs", "4", "--tyro-print-completion", "bash"], "train")
    assert end.value.code in (0, None)
    script = capsys.readouterr().out
    (function,) = re.findall("complete -F (.*) train", script)
    ask = f'{script}\nCOMP_WORDS=(train cartpole-balance --num-e); COMP_CWORD=2; {function}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--num-envs"]
    with pytest.raises(UserError, match="--tyro-print-completion fish"):
        train.main(["cartpole-balance", "--tyro-print-completion", "fish"], "train")


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("--num-envs 64", "num_envs", 64),
        ("--num_envs 64", "num_envs", 64),
        ("--num-envs 64 --num-envs 32", "num_envs", 32),
        ("--num-envs auto", "num_envs", "auto"),
        ("--env.rewards.smooth.weight 2", "env.rewards[smooth].weight", 2.0),
        ("--agent.no-capture", "agent.capture", False),
        ("--agent.schedule fixed", "agent.schedule", "fixed"),
        ("--agent.actor-hidden-dims 256 128 64", "agent.actor_hidden_dims", (256, 128, 64)),
        ("--agent.learning-rate 3e-4", "agent.learning_rate", 3e-4),
        ("--gpu-ids None", "gpu_ids", None),
        ("--gpu-ids 0 1", "gpu_ids", (0, 1)),
        ("--gpu-ids all", "gpu_ids", "all"),
        ("--gpu-ids auto", "gpu_ids", "auto"),
        ("--gpu-ids -1", "gpu_ids", (-1,)),
        ("--gpu-ids 0,1", "gpu_ids", (0, 1)),
        ("--gpu-ids=0,1", "gpu_ids", (0, 1)),
        ("--gpu_ids 0,1, 2", "gpu_ids", (0, 1, 2)),
        ("--agent.actor-hidden-dims 2_5_6,1e2", "agent.actor_hidden_dims", (256, 100)),
        ("--env.actions.force.clip -0.5,0.5", "env.actions[force].clip", (-0.5, 0.5)),
        ("--run-name 0,1", "run_name", "0,1"),
        ("--num-envs 1e3", "num_envs", 1000),
        ("--max-iterations 1_000", "max_iterations", 1000),
        ("--seed 64.0", "seed", 64),
        ("--checkpoint.interval 1e2", "checkpoint.interval", 100),
        ("--checkpoint.interval 600s", "checkpoint.interval", "600s"),
        ("--logger wandb", "logger", ("wandb",)),
        ("--logger tensorboard wandb my.module:Class", "logger", ("tensorboard", "wandb", "my.module:Class")),
        ("--logger", "logger", ()),
        ("--torchrunx-log-dir=", "torchrunx_log_dir", ""),
        # As sweeps write them
        ("--agent.obs_normalization=True", "agent.obs_normalization", True),
        ("--agent.obs-normalization on", "agent.obs_normalization", True),
        ("--agent.capture=False", "agent.capture", False),
        ("--agent.capture 0", "agent.capture", False),
        ("--agent.actor_hidden_dims=[256, 128]", "agent.actor_hidden_dims", (256, 128)),
        ("--agent.actor-hidden-dims (256,128)", "agent.actor_hidden_dims", (256, 128)),
        ("--logger=['tensorboard', 'wandb']", "logger", ("tensorboard", "wandb")),
        ("--logger=[]", "logger", ()),
        ("--run-name=[a,b]", "run_name", "[a,b]"),
    ],
)
def test_a_flag_changes_only_its_field(line: str, path: str, value: Any):
    config = parsed(line)
    assert value_at(config, path) == value
    assert type(value_at(config, path)) is type(value)
    assert differences(DEFAULT, config) <= {path}


def value_at(config: Any, path: str) -> Any:
    for step in path.replace("[", ".[").split("."):
        config = config[step.strip("[]")] if step.startswith("[") else getattr(config, step)
    return config


def differences(old: Any, new: Any, path: str = "") -> set[str]:
    """Return the paths of the values that differ between two configs, in the format of value_at."""
    if hasattr(old, "__dataclass_fields__"):
        steps = [(f"{path}.{name}".lstrip("."), getattr(old, name), getattr(new, name)) for name in vars(old)]
    elif isinstance(old, dict):
        steps = [(f"{path}[{key}]", old.get(key), new.get(key)) for key in old | new]
    else:
        return set() if old == new else {path}
    return {found for step in steps for found in differences(step[1], step[2], step[0])}


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("--num-env 3", "--num-envs"),
        ("--agent.learning-rat 1", "--agent.learning-rate"),
        ("--env.rewards.smoth.weight 2", "--env.rewards.smooth.weight"),
        ("--lager wandb", "--logger"),
        # The first of several
        ("--seedd 1 --num-envss 2", "--seed"),
        ("--checkpoint.intervall 10 --max-iterationss 4 --agent.num-steps-per-envv 4", "--checkpoint.interval"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest_flag(line: str, near: str):
    for known in ("", "--seed 2 "):
        message = refusal_of(known + line)
        assert message.startswith(f"{line.split()[0]}: ")
        assert f" {near}?" in message


def test_an_unknown_flag_is_refused_in_an_ascii_locale_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert refusal_of("--num-env 3").startswith("--num-env: ")
    assert refusal_of("--num-envs x").startswith("--num-envs x: takes a whole number, or auto")
    assert refusal_of("--agent.schedule x").startswith("--agent.schedule x: takes ")


def test_an_unknown_flag_without_a_near_name_is_refused_without_a_suggestion():
    message = refusal_of("--zzzzzzzz 3")
    assert re.findall(r"--[\w.-]+", message) == ["--zzzzzzzz", "--help"]


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("--print-confg", "--print-config"),
        ("--confg x", "--config"),
        ("--hlep", "--help"),
        ("--hlep-all", "--help-all"),
    ],
)
@pytest.mark.parametrize("task", ["", "cartpole-balance "])
def test_flags_without_a_config_field_are_suggested_too(task: str, typed: str, near: str):
    with pytest.raises(UserError, match=rf"^{typed.split()[0]}: .*{near}\b.*train {task}--help"):
        train.read_config([*task.split(), *typed.split()], "train", train.HELP)


def test_without_a_task_the_flags_of_tasks_are_not_reported_as_unknown():
    with pytest.raises(UserError, match=r"\btrain TASK\b.*\bcartpole-balance\b.* template$"):
        train.read_config(
            ["--num_envs", "2", "--env.foo.weight", "3", "--no-require-same-devices"], "train", train.HELP
        )


@pytest.mark.parametrize("columns", ["25", "60", "200"])
def test_an_unknown_flag_is_refused_with_an_existing_flag_at_any_terminal_width(
    monkeypatch: pytest.MonkeyPatch, columns: str
):
    monkeypatch.setenv("COLUMNS", columns)
    message = refusal_of("--env.events.velocitys.params.std 2")
    assert message.startswith("--env.events.velocitys.params.std: ")
    assert " --env.events.velocities.params.std?" in message


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("--num-envs x", "a whole number, or auto"),
        ("--num-envs Auto", "a whole number, or auto"),
        ("--num-envs 1.5", "a whole number, or auto"),
        ("--total-num-envs auto", "a whole number, or None"),
        ("--max-iterations many", "a whole number"),
        ("--seed 1e999", "a whole number"),
        ("--seed nan", "a whole number"),
        ("--seed 15e-1", "a whole number"),
        ("--agent.learning-rate fast", "a number"),
        ("--env.rewards.smooth.weight heavy", "a number"),
        ("--env.events.pole.params.low x", "a number"),
        ("--agent.obs-clip x", "a number, or None"),
        ("--env.actions.force.clip a b", "2 numbers, or None"),
        ("--gpu-ids foo", "whole numbers, auto, all, or None"),
        ("--gpu-ids 0,x", "whole numbers, auto, all, or None"),
        ("--gpu-ids 0 all", "whole numbers, auto, all, or None"),
        ("--agent.schedule sometimes", "adaptive, fixed, or linear"),
    ],
)
def test_a_bad_value_is_refused_with_its_flag_and_what_the_flag_takes(
    monkeypatch: pytest.MonkeyPatch, line: str, takes: str
):
    message = refusal_of(line)
    assert message.startswith(f"{line.replace(',', ' ')}: takes {takes}; ")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert refusal_of(line) == message, "a color terminal gets the same plain line"


@pytest.mark.parametrize("line", ["--num-envs", "--num-envs --seed 2", "--env.rewards.smooth.weight"])
def test_a_missing_value_is_refused_with_the_flag(line: str):
    message = refusal_of(line)
    assert message.startswith(f"{line.split()[0]}: ")
    assert re.findall(r"--[\w.-]+", message) == [line.split()[0], "--help"], (
        "no other flag is suggested, because the flag exists"
    )


def test_a_positional_argument_is_refused():
    assert "balance" in refusal_of("--seed 2 balance")


def test_help_exits_with_0_and_shows_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        parsed("--help-all")
    assert exit_.value.code == 0
    shown = capsys.readouterr()
    assert "--num-envs" in shown.out
    assert "--env.rewards.smooth.weight" in shown.out
    assert PROG in shown.out
    assert not shown.err


def test_take_flag_keeps_the_arguments_and_takes_only_the_exact_flag():
    argv = ["--config=x=y", "--configure", "z"]
    assert take_flag(argv, "--config") == ("x=y", ["--configure", "z"])
    assert argv == ["--config=x=y", "--configure", "z"]


@pytest.mark.parametrize("argv", [["--config"], ["--config", "--seed", "1"]])
def test_take_flag_refuses_a_missing_value(argv: list[str]):
    with pytest.raises(UserError, match=r"^--config: "):
        take_flag(argv, "--config")


@pytest.mark.parametrize("line", ["--total-num-envs 1", "--num-envss 1", "--run-name num-envs"])
def test_another_flag_or_value_is_not_the_given_flag(line: str):
    assert not is_given(line.split(), "--num-envs")


@pytest.mark.parametrize(
    ("in_file", "line", "fields"),
    [
        ({"total_num_envs": 8}, "", {"num_envs": 512, "total_num_envs": 8}),
        ({"total_num_envs": 8}, "--num-envs 3", {"num_envs": 3, "total_num_envs": None}),
        ({"total_num_envs": 8}, "--num-envs auto", {"num_envs": "auto", "total_num_envs": None}),
        ({"total_num_envs": 8}, "--total-num-envs 6", {"num_envs": 512, "total_num_envs": 6}),
        ({"total_num_envs": 8}, "--num-envs 3 --total-num-envs None", {"num_envs": 3, "total_num_envs": None}),
        ({"num_envs": "auto"}, "", {"num_envs": "auto", "total_num_envs": None}),
        ({"num_envs": "auto"}, "--total-num-envs 6", {"num_envs": 1024, "total_num_envs": 6}),
        ({"num_envs": "auto"}, "--total-num-envs None", {"num_envs": "auto", "total_num_envs": None}),
        ({"total_timesteps": 9999}, "", {"max_iterations": 150, "total_timesteps": 9999}),
        ({"total_timesteps": 9999}, "--max-iterations 4", {"max_iterations": 4, "total_timesteps": None}),
        ({"max_iterations": 9}, "--total-timesteps 7", {"max_iterations": 9, "total_timesteps": 7}),
    ],
)
def test_a_flag_takes_precedence_over_a_total_in_the_file(
    tmp_path: Path, in_file: dict[str, Any], line: str, fields: dict[str, Any]
):
    file = tmp_path / "config.yaml"
    default = dataclasses.replace(DEFAULT, gpu_num_envs=None)
    file.write_text(yaml.safe_dump(to_plain(dataclasses.replace(default, **in_file))))
    config = train.read_config(["--config", str(file), *line.split()], "train", Page(summary=""))
    assert config == dataclasses.replace(default, **fields)
    validate(config)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", 4096),
        ("--num-envs 3", None),
        ("--num-envs auto", None),
        ("--total-num-envs 6", None),
        ("--num-envs 3 --gpu-num-envs 7", 7),
    ],
)
def test_a_number_of_envs_also_replaces_the_number_for_gpus(line: str, expected: int | None):
    config = train.read_config(["cartpole-balance", *line.split()], "train", Page(summary=""))
    assert config.gpu_num_envs == expected


@pytest.mark.parametrize(
    ("argv", "task", "rest"),
    [
        ([], None, []),
        (["cartpole", "--seed", "1"], "cartpole", ["--seed", "1"]),
        (["--seed", "1"], None, ["--seed", "1"]),
    ],
)
def test_the_task_is_the_first_argument(argv: list[str], task: str | None, rest: list[str]):
    assert split_task(argv) == (task, rest)


@pytest.mark.parametrize(
    ("argv", "asked", "rest"),
    [
        (["--seed", "1"], None, ["--seed", "1"]),
        (["-h"], HelpRequest(), []),
        (["a", "--help", "--seed", "1"], HelpRequest(), ["a", "--seed", "1"]),
        (["a", "--help", "env.sim", "--seed", "1"], HelpRequest("env.sim"), ["a", "--seed", "1"]),
        (["a", "--help-all"], HelpRequest(everything=True), ["a"]),
    ],
)
def test_the_help_flag_is_removed_from_the_arguments(argv: list[str], asked: HelpRequest | None, rest: list[str]):
    assert take_help(argv) == (asked, rest)


@pytest.mark.parametrize("task", ["cartpole-balance", "quadruped-velocity-rough", "arm-lift-cube"])
def test_help_pages_list_the_flags_that_tyro_accepts(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "120")  # on a wider terminal, tyro prints two columns
    default = registry.task_config(task)
    with pytest.raises(SystemExit):
        tyro.cli(TrainConfig, default=default, args=["--help"])
    known = set(re.findall(r"(?m)^[│ ] {1,2}--([a-z][^ ,]*)", capsys.readouterr().out))
    shown = {flag.name: flag for flag in flags_of(default)}
    # Ignore `.params` and `.model-params`: tyro lists these flags for terms and models that have no parameters.
    known = {name for name in known if not name.endswith((".params", ".model-params"))}
    assert known <= shown.keys()
    # tyro lists a term's parameter only if the config names it. The other parameters are accepted too.
    others = [flag for name, flag in shown.items() if name not in known]
    assert all(".params." in flag.path for flag in others)
    given = [word for flag in others if flag.default for word in (f"--{flag.name}", *flag.default.split())]
    accepted = train.read_config([task, *given], "train", train.HELP)
    assert known | {flag.name for flag in others if flag.default} <= {flag.name for flag in flags_of(accepted)}


def test_every_flag_has_a_description_and_a_known_type():
    for flag in flags_of(registry.task_config("quadruped-velocity-rough")):
        assert flag.text or ".params." in flag.name, flag
        assert "VALUE" not in flag.metavar or flag.name.endswith(".params"), flag


@pytest.mark.parametrize(("path", "usage"), [
    ("num_envs", "--num-envs INT|auto"),
    ("gpu_ids", "--gpu-ids INT ...|auto|all|None"),
    ("require_same_devices", "--require-same-devices"),
    ("agent.capture", "--agent.[no-]capture"),
    ("logger", "--logger tensorboard|wandb|trackio|STR ..."),
    ("env.actions.force.clip", "--env.actions.force.clip FLOAT FLOAT|None"),
    ("env.actions.force.scale", "--env.actions.force.scale FLOAT|STR FLOAT ..."),
])  # fmt: skip
def test_help_shows_the_format_of_a_value(path: str, usage: str):
    (flag,) = (flag for flag in flags_of(DEFAULT) if flag.path == path)
    assert flag.usage == usage


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_short_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = short_page(train.HELP, PROG, DEFAULT).splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= {80: 75, 100: 60, 120: 55}[columns]
    assert {f"{title}:" for title in EVERYDAY} <= set(lines)
    assert any("--num-envs" in line and "(default: 512)" in line for line in lines)


def test_help_of_a_prefix_shows_only_its_flags():
    page = prefix_page("env.rewards", PROG, DEFAULT)
    assert re.findall(r"--(\S+)", page)
    assert all(name.startswith("env.rewards.") for name in re.findall(r"  --(\S+)", page))
    assert prefix_page("--env.rewards", PROG, DEFAULT) == page
    assert "--num-envs INT" in prefix_page("num_envs", PROG, DEFAULT)


@pytest.mark.parametrize(("prefix", "near"), [("env.reward.smoth", "env.rewards.smooth"), ("agnt", "agent")])
def test_help_of_an_unknown_prefix_names_the_nearest(prefix: str, near: str):
    with pytest.raises(UserError, match=rf"^--help {re.escape(prefix)}: .* {re.escape(near)}\?"):
        prefix_page(prefix, PROG, DEFAULT)


@pytest.mark.parametrize(
    "line",
    [
        "--env.actions.rear.latency 1",
        "--env.actions.rear.latency 0.5 1",
        "--env.actions.rear.scale wide",
        "--env.actions.rear.scale wide far",
        "--env.events.push.when sometimes",
        "--env.events.push.params.angular-rad-s far 1",
        "--env.events.push.params.spin 1",
    ],
)
def test_a_mistake_in_a_flag_of_a_term_is_one_line_that_names_it(line: str):
    with pytest.raises(UserError) as caught:
        parse(LEGGED, line.split(), "train legged")
    message = str(caught.value)
    assert "\n" not in message
    assert line.split()[0] in message
