"""Actuator inputs are computed from the policy's output. A simple delay line in Python gives the expected inputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from legged import FEET, HOME, SIM, end_episodes, float64, make, refused

from mjlab_dist.config import ActionConfig, CaptureMode
from mjlab_dist.env import Env

NUM_ENVS = 16


def ctrl_of(env: Env, actuator: str) -> torch.Tensor:
    """Return the inputs of an actuator, (num_envs,)."""
    return env.sim.ctrl[:, env.sim.model.actuator(actuator).id]


@pytest.mark.parametrize(
    ("actuators", "names"),
    [
        (("tail", ".R_leg", "FL_leg"), ["tail", "FR_leg", "RR_leg", "FL_leg"]),
        (("RR_leg", "FL_leg"), ["RR_leg", "FL_leg"]),
        (("(tail|lift)",), ["tail", "lift"]),
    ],
)
def test_patterns_select_actuators_in_model_order_and_names_in_the_given_order(
    actuators: tuple[str, ...], names: list[str]
) -> None:
    env = make(2, actions={"some": ActionConfig(actuators=actuators)})
    assert env.action_names == names
    assert env.num_actions == len(names)
    actions = torch.arange(1.0, 1.0 + len(names)).expand(2, -1) * 0.01
    env.step(actions)
    for column, name in enumerate(names):
        assert ctrl_of(env, name).tolist() == actions[:, column].tolist()
    rest = [name for name in (*(f"{foot}_leg" for foot in FEET), "tail", "lift") if name not in names]
    assert all(not ctrl_of(env, name).any() for name in rest)


def test_actions_of_several_terms_are_concatenated() -> None:
    env = make(
        2,
        actions={
            "rear": ActionConfig(actuators=("R._leg",), scale=0.5, offset=0.1),
            "tail": ActionConfig(actuators=("tail",), scale=-2.0),
            "front": ActionConfig(actuators=("F._leg",), scale=0.25, offset="home"),
        },
    )
    assert env.action_names == ["RL_leg", "RR_leg", "tail", "FL_leg", "FR_leg"]
    actions = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, 0.0, 0.5, 1.0, -2.0]])
    env.step(actions)
    expected = np.zeros((2, 6))
    expected[:, 2:4] = 0.1 + 0.5 * actions[:, :2]
    expected[:, 4] = -2.0 * actions[:, 2]
    expected[:, :2] = 0.2 + 0.25 * actions[:, 3:]
    np.testing.assert_allclose(env.sim.ctrl, expected, rtol=0, atol=1e-6)


def test_actions_are_clipped_before_scaling_and_terms_read_raw_actions() -> None:
    clipped = {
        "front": ActionConfig(actuators=("F._leg",), clip=(-1.0, 0.5), scale=0.2, offset=0.3),
        "rear": ActionConfig(actuators=("R._leg",), scale=0.2),
    }
    env = make(2, actions=clipped)
    actions = torch.tensor([[3.0, -3.0, 3.0, -3.0], [0.25, -0.25, 0.25, -0.25]])
    env.step(actions)
    expected = [[0.3 + 0.1, 0.3 - 0.2, 0.6, -0.6], [0.35, 0.25, 0.05, -0.05]]
    np.testing.assert_allclose(env.sim.ctrl[:, :4], expected, rtol=0, atol=1e-6)
    assert torch.equal(env.actions, actions)
    assert env.actions.data_ptr() != actions.data_ptr()


def test_a_nan_action_is_not_clipped_and_does_not_spread_to_other_envs() -> None:
    env = make(2, actions={"legs": ActionConfig(actuators=(".*_leg",), clip=(-1.0, 1.0))})
    actions = torch.zeros(2, 4)
    actions[1, 2] = torch.nan
    env._actions.apply(actions)
    assert env.sim.ctrl.isnan().nonzero().tolist() == [[1, env.sim.model.actuator("RL_leg").id]]


def test_previous_actions_are_kept_within_an_episode() -> None:
    env = make(3)
    rows = [torch.full((3, 4), float(i)) for i in range(1, 5)]
    env.step(rows[0])
    assert not env.previous_actions.any()
    env.step(rows[1])
    assert torch.equal(env.previous_actions, rows[0])
    ends = torch.tensor([False, True, False])
    end_episodes(env, ends)
    env.step(rows[2])
    assert torch.equal(env.previous_actions, torch.where(ends.unsqueeze(1), 0.0, rows[1]))
    assert torch.equal(env.actions, torch.where(ends.unsqueeze(1), 0.0, rows[2]))
    env.step(rows[3])
    assert torch.equal(env.previous_actions, torch.where(ends.unsqueeze(1), 0.0, rows[2]))


# Latency


class DelayLine:
    """Records the actions of one env's episode, and finds their delay from an actuator's inputs."""

    def __init__(self, latency: tuple[int, int]) -> None:
        self.latency = latency
        self.sent: list[float] = []
        self.lag: int | None = None
        self.lags: list[int] = []

    def restart(self) -> None:
        self.sent.clear()
        self.lag = None

    def check(self, action: float, seen: float) -> None:
        """Record an action, and check that the actuator input after it is an action with a possible delay.

        All actions must differ, because the delay is found by comparing values.
        """
        self.sent.append(action)
        known = range(self.latency[0], self.latency[1] + 1) if self.lag is None else [self.lag]
        fits = [lag for lag in known if self._at(lag) == pytest.approx(seen, abs=1e-6)]
        assert fits, f"{seen} is none of {[self._at(lag) for lag in known]}"
        if self.lag is None and len(fits) == 1:
            (self.lag,) = fits
            self.lags.append(self.lag)

    def _at(self, lag: int) -> float:
        return self.sent[-1 - lag] if lag < len(self.sent) else 0.0


@pytest.mark.parametrize("latency", [(2, 2), (0, 3), (1, 2)])
def test_each_env_draws_a_latency_for_each_episode(latency: tuple[int, int]) -> None:
    legs = ActionConfig(actuators=("F._leg",), scale=0.5, offset=0.3, latency=latency, clip=(-0.8, 0.8))
    env = make(NUM_ENVS, actions={"legs": legs, "tail": ActionConfig(actuators=("tail",))})
    rng = np.random.default_rng(0)
    lines = [[DelayLine(latency) for _ in range(2)] for _ in range(NUM_ENVS)]
    for now in range(40):
        ends = rng.random(NUM_ENVS) < (0.15 if now % 5 == 4 else 0.0)
        end_episodes(env, torch.from_numpy(ends))
        actions = torch.from_numpy(rng.uniform(-1, 1, size=(NUM_ENVS, 3))).float()
        sent = float64(actions)
        env.step(actions)
        arrived = (float64(env.sim.ctrl[:, :2]) - 0.3) / 0.5
        # Skip envs that were reset in this step: their actuator inputs come from the keyframe, not from an action.
        for i in np.flatnonzero(~ends):
            for line, action, seen in zip(lines[i], sent[i].clip(-0.8, 0.8), arrived[i], strict=False):
                line.check(float(action), float(seen))
            assert float(ctrl_of(env, "tail")[i]) == pytest.approx(sent[i, 2], abs=1e-6)
        for i in np.flatnonzero(ends):
            for line in lines[i]:
                line.restart()
    assert all(left.lag == right.lag and left.lags == right.lags for left, right in lines)  # the legs share a latency
    found = {lag for line, _ in lines for lag in line.lags}
    assert found == set(range(latency[0], latency[1] + 1))
    assert latency[0] == latency[1] or any(len(set(line.lags)) > 1 for line, _ in lines)  # each episode draws a latency


@pytest.mark.slow
def test_with_jitter_actions_arrive_in_order_and_every_latency_is_drawn() -> None:
    """Each action is proportional to the number of its step, so an actuator input shows when its action was sent."""
    num, jitter = 2000, 0.3
    legs = ActionConfig(actuators=("F._leg",), latency=(1, 4), latency_jitter=jitter)
    rear = ActionConfig(actuators=("R._leg",), latency=(0, 2))
    env = make(num, episode_length_s=10.0, actions={"legs": legs, "rear": rear})
    names = [env.sim.model.actuator(i).name for i in range(env.sim.model.nu)]
    columns = [[names.index(name) for name in group] for group in (("FL_leg", "FR_leg"), ("RL_leg", "RR_leg"))]
    arrived, fixed = np.zeros(num), env.state()["actions.lag"][:, 2].clone()
    changes = []
    for now in range(1, 25):
        state = env.state()
        lag, before = state["actions.lag"].clone(), state["actions.next_lag"].clone()
        env.step(torch.full((num, 4), 1e-3 * now))
        front, back = (float64(env.sim.ctrl[:, ids]) * 1e3 for ids in columns)
        assert np.array_equal(front[:, 0], front[:, 1])
        np.testing.assert_allclose(front[:, 0], np.maximum(now - float64(lag[:, 0]), 0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(back[:, 0], np.maximum(now - float64(fixed), 0), rtol=0, atol=1e-4)
        assert (front[:, 0] >= arrived - 1e-4).all()
        arrived = front[:, 0]
        state = env.state()
        assert torch.equal(state["actions.lag"][:, :2], torch.minimum(lag + 1, state["actions.next_lag"])[:, :2])
        changes.append(float((state["actions.next_lag"][:, 0] != before[:, 0]).double().mean()))
    assert np.mean(changes) == pytest.approx(jitter * 3 / 4, abs=0.01)
    shares = torch.bincount(env.state()["actions.next_lag"][:, 0], minlength=5) / num
    assert shares.tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 0.25], abs=0.05)


def test_the_offset_applies_until_the_first_action_arrives() -> None:
    env = make(4, actions={"legs": ActionConfig(actuators=(".*_leg",), offset="home", latency=(2, 2))})
    for arrives in (False, False, True, True):
        env.step(torch.ones(4, 4))
        np.testing.assert_allclose(env.sim.ctrl[:, :4], (HOME[:4] + arrives).expand(4, -1), rtol=0, atol=1e-6)


# User-defined classes of actions


@pytest.mark.parametrize("kind", ["Counter", "CounterOutside"])
@pytest.mark.parametrize("capture", ["physics", "off"])
def test_a_user_defined_class_has_its_own_width_and_programs_before_each_physics_step(
    kind: str, capture: CaptureMode
) -> None:
    func = f"action_terms_for_test:{kind}"
    block = ActionConfig(func=func, actuators=(".*_leg",), scale={"first": 2.0, "second": -1.0}, clip=(-1.0, 1.0))
    sim = dataclasses.replace(SIM, decimation=3, capture=capture)
    env = make(3, actions={"legs": block, "tail": ActionConfig(actuators=("tail",))}, sim=sim)
    assert env.action_names == ["legs.first", "legs.second", "tail"]
    assert env.uncapturable_terms == (["actions.legs"] if kind == "CounterOutside" else [])
    for now in range(1, 4):
        env.step(torch.tensor([[0.5, 0.25, 0.1], [1.0, 3.0, 0.2], [-2.0, 0.0, 0.3]]))
        np.testing.assert_allclose(env.sim.ctrl[:, :4], [[0.75] * 4, [1.0] * 4, [-2.0] * 4], rtol=1e-6)
        np.testing.assert_allclose(ctrl_of(env, "tail"), [0.1, 0.2, 0.3], rtol=1e-6)
        assert env.state()["actions.legs.substeps"].flatten().tolist() == [3.0 * now] * 3
    outcome = env.episode_outcomes()["action/legs/substeps"]
    assert outcome.tolist() == [6.0] * 3  # the mean of 3, 6 and 9
    end_episodes(env, torch.tensor([False, True, False]))
    env.step(torch.zeros(3, 3))
    assert env.state()["actions.legs.substeps"].flatten().tolist() == [12.0, 0.0, 12.0]


# Wrong configs are refused


def test_a_pattern_that_matches_no_actuator_is_refused_with_the_available_names() -> None:
    message = refused(actions={"legs": ActionConfig(actuators=(".*_leg", "_leg"))})
    assert message.startswith("--env.actions.legs.actuators _leg: ")
    assert "FL_leg, FR_leg, RL_leg, RR_leg, tail, lift" in message


def test_an_actuator_that_two_blocks_drive_is_refused() -> None:
    blocks = {"first": ActionConfig(actuators=(".*_leg",)), "second": ActionConfig(actuators=("FL_.*",))}
    message = refused(actions=blocks)
    assert message.startswith("--env.actions.second.actuators FL_.*: ")
    assert " is already driven by first; " in message
