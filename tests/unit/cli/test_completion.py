"""The Tab key suggests commands, tasks, flags and their values. It suggests groups of flags before single flags."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mjlab_dist import registry
from mjlab_dist.cli import completion
from mjlab_dist.cli.completion import PATHS, SCRIPTS, suggestions
from mjlab_dist.cli.help import flags_of
from mjlab_dist.cli.main import SUMMARIES
from mjlab_dist.errors import UserError

ROOT = Path(__file__).parents[3]

TRAIN = ("train", "cartpole-balance")


def suggested(*words: str) -> list[str]:
    found = suggestions(words)
    assert found is not None
    return list(found)


@pytest.mark.parametrize(
    "command", [["train"], ["play"], ["mjlab-dist", "train"], ["mjlab-dist", "verify"], ["/a/train"]]
)
@pytest.mark.parametrize("before", [[], ["uv", "run"]])
def test_tasks_with_their_summaries(before: list[str], command: list[str]):
    found = suggestions([*before, *command, "cart"])
    assert found == registry.task_summaries("cart")
    assert found is not None
    assert found["cartpole-balance"].startswith("Keep a pole upright")
    assert suggested(*before, *command, "") == registry.task_names()


@pytest.mark.parametrize("words", [[], [""], ["tra"], ["uv", "run", "tra"]])
def test_words_without_a_command_have_no_suggestions(words: list[str]):
    assert suggestions(words) is None


def test_the_command_check_takes_a_task_and_its_flags():
    assert suggested("mjlab-dist", "check", "cart") == list(registry.task_summaries("cart"))
    assert suggested("mjlab-dist", "check", "cartpole-balance", "--env.rewards.smooth.w") == [
        "--env.rewards.smooth.weight"
    ]


def test_commands_of_mjlab_dist():
    assert suggestions(["mjlab-dist", ""]) == SUMMARIES
    assert suggested("mjlab-dist", "ver") == ["verify"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((*TRAIN, "--num"), ["--num-envs"]),
        ((*TRAIN, "--agent.lea"), ["--agent.learning-rate"]),
        ((*TRAIN, "--seed", "3", "--num"), ["--num-envs"]),
        ((*TRAIN, "--gpu-ids", "0", "1", "--num"), ["--num-envs"]),
        ((*TRAIN, "--agent.no-c"), ["--agent.no-capture"]),
        ((*TRAIN, "--print"), ["--print-config"]),
        (("train", "--agent.lea"), ["--agent.learning-rate"]),
        (("train", "--env"), []),
        (("play", "cartpole-balance", "--vi"), ["--video", "--viewer"]),
        (("play", "cartpole-balance", "--env.nan"), ["--env.nan-policy"]),
        (("play", "cartpole-balance", "--agent"), []),
        (("mjlab-dist", "evaluate", "cartpole-balance", "--num"), ["--num-episodes", "--num-envs"]),
        (("mjlab-dist", "evaluate", "cartpole-balance", "--env.nan"), ["--env.nan-policy"]),
        (("mjlab-dist", "export", "cartpole-balance", "--num"), ["--num-checked"]),
        (("mjlab-dist", "verify", "cartpole-balance", "--js"), ["--json"]),
        (("mjlab-dist", "scaling", "cartpole-balance", "--until"), ["--until-return"]),
        (("mjlab-dist", "size-buffers", "cartpole-balance", "--st"), ["--steps"]),
        (("mjlab-dist", "demo", "--vi"), ["--video"]),
        (("mjlab-dist", "watch", "lat"), ["latest"]),
        (("mjlab-dist", "compare", "lat"), ["latest"]),
        (("mjlab-dist", "compare", "latest", "--me"), ["--metric"]),
        (("mjlab-dist", "watch", "latest", "--nu"), ["--num-envs"]),
        (("mjlab-dist", "doctor", "--j"), ["--json"]),
        (("mjlab-dist", "new-task", ""), []),
        (
            ("mjlab-dist", "new-task", "my-robot", "--"),
            ["--mjcf", "--robot", "--robots-dir", "--floating", "--goal", "--dir", "--help", "--help-all"],
        ),
        (("mjlab-dist", "completion", ""), ["bash", "zsh", "fish"]),
        (("list-tasks", "-"), ["--help"]),
        ((*TRAIN, "--zzz"), []),
    ],
)
def test_flags(words: tuple[str, ...], found: list[str]):
    assert suggested(*words) == found


def test_flags_are_suggested_before_anything_is_typed():
    for words in (TRAIN, (*TRAIN, "--num-envs", "4"), (*TRAIN, "--sync.compression", "bf16")):
        assert {"--num-envs", "--gpu-ids", "--env.", "--agent."} <= set(suggested(*words, ""))


def test_a_group_is_one_suggestion_until_its_name_is_typed():
    task = "quadruped-velocity-rough"
    config = registry.task_config(task)
    top = suggested("train", task, "--")
    assert "--env." in top
    assert not [flag for flag in top if "." in flag[:-1]]
    assert len(top) < len(flags_of(config)) / 4
    rewards = [f"--env.rewards.{name.replace('_', '-')}." for name in config.env.rewards]
    assert suggested("train", task, "--env.rewards.") == rewards
    commands = suggested("train", task, "--env.commands.")
    assert suggested("train", task, "--env.com") == commands, (
        "only one group starts with --env.com, so its flags are suggested"
    )


@pytest.mark.slow
def test_every_flag_is_reachable_and_a_group_is_never_the_only_suggestion():
    """If a group were the only suggestion, the shell would add a space, and the user could not type the flag's name."""
    task = "quadruped-velocity-rough"
    reached: set[str] = set()
    open_groups = ["--"]
    while open_groups:
        found = suggested("train", task, open_groups.pop())
        assert len(found) > 1 or not found[0].endswith(".")
        open_groups += [word for word in found if word.endswith(".")]
        reached.update(word for word in found if not word.endswith("."))
    assert {f"--{flag.name}" for flag in flags_of(registry.task_config(task)) if flag.path != "task"} <= reached


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--logger", ""], {"tensorboard": "default", "wandb": "", "trackio": ""}),
        (["--logger", "w"], {"wandb": ""}),
        (["--logger=w"], {"--logger=wandb": ""}),
        (["--logger", "tensorboard", "t"], {"tensorboard": "default", "trackio": ""}),
        (["--logger", "=", "w"], {"wandb": ""}),
        (["--logger", "="], {"tensorboard": "default", "wandb": "", "trackio": ""}),
        (["--num-envs", ""], {"auto": ""}),
        (["--num_envs", ""], {"auto": ""}),
        (["--num-envs", "4"], {}),
        (["--gpu-ids", "0", "a"], {"auto": "default", "all": ""}),
        (["--cpu-ranks", ""], {}),
        (["--cpu-ranks", "N"], {"None": ""}),
        (["--env.sim.options.cone", ""], {"pyramidal": "", "elliptic": ""}),
        (["--agent.schedule", "ada"], {"adaptive": "default"}),
    ],
)
def test_values(words: list[str], found: dict[str, str]):
    assert suggestions([*TRAIN, *words]) == found


@pytest.mark.parametrize("words", [
    (*TRAIN, "--config", ""), (*TRAIN, "--config=lo"), (*TRAIN, "--resume", "lo"), (*TRAIN, "--init-from", ""),
    ("play", "cartpole-balance", "--video", "a"), ("mjlab-dist", "new-task", "my-robot", "--mjcf", ""),
    ("mjlab-dist", "new-task", "my-robot", "--robot", "go2", "--robots-dir", ""),
    ("train", "quadruped-tracking", "--env.commands.motion.params.file", ""), ("mjlab-dist", "unknown", ""),
    ("mjlab-dist", "watch", "logs/"),
])  # fmt: skip
def test_paths_are_left_to_the_shell(words: tuple[str, ...]):
    assert suggestions(words) is None


def test_flags_that_take_paths_exist():
    known = {flag.path for command in SUMMARIES for flag in completion._flags(command, "cartpole-balance")}
    assert known >= PATHS


def test_help_on_a_group():
    assert suggested(*TRAIN, "--help", "") == ["env.", "agent.", "sync.", "checkpoint."]
    assert "sync.period" in suggested(*TRAIN, "--help", "sy")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_complete_every_installed_command(shell: str):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    text = Path(completion.__file__).with_suffix(f".{shell}").read_text()
    assert f" {' '.join(scripts)}" in text
    assert f"({'|'.join(scripts)})" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "bash, zsh or fish"),
        (["zhs"], "zhs: .* zsh\\?"),
        (["tcl"], "tcl: .* bash, zsh or fish"),
        (["bash", "zsh"], "bash, zsh or fish"),
    ],
)
def test_an_unknown_shell_is_refused(argv: list[str], message: str):
    with pytest.raises(UserError) as caught:
        completion.main(argv, "mjlab-dist completion")
    assert re.search(f"{message}$", str(caught.value))


def test_a_suggestion_imports_nothing_slow():
    code = (
        "import sys; from mjlab_dist.cli import main; "
        "sys.argv = ['mjlab-dist', 'completion', '--', 'train', 'quadruped-velocity-rough', '--env.rewards.']; "
        "main.umbrella(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, modules = done.stdout.splitlines()
    assert all(line.startswith("--env.rewards.") for line in lines)
    assert not {"torch", "warp", "mujoco", "tyro", "rich", "yaml"} & set(modules.split())
