"""mjlab_dist.train in scripts and notebooks. Each script runs in its own process, whose children must all end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from conftest import Command
from processes import AGENT_MODULE, with_argument

import mjlab_dist
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.runs.run_dir import METRICS_FILE, read_history, read_metrics

if TYPE_CHECKING:
    import torch

    from mjlab_dist.env import Env

SMALL = {"num_envs": 32, "agent.num_steps_per_env": 8, "env.episode_length_s": 0.1}

TERMS = """
import os
import signal

steps = 0

def fine(env):
    return env.sim.qpos[:, 0]

def interrupt_all(env):
    # Send SIGINT to every process in the script's process group, as a terminal or a notebook does
    global steps
    steps += 1
    if os.environ.get("RANK") == "0" and steps == 20:
        os.killpg(int(os.environ["GROUP_OF_SCRIPT"]), signal.SIGINT)
    return env.sim.qpos[:, 0]

def fail_on_rank_1(env):
    if os.environ.get("RANK") == "1":
        raise ValueError("the reward of rank 1 broke")
    return env.sim.qpos[:, 0]

def fail(env):
    raise ValueError("the only rank broke")
"""

ONE_AFTER_ANOTHER = """
import asyncio, json, logging, os, signal, subprocess, sys, threading
import mjlab_dist
import terms_beside_script

small = json.loads(sys.argv[1])
bystander = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def state():
    logger = logging.getLogger("mjlab_dist")
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    return handlers, logger.handlers, logger.level, signal.pthread_sigmask(signal.SIG_BLOCK, []), sys.stderr

async def main():  # as in a notebook's cell, the thread's event loop is running
    assert asyncio.get_running_loop().is_running()
    before = state()
    answers = []
    for ranks in (1, 2, 1):
        fields = {**small, "cpu_ranks": ranks, "max_iterations": 3, "log_root": f"logs{len(answers)}"}
        fields["env.rewards.smooth.func"] = terms_beside_script.fine
        result = mjlab_dist.train("cartpole-balance", quiet=ranks == 1, **fields)
        assert state() == before
        history = {name: column.tolist() for name, column in result.history.items()}
        answers.append({"run_dir": str(result.run_dir), "metrics": result.metrics, "history": history,
                        "checkpoint": result.checkpoint.is_file(), "threads": threading.active_count()})
    assert bystander.poll() is None, "a child that is not ours was killed"
    bystander.kill()
    os.write(2, b"descriptor 2 is what it was")
    print(json.dumps({"answers": answers}))

asyncio.run(main())
"""

WHAT_FAILS = """
import json, os, subprocess, sys, threading, time
import mjlab_dist
import psutil
from processes import AGENT_MODULE, command_line, with_argument

small = json.loads(sys.argv[1])
answers = {}

def caught(name, **fields):
    try:
        mjlab_dist.train("cartpole-balance", quiet=True, **small, **fields)
    except BaseException as error:
        answers[name] = [type(error).__name__, str(error), getattr(error, "__notes__", [])]

def reward(function):
    return {"env.rewards.smooth.func": f"terms_beside_script:{function}"}

if __name__ == "__main__":
    os.environ["GROUP_OF_SCRIPT"] = str(os.getpgrp())
    thread = threading.Thread(target=caught, args=["thread"], kwargs={"cpu_ranks": 2, **reward("fail_on_rank_1")})
    before = {child.pid for child in psutil.Process().children()}
    thread.start()
    while not with_argument(psutil.Process().children(), AGENT_MODULE):
        time.sleep(0.1)
    caught("meanwhile", gpu_ids=None)
    thread.join()
    caught("interrupted", cpu_ranks=2, max_iterations=100000, **reward("interrupt_all"))
    caught("inline", gpu_ids=None, **reward("fail"))
    children = [child for child in psutil.Process().children() if child.pid not in before]
    answers["children"] = [line for child in children if (line := command_line(child))]
    print(json.dumps(answers))
"""


@pytest.fixture
def script(command: Command) -> Any:
    """Run a script that is not in the working directory. A module with terms is next to the script."""

    def run(code: str) -> tuple[dict[str, Any], str, str]:
        directory = command.cwd / "scripts"
        directory.mkdir()
        (directory / "terms_beside_script.py").write_text(TERMS)
        path = directory / "script.py"
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(0o700)
        done = command(str(path), json.dumps(SMALL), env={"PYTHONPATH": str(Path(__file__).parents[1])})
        assert done.code == 0, done.err
        *printed, answer = done.out.splitlines()
        return json.loads(answer), "\n".join(printed), done.err

    return run


@pytest.mark.slow
def test_trainings_follow_each_other_in_a_running_event_loop(script: Any, command: Command) -> None:
    answer, printed, err = script(ONE_AFTER_ANOTHER)
    assert err == "descriptor 2 is what it was"
    for ranks, run in zip((1, 2, 1), answer["answers"], strict=True):
        rows = read_metrics(command.cwd / run["run_dir"])
        assert run["metrics"] == rows[-1]
        assert rows[-1]["total_steps"] == ranks * 3 * 32 * 8
        assert run["checkpoint"]
        assert set(run["history"]) == set(rows[0]) >= {"mean_return", "loss/value", "learning_rate", "steps_per_s"}
        assert run["history"]["iteration"] == [1, 2, 3]
    first, _, third = answer["answers"]
    assert first["history"]["mean_step_reward"] == third["history"]["mean_step_reward"], "same seed, same run"
    assert third["threads"] <= first["threads"], "threads are left behind"

    # The run that is not quiet prints the same progress as a command without a terminal.
    lines = printed.splitlines()
    assert re.match(r".*\bcartpole-balance\b.* 2 ranks\b", lines[0])
    assert any(" 3/3 " in line for line in lines)
    assert not any(" 1 rank" in line for line in lines)


@pytest.mark.slow
@pytest.mark.long
def test_a_failure_is_raised_and_leaves_no_process(script: Any) -> None:
    answer, printed, err = script(WHAT_FAILS)
    assert printed == ""
    assert err == ""
    kind, message, (note,) = answer["thread"]
    assert kind == "RankError"
    assert re.match("rank 1 .*ValueError: the reward of rank 1 broke.* logs/", message)
    assert "in fail_on_rank_1" in note
    assert answer["meanwhile"][0] == "UserError"
    assert answer["interrupted"][0] == "KeyboardInterrupt"
    assert answer["inline"][:2] == ["ValueError", "the only rank broke"]
    assert answer["children"] == []


def test_ctrl_c_while_ranks_start_is_handled_at_once(
    command: Command,
    wait_for: Callable[[Callable[[], bool]], None],
    assert_within: Callable[[float, float], None],
) -> None:
    process = command.start(
        sys.executable, "-c", "import mjlab_dist; mjlab_dist.train('cartpole-balance', cpu_ranks=2)"
    )
    wait_for(lambda: bool(with_argument(psutil.Process(process.pid).children(recursive=True), AGENT_MODULE)))
    process.send_signal(signal.SIGINT)
    done = command.finish(process)
    assert done.code == -signal.SIGINT
    assert_within(done.took_s, 15)
    assert done.err.splitlines()[-1] == "KeyboardInterrupt"


MISTAKES = {
    "env.rewards.smoth.weight": (1.0, r"env.rewards.smoth.weight: .* env.rewards.smooth.weight\?"),
    "num_env": (1, r"num_env: .* num_envs\?"),
    "xyzzy": (1, "xyzzy: .*train --help"),
    "num_envs": ("many", "num_envs 'many': takes a whole number, or auto$"),
    "gpu_ids": (0, "gpu_ids 0: takes whole numbers, auto, all, or None$"),
    "resume": (5, "resume 5: takes a text, or None$"),
    "agent": (5, "agent 5: takes the fields of PpoConfig, or the fields of SacConfig$"),
    "agent.actor_hidden_dims": (64, "agent.actor_hidden_dims 64: takes whole numbers$"),
    "agent.learning_rate": ("fast", "agent.learning_rate 'fast': takes a number$"),
    "agent.gamma": (1.5, "--agent.gamma 1.5: "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name: str) -> None:
    value, part = MISTAKES[name]
    with pytest.raises(mjlab_dist.UserError, match=part):
        mjlab_dist.train("cartpole-balance", **{name: value})


@pytest.mark.parametrize("task", [None, 5, [], ""])
def test_a_value_that_is_not_a_task_is_refused(task: Any) -> None:
    for function in (mjlab_dist.train, mjlab_dist.check_task):
        with pytest.raises(mjlab_dist.UserError, match=f"task {re.escape(str(task))}: "):
            function(task)


@pytest.mark.parametrize("pair", [("num_envs", "total_num_envs"), ("max_iterations", "total_timesteps")])
def test_a_config_and_the_same_field_exclude_each_other(pair: tuple[str, str]) -> None:
    flags = [f"--{name.replace('_', '-')} 64" for name in pair]
    with pytest.raises(mjlab_dist.UserError, match=".*".join(flags)):
        with_values(mjlab_dist.task_config("cartpole-balance"), dict.fromkeys(pair, 64))


def test_a_field_replaces_its_alternative_in_the_config() -> None:
    base = with_values(mjlab_dist.task_config("cartpole-balance"), {"total_num_envs": 64})
    assert with_values(base, {"num_envs": 8}).total_num_envs is None
    assert with_values(mjlab_dist.task_config("cartpole-balance"), {"num_envs": 8}).gpu_num_envs is None


def test_keyword_arguments_are_the_flags_of_the_command_line() -> None:
    base = mjlab_dist.task_config("cartpole-balance")
    agent = base.agent
    made = with_values(
        base,
        {
            "agent.learning_rate": 1,
            "agent": agent,
            "gpu_ids": [0, 1],
            "env.rewards.smooth.weight": 2.0,
            "cpu_ranks": None,
        },
    )
    assert made.agent.learning_rate == 1.0, "the agent is set before its fields, whatever the order of the arguments"
    assert made.gpu_ids == (0, 1)
    assert made.env.rewards["smooth"].weight == 2.0
    assert with_values(base, {}) == base


def own_reward(env: Env) -> torch.Tensor:
    return env.sim.qpos[:, 0]


def test_a_function_is_named_in_the_config() -> None:
    base = mjlab_dist.task_config("cartpole-balance")
    made = with_values(base, {"env.rewards.smooth.func": own_reward})
    assert made.env.rewards["smooth"].func == f"{__name__}:own_reward"
    with pytest.raises(mjlab_dist.UserError, match="lambda"):
        with_values(base, {"env.rewards.smooth.func": lambda env: env.sim.qpos[:, 0]})


def test_history_returns_nan_for_unknown_values(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"iteration": 1, "mean_return": null}\n{"iteration": 2, "kl": 0.5}\n')
    history = read_history(tmp_path)
    np.testing.assert_array_equal(history["iteration"], [1, 2])
    np.testing.assert_array_equal(history["mean_return"], [np.nan, np.nan])
    np.testing.assert_array_equal(history["kl"], [np.nan, 0.5])


def test_the_import_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'tyro', 'torchrunx', 'warp', 'rich', 'numpy'}"
    code = f"import sys, mjlab_dist; sys.exit(str({heavy} & sys.modules.keys() or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


TWICE = """
import gc, json, sys, weakref
import mjlab_dist
import mjlab_dist.env.env

gc.disable()  # otherwise the collector may free the first run by chance
build = mjlab_dist.env.env.Env.__init__
envs, alive = [], []

def watched(self, *args, **kwargs):
    alive.append(sum(env() is not None for env in envs))
    envs.append(weakref.ref(self))
    build(self, *args, **kwargs)

mjlab_dist.env.env.Env.__init__ = watched
for _ in range(2):
    mjlab_dist.train("cartpole-balance", gpu_ids=None, max_iterations=1, quiet=True, **json.loads(sys.argv[1]))
print(json.dumps(alive))
"""


@pytest.mark.slow
def test_the_memory_of_a_first_run_is_free_for_a_second_run_in_the_same_process(command: Command) -> None:
    done = command(command.script(TWICE), json.dumps(SMALL))
    assert done.code == 0, done.err
    assert json.loads(done.out) == [0, 0]
