"""play --nan-dump on dumps of real envs.

In some dumps, a step diverged, and it diverges again when it is repeated. In others, a test wrote the NaN.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from browsing import choose
from conftest import Command
from playwright.sync_api import Page as Tab
from rsl_rl.storage import RolloutStorage

from mjlab_dist import policies
from mjlab_dist.config import PlayConfig, registry
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.finite import FiniteCheck
from mjlab_dist.runs.provenance import write_origin
from mjlab_dist.runs.run_dir import ERRORS_DIR, create_run_dir
from mjlab_dist.sim import start_warp

TASK = "cartpole-balance"
NUM_ENVS = 4
NUM_STEPS = 6


def leave_dump(log_root: Path, velocity_std: float, disturb: Callable[[Env, int], None]) -> Path:
    """Collect a rollout, and dump the states that are not finite, as a run does.

    Args:
        log_root: Directory of all runs.
        velocity_std: Standard deviation of the initial velocities, in m/s and rad/s.
        disturb: Function that is called before each step, with the step's index from 0.
    """
    config = registry.task_config(TASK)
    velocities = dataclasses.replace(config.env.events["velocities"], params={"std": velocity_std})
    env_config = dataclasses.replace(config.env, events={**config.env.events, "velocities": velocities})
    config = dataclasses.replace(config, log_root=str(log_root), env=env_config)
    run_dir = create_run_dir(config)
    write_origin(run_dir, config, ["test"], ["cpu"])

    start_warp("cpu")
    torch.manual_seed(0)
    env = Env(env_config, NUM_ENVS, "cpu", first_env_id=40)
    obs = env.get_observations()
    storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [1])
    check = FiniteCheck(env, storage)
    for step in range(NUM_STEPS):
        check.record(step)
        disturb(env, step)
        storage.observations[step] = obs
        storage.actions[step] = torch.rand(NUM_ENVS, 1)
        obs, rewards, dones, _ = env.step(storage.actions[step])
        storage.rewards[step, :, 0], storage.dones[step, :, 0] = rewards, dones
    assert check.count(obs)
    path = run_dir / ERRORS_DIR / "nan_rank1.pt"
    checkpoint.save(path, {**check.dump(TASK, env.pop_episode_totals())})
    return path


def spoil(env: Env, step: int) -> None:
    if step == 3:
        env.sim.qvel[[0, 2], 1] = float("nan")


@pytest.mark.slow
def test_an_injected_nan_is_not_reproduced(command: Command) -> None:
    dump = leave_dump(command.cwd / "logs", 0.01, spoil)
    done = command.here("play", TASK, "--nan-dump", str(dump))
    assert done.code == 0, done.err
    heading, *blocks = done.out.split("\n\n")
    assert str(dump) in heading
    assert [block.splitlines()[0].partition(" of ")[0] for block in blocks] == [f"env {i}, step 4" for i in (40, 42)]
    for block in blocks:
        assert " physics qvel (slider, hinge)" in block
        assert " reward (smooth)" in block
        before, after, again = row_of("qvel hinge", block)
        assert abs(before) < 1
        assert after != after
        assert abs(again - before) < 1
        assert "action force" in block
        assert block.splitlines()[-1].strip().startswith("not reproduced: ")


@pytest.mark.slow
def test_a_diverging_step_is_reproduced_and_rendered(command: Command) -> None:
    import imageio.v3 as iio

    dump = leave_dump(command.cwd / "logs", 1e25, lambda *_: None)
    done = command.here("play", TASK, "--nan-dump", str(dump), "--video", "blow_up.mp4")
    assert done.code == 0, done.err
    assert "blow_up.mp4" in done.out
    blocks = done.out.split("\n\n")[1:]
    assert len(blocks) == NUM_ENVS
    for block in blocks:
        assert ", step 1" in block.splitlines()[0]
        before, after, again = row_of("qvel hinge", block)
        assert abs(before) > 1e20
        assert not torch.tensor([after, again]).isfinite().any()
        assert block.splitlines()[-1].strip().startswith("reproduced: ")
    assert iio.imread(command.cwd / "blow_up.mp4").shape == (1, 480, 848, 3)


@pytest.mark.slow
def test_a_page_shows_the_recorded_states_and_the_names_that_were_not_finite(
    command: Command, open_tab: Callable[[str], Tab]
) -> None:
    dump = leave_dump(command.cwd / "logs", 0.01, spoil)
    process = command.start("play", TASK, "--nan-dump", str(dump), "--viewer", "web")
    assert process.stdout is not None
    url = next(found[0] for line in process.stdout if (found := re.search(r"http://[^ ]+", line)))
    tab = open_tab(url)
    tab.get_by_text("Step 4 of 4").wait_for()
    tab.get_by_text("slider, hinge").first.wait_for()
    tab.get_by_text("the picture shows the state after step 3").wait_for()
    tab.get_by_text("Previous", exact=True).click()
    tab.get_by_text("Step 3 of 4").wait_for()
    choose(tab, "Env", "42")
    tab.get_by_text("Step 4 of 4").wait_for()
    tab.get_by_text("Next", exact=True).click()
    process.send_signal(signal.SIGINT)
    assert command.finish(process).code == 0
    # A file that is not a dump
    done = command.here("play", TASK, "--nan-dump", str(dump.parent.parent / "config.yaml"), "--viewer", "web")
    assert done.code == 2, done.err


def row_of(label: str, block: str) -> list[float]:
    (line,) = (line for line in block.splitlines() if line.strip().startswith(label))
    return [float(number) for number in line.strip().removeprefix(label).split()]


@pytest.mark.slow
def test_a_wrong_file_is_refused_in_one_line(command: Command) -> None:
    dump = leave_dump(command.cwd / "logs", 0.01, spoil)
    elsewhere = command.cwd / dump.name
    elsewhere.write_bytes(dump.read_bytes())
    damaged = dump.with_name("nan_rank2.pt")
    damaged.write_bytes(dump.read_bytes()[:1000])
    weights = dump.with_name("nan_rank3.pt")
    checkpoint.save(weights, {"actor_state_dict": {}})
    for task, config, says in (
        (TASK, PlayConfig(nan_dump="nowhere.pt"), "--nan-dump nowhere.pt: "),
        (TASK, PlayConfig(nan_dump=str(elsewhere)), f"--nan-dump {elsewhere}: "),
        (TASK, PlayConfig(nan_dump=str(dump), checkpoint="x.pt"), f"--nan-dump {dump}: .*--checkpoint x.pt"),
        ("cartpole-swingup", PlayConfig(nan_dump=str(dump)), f"--run .* {TASK}\\b.* cartpole-swingup"),
        (TASK, PlayConfig(nan_dump=str(damaged)), f"{damaged}: "),
        (TASK, PlayConfig(nan_dump=str(weights)), f"--nan-dump {weights}: "),
    ):
        with pytest.raises(UserError) as caught:
            policies.replay(*policies.resolve(task, config), config)
        assert re.search(says, str(caught.value))
        assert "\n" not in str(caught.value)
    done = command.here("play", TASK, "--nan-dump", str(weights))
    assert done.code == 2
    assert done.err.startswith(f"play: --nan-dump {weights}: ")
    assert done.err.count("\n") == 1


def test_a_dump_of_another_model_is_refused(command: Command) -> None:
    dump = leave_dump(command.cwd / "logs", 0.01, spoil)
    content = checkpoint.load(dump, "cpu")
    content["state"]["qpos"] = content["state"]["qpos"][:, :, :1]
    checkpoint.save(dump, content)
    config = PlayConfig(nan_dump=str(dump))
    with pytest.raises(UserError, match=r"--nan-dump .* qpos .*\(2, 1\).*\(2, 2\)"):
        policies.replay(*policies.resolve(TASK, config), config)


@pytest.mark.parametrize("wrong", [torch.tensor([-1, 0]), torch.tensor([0, 5]), torch.tensor([0.0, 1.0])])
def test_a_dump_of_steps_that_it_does_not_contain_is_refused(command: Command, wrong: torch.Tensor) -> None:
    dump = leave_dump(command.cwd / "logs", 0.01, spoil)
    checkpoint.save(dump, {**checkpoint.load(dump, "cpu"), "steps": wrong})
    config = PlayConfig(nan_dump=str(dump))
    with pytest.raises(UserError, match=r"^--nan-dump .*: steps .*, but must be .*; it is damaged"):
        policies.replay(*policies.resolve(TASK, config), config)
