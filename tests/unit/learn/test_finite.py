"""Numbers that are not finite in rollouts of real envs are found, named, written to a dump, and read back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from legged import EVERYTHING
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import EnvConfig
from mjlab_dist.config.registry import task_config
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.learn import checkpoint, finite
from mjlab_dist.learn.finite import Dump, FiniteCheck
from mjlab_dist.sim import start_warp

TASK = "cartpole-balance"
NUM_ENVS = 6
NUM_STEPS = 8
FIRST_ENV_ID = 100
NAN = float("nan")

Disturb = Callable[[Env, RolloutStorage.Transition, int], None]
"""Function that is called before each step. The last argument is the number of the step, counted from 0."""


@pytest.fixture(autouse=True, scope="module")
def _warp() -> None:
    start_warp("cpu")


def nothing(_env: Env, _transition: RolloutStorage.Transition, _step: int) -> None:
    """Disturb nothing."""


class Rollout:
    """Collects rollouts without a learner: actions are random, and values are 0."""

    def __init__(self, config: EnvConfig | None = None) -> None:
        torch.manual_seed(0)
        self.env = Env(config or task_config(TASK).env, NUM_ENVS, "cpu", first_env_id=FIRST_ENV_ID)
        self.obs = self.env.get_observations()
        self.storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, self.obs, [1])
        self.check = FiniteCheck(self.env, self.storage)

    def collect(self, disturb: Disturb = nothing) -> torch.Tensor:
        """Collect a rollout, and return the number of envs that the check found."""
        self.storage.clear()
        for step in range(NUM_STEPS):
            transition = RolloutStorage.Transition()
            transition.observations = self.obs
            transition.actions = torch.randn(NUM_ENVS, 1)
            transition.values = torch.zeros(NUM_ENVS, 1)
            transition.actions_log_prob = torch.zeros(NUM_ENVS)
            transition.distribution_params = (torch.zeros(NUM_ENVS, 1),)
            self.check.record(step)
            disturb(self.env, transition, step)
            self.obs, transition.rewards, transition.dones, _ = self.env.step(transition.actions)
            self.storage.add_transition(transition)
        return self.check.count(self.obs)

    def dump(self) -> Dump:
        """Return the dump of the envs that were found."""
        return self.check.dump(TASK, self.env.pop_episode_totals())


def at(step: int, do: Callable[[Env, RolloutStorage.Transition], None]) -> Disturb:
    """Return a function that disturbs the env only before one step."""

    def disturb(env: Env, transition: RolloutStorage.Transition, now: int) -> None:
        if now == step:
            do(env, transition)

    return disturb


def spin(*envs: int, value: float = NAN) -> Callable[[Env, RolloutStorage.Transition], None]:
    """Return a function that sets the velocity of the pole in some envs."""

    def do(env: Env, _: RolloutStorage.Transition) -> None:
        env.sim.qvel[list(envs), 1] = value

    return do


# Numbers that are not finite are found


def test_envs_are_counted_once_per_rollout() -> None:
    rollout = Rollout()
    assert rollout.collect(at(3, spin(1, 4))) == 2
    rollout.env.reset()
    rollout.obs = rollout.env.get_observations()
    assert rollout.collect() == 0


@pytest.mark.parametrize("step", [0, NUM_STEPS - 1])
def test_the_first_and_the_last_step_are_checked(step: int) -> None:
    rollout = Rollout()
    assert rollout.collect(at(step, spin(2))) == 1
    assert rollout.dump()["steps"].tolist() == [step + 1]


def test_a_last_observation_that_is_not_finite_is_found() -> None:
    """The storage does not contain this observation, but returns are bootstrapped from its value."""
    rollout = Rollout()
    rollout.collect()
    obs = TensorDict({"actor": rollout.obs["actor"].clone()}, batch_size=[NUM_ENVS])
    obs["actor"][3, 2] = NAN
    assert rollout.check.count(obs) == 1
    dump = rollout.dump()
    assert dump["names"] == [{"observation actor": ["pole_direction"]}]
    assert dump["steps"].tolist() == [NUM_STEPS]
    assert dump["observations"]["actor"][NUM_STEPS, 0, 2].isnan()


def test_the_check_never_waits_for_the_device() -> None:
    rollout = Rollout()
    with HostSyncs() as syncs:
        found = rollout.collect(at(2, spin_by_mask))
    assert syncs.found == []
    assert found == 3


def spin_by_mask(env: Env, _: RolloutStorage.Transition) -> None:
    """Set the velocities of every second env to NaN, with a mask instead of indices."""
    env.sim.qvel.masked_fill_((torch.arange(NUM_ENVS) % 2 == 0).unsqueeze(1), NAN)


# Numbers that are not finite are named


def test_a_state_that_is_not_finite_is_named_by_joint_term_env_and_step() -> None:
    rollout = Rollout()
    rollout.collect(at(4, spin(5, 1)))
    dump = rollout.dump()
    assert dump["env_ids"].tolist() == [FIRST_ENV_ID + 1, FIRST_ENV_ID + 5]
    assert dump["steps"].tolist() == [5, 5]
    for names in dump["names"]:
        assert "hinge" in names["physics qvel"]
        assert "pole_velocity" in names["observation actor"]
        assert names["reward"] == ["smooth"]
    line = finite.describe(dump)
    assert re.search(r"physics qpos \(.*reward \(smooth\).* 101 and 105\b.*\bstep 5\b", line)
    assert "\n" not in line


def test_a_state_that_was_not_finite_from_the_start_is_reported() -> None:
    rollout = Rollout()
    spin(0)(rollout.env, RolloutStorage.Transition())
    rollout.collect()
    dump = rollout.dump()
    assert dump["names"] == [{"physics qvel": ["hinge"]}]
    assert finite.describe(dump) == (
        "not finite: physics qvel (hinge); env 100, already before the first step of the rollout"
    )


def test_an_action_and_a_value_that_are_not_finite_are_named() -> None:
    def break_policy(_: Env, transition: RolloutStorage.Transition) -> None:
        assert transition.actions is not None
        transition.actions[2] = NAN

    def break_value(_: Env, transition: RolloutStorage.Transition) -> None:
        assert transition.values is not None
        transition.values[4] = float("inf")

    rollout = Rollout()
    assert rollout.collect(at(1, break_policy)) == 1
    (names,) = rollout.dump()["names"]
    assert next(iter(names.items())) == ("action", ["force"])

    rollout = Rollout()
    assert rollout.collect(at(1, break_value)) == 1
    assert rollout.dump()["names"] == [{"value": ["critic"]}]


def test_a_reward_that_is_not_finite_although_its_terms_are_is_reported() -> None:
    rollout = Rollout()
    rollout.collect()
    rollout.storage.rewards[3, 0] = NAN
    assert rollout.check.count(rollout.obs) == 1
    dump = rollout.dump()
    assert dump["names"] == [{"reward": ["the value at a time-out, or the intrinsic reward"]}]
    assert dump["steps"].tolist() == [4]


def test_the_first_to_fail_are_kept_and_come_first_and_a_message_lists_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "MAX_KEPT", 5)
    rollout = Rollout()

    def all_in_turn(env: Env, transition: RolloutStorage.Transition, step: int) -> None:
        if step < NUM_ENVS:
            spin(NUM_ENVS - 1 - step)(env, transition)

    assert rollout.collect(all_in_turn) == NUM_ENVS
    dump = rollout.dump()
    assert dump["num_envs"] == NUM_ENVS
    assert dump["env_ids"].tolist() == [105, 104, 103, 102, 101]
    assert dump["steps"].tolist() == [1, 2, 3, 4, 5]
    assert dump["state"]["qpos"].shape == (6, 5, 2)
    assert re.search(r" 105, 104, 103, 102 and 2 .*\bstep 1\b", finite.describe(dump))


def test_every_column_is_named_after_its_term() -> None:
    torch.manual_seed(0)
    env = Env(EVERYTHING, 2, "cpu")
    columns = finite.column_names(env)
    for group, observed in env.get_observations().items():
        assert len(columns[f"observation {group}"]) == observed.shape[1]
    assert columns["observation actor"].count("joints") == 3 * 5  # the term has a history of 3
    assert list(dict.fromkeys(columns["observation critic"])) == list(EVERYTHING.observations["critic"])
    assert columns["action"] == ["FL_leg", "FR_leg", "RL_leg", "RR_leg", "tail"]
    assert columns["physics qvel"] == ["root"] * 6 + ["FL_hip", "FR_hip", "RL_hip", "RR_hip", "tail"]


# Dumps of numbers that are not finite


def test_a_dump_contains_the_rollout_up_to_the_first_value_that_is_not_finite() -> None:
    rollout = Rollout()
    states, actions = [], []

    def note(env: Env, transition: RolloutStorage.Transition, step: int) -> None:
        states.append(torch.cat([env.sim.qpos, env.sim.qvel, env.episode_length_buf.unsqueeze(1)], dim=1))
        actions.append(transition.actions)
        at(5, spin(1, 3))(env, transition, step)

    rollout.collect(note)
    dump = rollout.dump()
    state = dump["state"]
    told = torch.cat([state["qpos"], state["qvel"], state["episode_length"].unsqueeze(2)], dim=2)
    assert torch.equal(told[:6], torch.stack(states)[:6, [1, 3]])
    assert told[6].isnan().any(dim=1).all()
    assert torch.equal(dump["actions"], torch.stack(actions[:6])[:, [1, 3]])  # pyright: ignore[reportArgumentType]
    assert dump["rewards"][:5].isfinite().all()
    assert dump["rewards"][5].isnan().all()
    assert not dump["dones"].any()
    assert torch.equal(dump["observations"]["actor"][:6], rollout.storage.observations["actor"][:6, [1, 3]])


def test_a_dump_is_read_back_without_running_code(tmp_path: Path) -> None:
    rollout = Rollout()
    rollout.collect(at(2, spin(0)))
    dump = rollout.dump()
    path = tmp_path / "errors" / "nan_rank0.pt"
    checkpoint.save(path, {**dump})
    read = finite.load(path, TASK)
    assert read.keys() == dump.keys()
    assert torch.equal(read["state"]["qpos"][:-1], dump["state"]["qpos"][:-1])
    assert finite.describe(read) == finite.describe(dump)
    with pytest.raises(UserError, match=f"^--nan-dump {path}: .*{TASK}.* other"):
        finite.load(path, "other")
    checkpoint.save(path, {"actor_state_dict": {}})
    with pytest.raises(UserError, match=f"^--nan-dump {path}: .*nan_rank"):
        finite.load(path, TASK)


def test_values_that_a_reset_does_not_fix_are_found() -> None:
    config = dataclasses.replace(task_config(TASK).env, nan_policy="reset")
    rollout = Rollout(config)
    assert rollout.collect(at(3, spin(1, 4))) == 0
    assert rollout.env.pop_nan_resets() == 2
    velocities = dataclasses.replace(config.events["velocities"], params={"std": NAN})
    rollout = Rollout(dataclasses.replace(config, events={**config.events, "velocities": velocities}))
    assert rollout.collect() == NUM_ENVS
