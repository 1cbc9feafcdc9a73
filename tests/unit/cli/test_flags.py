"""The command line: flags change a config; tyro reports mistakes and prints help."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml
from configs import LEGGED, typed, with_flags

from mjlab_dist.cli import train
from mjlab_dist.cli.flags import ALIASES, HELP_FIELDS, Group, by_flag, fields_of, split_task, take_help
from mjlab_dist.cli.run_flags import run_fields
from mjlab_dist.config import PlayConfig, TrainConfig, registry
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError

PROG = "train cartpole-balance"

DEFAULT = registry.task_config("cartpole-balance")

FIXED_TYPES = (tyro.conf.AvoidSubcommands,)
"""Lets tyro read the fields of the default's own algorithm."""


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def parsed(line: str, default: TrainConfig = DEFAULT) -> TrainConfig:
    return with_flags(default, line.split())


@pytest.fixture
def refusal_of(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Return a function that returns what is printed for a wrong command line."""

    def refusal(line: str, default: TrainConfig = DEFAULT) -> str:
        try:
            with pytest.raises(SystemExit) as end:
                parsed(line, default)
        except UserError as error:
            return str(error)
        assert end.value.code == 2
        shown = capsys.readouterr()
        assert not shown.out
        assert f"{PROG} --help" in shown.err
        return shown.err

    return refusal


def shown_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        typed(*words)
    assert end.value.code in (0, None)
    shown = capsys.readouterr()
    assert not shown.err
    return shown.out


def test_bash_completes_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        train.main(["cartpole-balance", "--num-envs", "4", "--tyro-print-completion", "bash"], "train")
    assert end.value.code in (0, None)
    script = capsys.readouterr().out
    (function,) = re.findall("complete -F (.*) train", script)
    ask = f'{script}\nCOMP_WORDS=(train cartpole-balance --num-e); COMP_CWORD=2; {function}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--num-envs"]
    with pytest.raises(UserError, match="TASK --tyro-print-completion bash"):
        train.main(["--tyro-print-completion", "bash"], "train")
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
        ("--gpu-ids cpu", "gpu_ids", None),
        ("--gpu-ids none", "gpu_ids", None),
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
        ("--agent.obs-normalization True", "agent.obs_normalization", True),
        ("--agent.capture=False", "agent.capture", False),
        ("--agent.capture 0", "agent.capture", False),
        ("--agent.no-capture --agent.capture=true --agent.capture=off", "agent.capture", False),
        ("--agent.actor_hidden_dims=[256, 128]", "agent.actor_hidden_dims", (256, 128)),
        ("--agent.actor-hidden-dims (256,128)", "agent.actor_hidden_dims", (256, 128)),
        ("--logger=['tensorboard', 'wandb']", "logger", ("tensorboard", "wandb")),
        ("--logger=[]", "logger", ()),
        ("--run-name=[a,b]", "run_name", "[a,b]"),
        # Regular expressions
        ("--env.actions.force.actuators (a|b)_(c|d)", "env.actions[force].actuators", ("(a|b)_(c|d)",)),
        ("--env.actions.force.actuators [ab].*[cd]", "env.actions[force].actuators", ("[ab].*[cd]",)),
    ],
)
def test_a_flag_changes_only_its_field(line: str, path: str, value: Any):
    default = dataclasses.replace(DEFAULT, gpu_num_envs=None, total_num_envs=None)
    config = parsed(line, default)
    assert value_at(config, path) == value
    assert type(value_at(config, path)) is type(value)
    assert differences(default, config) <= {path}


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
    "line",
    [
        "--num-envs 3 --agent.no-capture --agent.actor_hidden_dims 3 4 --num-envs=5",
        "--env.actions.rear.scale hip 1 --env.events.push.interval-s 1 2 --env.events.push.when reset",
        "--env.sim.decimation 3 --env.sim.options.iterations 4 --logger --sync.compression bf16",
    ],
)
def test_flags_have_the_effect_that_tyro_gives_them_for_the_whole_config(line: str):
    config = parsed(line, LEGGED)
    assert config == tyro.cli(TrainConfig, default=LEGGED, args=line.split(), config=FIXED_TYPES)
    assert config != LEGGED


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        # Mistyped
        ("--num-env 3", "--num-envs"),
        ("--agent.learning-rat 1", "--agent.learning-rate"),
        ("--env.rewards.smoth.weight 2", "--env.rewards.smooth.weight"),
        ("--lager wandb", "--logger"),
        ("--checkpoint.intervall 10 --max-iterations 4", "--checkpoint.interval"),
        # In another group
        ("--learning-rate 1", "--agent.learning-rate"),
        ("--agent.algorithm.learning-rate 1", "--agent.learning-rate"),
        ("--agent.rnd.num_learning_epochs 1", "--agent.num-learning-epochs"),
        ("--env.scene.num-envs 4", "--num-envs"),
        ("--agent.resume True", "--resume"),
        # Of other programs
        ("--agent.lr 1", "--agent.learning-rate"),
        ("--device cuda:0", "--gpu-ids 0"),
        ("--agent.load-run x", "--resume"),
        ("--headless", "remove it"),
        ("agent.gamma=0.9", "--agent.gamma"),
        # Own flags of the command
        ("--print-confg", "--print-config"),
        ("--confg x", "--config"),
        ("--hlep-all", "--help-all"),
    ],
)
def test_an_unknown_flag_is_refused_with_what_to_use_instead(line: str, hint: str):
    with pytest.raises(UserError, match=rf"^{line.split()[0]}: .* {hint}\b"):
        typed("cartpole-balance", *line.split())


def test_every_flag_that_is_named_instead_of_another_exists():
    flags = {f"--{name.replace('_', '-')}" for name in [*run_fields(DEFAULT), *fields_of(PlayConfig())]}
    hints = {hint.replace(",", " ").split()[0] for hint in ALIASES.values() if not hint.startswith("remove")}
    assert hints <= flags


def test_without_a_task_the_flags_of_tasks_are_not_reported_as_unknown():
    with pytest.raises(UserError, match=r"\btrain TASK\b.*\bcartpole-balance\b.* template$"):
        typed("--num_envs", "2", "--env.foo.weight", "3", "--no-require-same-devices")


def test_a_mistake_is_reported_in_an_ascii_locale_too(monkeypatch: pytest.MonkeyPatch):
    stderr = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(sys, "stdout", stderr)
    with pytest.raises(SystemExit):
        parsed("--num-envs x")
    stderr.seek(0)
    assert "--num-envs" in stderr.read()


@pytest.mark.parametrize(
    "line",
    [
        "--num-envs x",
        "--num-envs Auto",
        "--num-envs 1.5",
        "--num-envs",
        "--num-envs --seed 2",
        "--total-num-envs auto",
        "--seed 1e999",
        "--seed nan",
        "--seed 15e-1",
        "--agent.learning-rate fast",
        "--env.rewards.smooth.weight heavy",
        "--env.rewards.smooth 2",
        "--env.events.pole.params.low x",
        "--env.actions.force.clip a b",
        "--gpu-ids 0,x",
        "--gpu-ids 0 all",
        "--agent.schedule sometimes",
    ],
)
def test_a_bad_value_is_refused_with_its_flag(refusal_of: Callable[[str], str], line: str):
    assert line.split()[0] in refusal_of(line)


@pytest.mark.parametrize("line", ["--seed 2 balance", "balance --seed 2"])
def test_a_positional_argument_is_refused(refusal_of: Callable[[str], str], line: str):
    assert "balance" in refusal_of(line)


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
def test_a_mistake_in_a_flag_of_a_term_names_it(refusal_of: Callable[..., str], line: str):
    assert line.split()[0] in refusal_of(line, LEGGED)


@pytest.mark.parametrize(
    ("in_file", "line", "fields"),
    [
        ({"total_num_envs": 8}, "", {"num_envs": 1024, "total_num_envs": 8}),
        ({"total_num_envs": 8}, "--num-envs 3", {"num_envs": 3, "total_num_envs": None}),
        ({"total_num_envs": 8}, "--num-envs auto", {"num_envs": "auto", "total_num_envs": None}),
        ({"total_num_envs": 8}, "--total-num-envs 6", {"num_envs": 1024, "total_num_envs": 6}),
        ({"total_num_envs": 8}, "--num-envs 3 --total-num-envs None", {"num_envs": 3, "total_num_envs": None}),
        ({"num_envs": "auto"}, "", {"num_envs": "auto", "total_num_envs": None}),
        ({"num_envs": "auto"}, "--total-num-envs 6", {"num_envs": "auto", "total_num_envs": 6}),
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
    default = dataclasses.replace(DEFAULT, gpu_num_envs=None, total_num_envs=None)
    file.write_text(yaml.safe_dump(to_plain(dataclasses.replace(default, **in_file))))
    config = typed("--config", str(file), *line.split())
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
    config = typed("cartpole-balance", *line.split())
    assert config.gpu_num_envs == expected


@pytest.mark.parametrize(
    ("argv", "task", "rest"),
    [
        ([], None, []),
        (["cartpole", "--seed", "1"], "cartpole", ["--seed", "1"]),
        (["--seed", "1"], None, ["--seed", "1"]),
        # As in Isaac Lab, and after all flags
        (["--seed", "1", "--task", "template", "--dry-run"], "template", ["--seed", "1", "--dry-run"]),
        (["--task=template", "--run-name=a"], "template", ["--run-name=a"]),
        (["--gpu-ids", "0", "1", "template"], "template", ["--gpu-ids", "0", "1"]),
        (["--help", "template"], "template", ["--help"]),
        (["--seed=1", "template"], None, ["--seed=1", "template"]),
        (["--run-name", "template"], None, ["--run-name", "template"]),
        (["--run-name", "a", "temlate"], None, ["--run-name", "a", "temlate"]),
    ],
)
def test_the_task_is_the_first_argument_or_stands_after_the_flags(argv: list[str], task: str | None, rest: list[str]):
    assert split_task(argv) == (task, rest)


@pytest.mark.parametrize(
    ("argv", "page", "rest"),
    [
        (["--seed", "1"], None, [("--seed", ["1"])]),
        (["--seed", "1", "-h"], ("--help", []), [("--seed", ["1"])]),
        (["--help", "--seed=1"], ("--help", []), [("--seed", ["1"])]),
        (["--help", "env.sim", "--seed", "1"], ("--help", ["env.sim"]), [("--seed", ["1"])]),
        (["--help_all"], ("--help_all", []), []),
    ],
)
def test_the_flags_for_help_are_removed(argv: list[str], page: Group | None, rest: list[Group]):
    assert take_help(by_flag(argv)) == (page, rest)


@pytest.mark.parametrize("task", ["cartpole-balance", "quadruped-velocity-rough", "arm-lift-cube"])
def test_all_flags_that_tyro_finds_in_a_config_are_flags(task: str, capsys: pytest.CaptureFixture[str]):
    default = registry.task_config(task)
    with pytest.raises(SystemExit):
        tyro.cli(TrainConfig, default=default, args=["--help"], config=FIXED_TYPES)
    found = set(re.findall(r"(?m)^[│ ] {1,2}--([a-z][^ ,]*)", capsys.readouterr().out))
    # Ignore how switches are turned off, and parameters of terms and models that have none
    found = {name for name in found if not re.search(r"params$|\bno-", name)}
    fields = {name.replace("_", "-"): field for name, field in fields_of(default).items()}
    assert found <= fields.keys()
    # tyro lists a term's parameter only if the config names it; entries can also be removed
    others = {name: field for name, field in fields.items() if name not in found and field.hint is not None}
    assert all(".params." in name for name in others)


def test_every_flag_has_a_description():
    for name, field in fields_of(registry.task_config("quadruped-velocity-rough")).items():
        assert field.text or ".params." in name, name


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_help_is_one_screen(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", str(columns))
    page = shown_help(capsys, "cartpole-balance", "--help")
    lines = page.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 42
    assert all(f"--{name.replace('_', '-')} " in page for name in train.ON_SHORT_PAGE)
    assert re.search(r"(?s)--total-num-envs INT.{,200}\(default:\W+1024\)", page)


@pytest.mark.parametrize("task", ["cartpole-balance", "quadruped-velocity-rough"])
def test_help_names_only_flags_that_exist(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "200")
    starts = re.findall(r"(?m)^\W{0,3}--[a-z]\S*(?: --\S+)?", shown_help(capsys, task, "--help-all"))
    named = {flag for start in starts for flag in re.findall(r"--[a-z][\w.-]*\w", start)}
    fields = {**run_fields(registry.task_config(task)), **fields_of(train.TrainFlags()), **HELP_FIELDS}
    known = {name.replace("_", "-") for name in fields}
    switches = {
        re.sub("([^.]+)$", r"no-\1", name.replace("_", "-")) for name, one in fields.items() if one.value is True
    }
    assert {flag.removeprefix("--") for flag in named} - known - switches <= {"help"}
    assert {"--agent.capture", "--agent.no-capture"} <= named


@pytest.mark.parametrize(
    "words",
    [
        ["cartpole-balance", "--help", "--seed", "x"],
        ["cartpole-balance", "--seed", "--help"],
        ["--help-all", "cartpole-balance"],
    ],
)
def test_help_is_shown_whatever_else_is_typed(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert "--num-envs" in shown_help(capsys, *words)


def test_a_mistake_shows_the_default_of_the_task(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        typed("cartpole-balance", "--max-iterations", "abc")
    assert f"(default: {DEFAULT.max_iterations})" in " ".join(capsys.readouterr().err.split())


def test_help_of_a_group_shows_only_its_flags(capsys: pytest.CaptureFixture[str]):
    page = shown_help(capsys, "cartpole-balance", "--help", "env.rewards")
    names = re.findall(r"(?m)^\W* --([a-z]\S+)", page)
    assert names
    assert all(name.startswith("env.rewards.") for name in names)
    assert "--num-envs" in shown_help(capsys, "--help", "num_envs")


@pytest.mark.parametrize(("prefix", "near"), [("env.reward.smoth", "env.rewards.smooth"), ("agnt", "agent")])
def test_help_of_an_unknown_group_names_the_nearest(prefix: str, near: str):
    with pytest.raises(UserError, match=rf"^--help {re.escape(prefix)}: .* {re.escape(near)}\?"):
        typed("cartpole-balance", "--help", prefix)
