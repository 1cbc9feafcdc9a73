"""Overflows of buffers that are too small are counted. Depending on the config, a run warns, ends or restarts."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import mujoco
import mujoco_warp as mjw
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.config import SimConfig, registry
from mjlab_dist.config.dotted_names import replaced, with_values
from mjlab_dist.config.physics import BUFFER_MARGIN, SHARED_MARGIN, larger_size
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.errors import BufferOverflowError, Exit, NonFiniteError
from mjlab_dist.learn import overflow
from mjlab_dist.learn.overflow import OverflowCheck
from mjlab_dist.learn.runner import Hook, Runner
from mjlab_dist.sim import Simulation, load_model, start_warp

BOX = SimConfig(model=str(Path(__file__).parents[2] / "data" / "models" / "box.xml"), njmax=3, nconmax=1, engine="warp")
NUM_ENVS = 3


@pytest.fixture(scope="module")
def landed() -> tuple[Simulation, mujoco.MjData]:
    """Boxes that have just touched the floor: in MuJoCo Warp, whose buffers are too small, and in MuJoCo's C code."""
    start_warp("cpu")
    sim = Simulation(load_model(BOX.model), NUM_ENVS, "cpu", dataclasses.replace(BOX, capture="off"))
    data = mujoco.MjData(sim.model)
    while not data.ncon:
        mujoco.mj_step(sim.model, data)
        sim.step()
    return sim, data


@pytest.fixture
def fallen(landed: tuple[Simulation, mujoco.MjData]) -> Simulation:
    return landed[0]


def check_of(sim: Simulation, policy: Literal["warn", "grow", "stop"]) -> OverflowCheck:
    config = replaced(registry.task_config("cartpole-balance"), ["env", "sim"], BOX)
    config = replaced(config, ["env", "sim", "on_overflow"], policy)
    env: Any = type("Envs", (), {"sim": sim})()
    return OverflowCheck(env, config, is_main=False)


ROW: dict[str, float | int | None] = {"iteration": 7, "overflowed_envs": NUM_ENVS}


def test_counts_include_rows_and_contacts_that_did_not_fit(landed: tuple[Simulation, mujoco.MjData]) -> None:
    """Expected counts come from MuJoCo's C code, whose buffers are always large enough."""
    sim, data = landed
    assert data.ncon == 4
    assert sim.demand[-1] == NUM_ENVS * data.ncon
    assert sim.buffer_sizes == (3, 1)
    # The three envs share a buffer of three contacts. Only rows of these three contacts are counted.
    rows_per_contact = data.nefc // data.ncon
    assert sim.demand[:-1].sum() == NUM_ENVS * rows_per_contact
    assert (sim.overflow != 0).all()


def test_growing_raises_with_sizes_that_suffice(fallen: Simulation) -> None:
    with pytest.raises(BufferOverflowError, match=r"^iteration 7: --env\.sim\.nconmax 1 is too small for 4 ") as caught:
        check_of(fallen, "grow").must_end(ROW)
    assert caught.value.larger["nconmax"] >= 4
    assert caught.value.larger["njmax"] > 3
    assert caught.value.exit_code is Exit.NUMERICS


def test_stopping_ends_the_run_after_its_checkpoint(fallen: Simulation) -> None:
    check = check_of(fallen, "stop")
    check.raise_pending()
    assert check.must_end(ROW)
    flags = r"--env\.sim\.nconmax 8 --env\.sim\.njmax \d+"
    with pytest.raises(BufferOverflowError, match=f"; resume with {flags}, or") as caught:
        check.raise_pending()
    assert not caught.value.larger
    assert "\n" not in str(caught.value)


def test_absurd_sizes_end_the_run(fallen: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "MAX_BUFFER", 7)
    check = check_of(fallen, "grow")
    assert check.must_end(ROW)
    with pytest.raises(BufferOverflowError, match="a size above 7 suggests"):
        check.raise_pending()


def test_a_warning_does_not_end_the_run(fallen: Simulation) -> None:
    check = check_of(fallen, "warn")
    assert not check.must_end(ROW)
    check.raise_pending()


@pytest.mark.parametrize(("policy", "remains"), [("warn", True), ("grow", False), ("stop", False)])
def test_only_new_overflows_count_after_a_resume(policy: Literal["warn", "grow", "stop"], remains: bool) -> None:
    sim: Any = type("Sim", (), {"overflow": torch.ones(2, dtype=torch.int32)})()
    check_of(sim, policy).ignore_restored()
    assert bool(sim.overflow.any()) is remains


@given(st.integers(0, 9000), st.integers(0, 20000), st.sampled_from([BUFFER_MARGIN, SHARED_MARGIN]))
def test_larger_sizes_fit_and_grow_by_a_factor(size: int, needed: int, margin: float) -> None:
    larger = larger_size(size, needed, margin)
    assert larger >= margin * needed
    assert larger > size
    assert larger >= 1.5 * size
    assert larger <= max(4, math.ceil(margin * max(needed, 1.25 * size)) + 16)


class Breaking(Hook):
    """Makes a state NaN in the same iteration in which rows do not fit."""

    def before_iteration(self, runner: Runner, iteration: int) -> None:  # noqa: ARG002 (same parameters as in Hook)
        runner.env.sim.overflow[0] = int(mjw.OverflowType.NEFC)
        runner.env.sim.qvel[0, 0] = math.nan


@pytest.mark.parametrize(
    ("policy", "error"), [("grow", BufferOverflowError), ("stop", BufferOverflowError), ("warn", NonFiniteError)]
)
def test_an_overflow_is_the_cause_of_nan_in_the_same_iteration(
    policy: Literal["warn", "grow", "stop"], error: type[Exception]
) -> None:
    start_warp("cpu")
    fields = {"num_envs": 4, "max_iterations": 1, "agent.num_mini_batches": 1, "env.sim.engine": "warp"}
    config = with_values(registry.task_config("cartpole-balance"), {**fields, "env.sim.on_overflow": policy})
    runner = Runner(Env(config.env, 4, "cpu"), config, Rank())
    runner.hooks = [Breaking()]
    with pytest.raises(error) as caught:
        runner.train()
    assert bool(getattr(caught.value, "larger", None)) is (policy == "grow")
