"""Observations are computed from terms: noise, clip, scale, delay and history. NumPy computes expected values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import legged
import numpy as np
import pytest
import torch

from mjlab_dist.config import ObservationConfig
from mjlab_dist.env.observation_group import ObservationGroup
from mjlab_dist.errors import UserError

NUM_ENVS = 64
EVERYWHERE = torch.ones(NUM_ENVS, dtype=torch.bool)


class Source:
    """A term whose value encodes env, column and time: 1000 * env + 100 * column + time."""

    def __init__(self, width: int = 1, num_envs: int = NUM_ENVS) -> None:
        self.time = 0
        self._base = 1000.0 * torch.arange(num_envs).unsqueeze(1) + 100.0 * torch.arange(width)

    def __call__(self) -> torch.Tensor:
        return self._base + self.time

    def at(self, time: np.ndarray) -> np.ndarray:
        """Return the values of the term, with shape (num_envs, width). `time` has one time per env, (num_envs,)."""
        return self._base.numpy() + time[:, None]


def group(terms: dict[str, tuple[Callable[[], torch.Tensor], ObservationConfig]], num_envs: int = NUM_ENVS) -> Any:
    return ObservationGroup(
        "actor",
        {name: config for name, (_, config) in terms.items()},
        [term for term, _ in terms.values()],
        num_envs,
        "cpu",
        changing={},
    )


def config(**fields: Any) -> ObservationConfig:
    return ObservationConfig(func="", **fields)


def constant(*values: float, num_envs: int = NUM_ENVS) -> Callable[[], torch.Tensor]:
    row = torch.tensor(values).expand(num_envs, -1)
    return lambda: row


# Clipping, scaling and noise


def test_terms_are_concatenated_after_clipping_and_then_scaling() -> None:
    observed = group(
        {
            "plain": (constant(1.0, -2.0), config()),
            "scaled": (constant(3.0), config(scale=10.0)),
            "clipped": (constant(-7.0, 0.5, 7.0), config(clip=(-1.0, 2.0))),
            "both": (constant(7.0, -7.0), config(clip=(-1.0, 2.0), scale=-0.5)),
            "half": (constant(7.0, -7.0), config(clip=(0.0, float("inf")))),
        }
    )
    starts = {"plain": 0, "scaled": 2, "clipped": 3, "both": 6, "half": 8}
    assert {name: columns.start for name, columns in observed.columns.items()} == starts
    expected = [1.0, -2.0, 30.0, -1.0, 0.5, 2.0, -1.0, 0.5, 7.0, 0.0]
    assert observed.observe().tolist() == [expected] * NUM_ENVS


def test_nan_stays_in_its_own_column_and_env() -> None:
    row = torch.ones(NUM_ENVS, 2)
    row[3, 1] = float("nan")
    observed = group(
        {"a": (lambda: row, config(clip=(-1.0, 1.0), scale=2.0, uniform_noise=0.1)), "b": (constant(1.0), config())}
    ).observe()
    assert observed.isnan().nonzero().tolist() == [[3, 1]]


NOISY = 4000
"""Number of envs in tests of distributions."""


def test_noise_has_the_configured_distribution_and_is_independent_per_value() -> None:
    torch.manual_seed(0)
    term = constant(1.0, 2.0, num_envs=NOISY)
    observed = group(
        {
            "none": (term, config()),
            "uniform": (term, config(uniform_noise=0.3)),
            "gaussian": (term, config(gaussian_noise=0.2)),
            "scaled": (term, config(uniform_noise=0.3, scale=100.0)),
        },
        NOISY,
    )
    first, second = (observed.observe().double().numpy() for _ in range(2))
    assert np.array_equal(first[:, :2], np.tile([1.0, 2.0], (NOISY, 1)))
    for column, mean in ((2, 1.0), (3, 2.0)):
        legged.assert_uniform(first[:, column], mean - 0.3, mean + 0.3)
    for column, mean in ((4, 1.0), (5, 2.0)):
        drawn = (first[:, column] - mean) / 0.2
        assert abs(drawn.mean()) < 4 / np.sqrt(NOISY)
        assert drawn.std() == pytest.approx(1, abs=0.05)
        assert (np.abs(drawn) < 1).mean() == pytest.approx(0.683, abs=0.03)
    legged.assert_uniform(first[:, 6], 70.0, 130.0)
    noise = np.concatenate([first[:, 2:], second[:, 2:]], axis=1)
    legged.assert_independent(*noise.T)


def test_both_kinds_of_noise_add_up() -> None:
    torch.manual_seed(1)
    term = constant(0.0, num_envs=NOISY)
    observed = group({"both": (term, config(uniform_noise=0.3, gaussian_noise=0.4))}, NOISY).observe()
    assert float(observed.std()) == pytest.approx(np.sqrt(0.3**2 / 3 + 0.4**2), rel=0.05)


def test_noise_per_column_equals_the_noise_of_one_number_times_a_factor() -> None:
    term = constant(1.0, 2.0, num_envs=NOISY)

    def observe(**noise: float | tuple[float, ...]) -> torch.Tensor:
        torch.manual_seed(5)
        return group({"plain": (term, config()), "noisy": (term, config(**noise))}, NOISY).observe()

    clean = torch.tensor([1.0, 2.0, 1.0, 2.0])
    for kind in ("uniform_noise", "gaussian_noise"):
        one, per_column = observe(**{kind: 1.0}), observe(**{kind: (0.5, 0.0)})
        expected = clean + (one - clean) * torch.tensor([0.0, 0.0, 0.5, 0.0])
        torch.testing.assert_close(per_column, expected, rtol=0.0, atol=1e-6)
        assert per_column[:, 2].unique().numel() > NOISY / 2
        assert torch.equal(observe(**{kind: (0.25, 0.25)}), observe(**{kind: 0.25}))


def test_noise_for_another_number_of_columns_is_refused() -> None:
    with pytest.raises(UserError) as refusal:
        group({"pair": (constant(1.0, 2.0), config(gaussian_noise=(0.1, 0.2, 0.3)))})
    assert str(refusal.value).startswith("--env.observations.actor.pair.gaussian-noise 0.1 0.2 0.3: ")


def test_values_are_clipped_after_noise_and_before_scaling() -> None:
    torch.manual_seed(2)
    term = constant(1.0, num_envs=NOISY)
    observed = group({"x": (term, config(uniform_noise=0.5, clip=(0.75, 1.25), scale=10.0))}, NOISY).observe()
    values = observed.double().numpy()[:, 0]
    assert (values.min(), values.max()) == (7.5, 12.5)
    # A quarter of the noisy values exceed the upper bound, and a quarter fall below the lower one.
    assert (values == 7.5).mean() == pytest.approx(0.25, abs=0.03)
    assert (values == 12.5).mean() == pytest.approx(0.25, abs=0.03)


# Delay and history


class Bookkeeping:
    """Records the start of each env's episode, and the measured delay of a term in this episode."""

    def __init__(self) -> None:
        self.start = np.zeros(NUM_ENVS, dtype=int)
        self.lag = np.full(NUM_ENVS, -1)
        self.seen: list[np.ndarray] = []

    def episode(self, mask: np.ndarray, now: int) -> None:
        self.start[mask] = now
        self.seen.append(self.lag[mask])
        self.lag[mask] = -1


@pytest.mark.parametrize(
    ("delay", "history", "width"),
    [((0, 0), 3, 1), ((2, 2), 1, 2), ((1, 3), 1, 1), ((0, 2), 4, 3)],
)
def test_delayed_and_past_values_come_from_the_current_episode(
    delay: tuple[int, int], history: int, width: int
) -> None:
    torch.manual_seed(4)
    rng = np.random.default_rng(5)
    source = Source(width)
    observed = group(
        {
            "before": (constant(-1.0, -2.0), config()),
            "term": (source, config(delay=delay, history=history, scale=2.0)),
            "after": (constant(-3.0), config()),
        }
    )
    assert observed.columns["term"] == slice(2, 2 + history * width)
    book = Bookkeeping()
    observed.reset(EVERYWHERE)
    for now in range(60):
        source.time = now
        if now and now % 4 == 0:
            mask = rng.random(NUM_ENVS) < 0.3
            observed.reset(torch.from_numpy(mask))
            book.episode(mask, now)
        row = observed.observe().double().numpy()
        assert (row[:, :2] == [-1.0, -2.0]).all()
        assert (row[:, 2 + history * width :] == -3.0).all()
        values = row[:, 2 : 2 + history * width].reshape(NUM_ENVS, history, width)

        # In episodes at least as old as the maximum delay, the newest value shows the delay, which must not change.
        newest = values[:, -1, 0] / 2.0 - source.at(np.zeros(NUM_ENVS))[:, 0]
        old = now - book.start >= delay[1]
        lag = (now - newest).round().astype(int)
        known = book.lag >= 0
        assert (lag[old & known] == book.lag[old & known]).all()
        book.lag = np.where(old & ~known, lag, book.lag)
        told = book.lag >= 0
        assert ((book.lag >= delay[0]) & (book.lag <= delay[1]))[told].all()
        for age in range(history):  # the oldest value first, and no values from before the episode
            time = np.maximum(now - book.lag - (history - 1 - age), book.start)
            assert np.array_equal(values[told, age], 2.0 * source.at(time)[told])
        # In younger episodes, the newest value is not older than the episode's first value.
        assert (newest[~told] <= now).all()
        assert (newest[~told] >= book.start[~told]).all()
    told = np.concatenate([*book.seen, book.lag])
    assert set(told[told >= 0].tolist()) == set(range(delay[0], delay[1] + 1))


def test_an_episode_starts_with_copies_of_its_first_value() -> None:
    source = Source()
    observed = group({"x": (source, config(delay=(2, 2), history=3))})
    observed.reset(EVERYWHERE)
    for now in range(5):
        source.time = now
        observed.observe()
    source.time = 100
    observed.reset(torch.arange(NUM_ENVS) == 7)
    first = observed.observe() - 1000.0 * torch.arange(NUM_ENVS).unsqueeze(1)
    assert first[7].tolist() == [100.0, 100.0, 100.0]
    assert first[8].tolist() == [1.0, 2.0, 3.0]
    source.time = 101
    second = observed.observe() - 1000.0 * torch.arange(NUM_ENVS).unsqueeze(1)
    assert second[7].tolist() == [100.0, 100.0, 100.0]
    assert second[8].tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(("delay", "jitter", "history"), [((1, 4), 0.3, 1), ((0, 2), 0.1, 3)])
def test_with_jitter_values_arrive_in_order_and_every_delay_is_drawn(
    delay: tuple[int, int], jitter: float, history: int
) -> None:
    torch.manual_seed(8)
    source = Source(1, NOISY)
    observed = group({"x": (source, config(delay=delay, delay_jitter=jitter, history=history))}, NOISY)
    everywhere = torch.ones(NOISY, dtype=torch.bool)
    observed.reset(everywhere)
    state = dict(observed.state())
    arrived = np.zeros((NOISY, history), dtype=int)
    changes = []
    for now in range(30):
        source.time = now
        if now == 15:
            observed.reset(everywhere)
            arrived[:] = now
            assert torch.equal(state["x.lag"], state["x.next_lag"])
        before = state["x.lag"].clone(), state["x.next_lag"].clone()
        # Columns are values of one term at different times. Compute the time at which each value was measured
        values = observed.observe().double().numpy() - source.at(np.zeros(NOISY))
        times = values.round().astype(int)
        start = 15 * (now >= 15)
        lag = state["x.lag"].numpy()
        assert np.array_equal(times[:, -1], np.maximum(now - lag, start))
        assert (times >= arrived).all()
        assert (np.diff(times, axis=1) <= 1).all()
        arrived = times
        assert torch.equal(state["x.lag"], torch.minimum(before[0] + 1, state["x.next_lag"]))
        changes.append(float((state["x.next_lag"] != before[1]).double().mean()))
    # A new delay equals the old one with probability 1 / num.
    num = delay[1] - delay[0] + 1
    assert np.mean(changes) == pytest.approx(jitter * (1 - 1 / num), abs=0.01)
    shares = torch.bincount(state["x.next_lag"], minlength=delay[1] + 1) / NOISY
    assert shares.tolist() == pytest.approx([0.0] * delay[0] + [1 / num] * num, abs=0.04)


def test_a_past_value_keeps_its_original_noise() -> None:
    torch.manual_seed(7)
    observed = group({"x": (constant(0.0), config(uniform_noise=1.0, scale=3.0, delay=(1, 1), history=2))})
    observed.reset(EVERYWHERE)
    rows = [observed.observe() for _ in range(6)]
    assert 2.5 < float(rows[-1].abs().max()) <= 3.0
    for one, next_ in itertools.pairwise(rows[2:]):
        assert torch.equal(next_[:, 0], one[:, 1])
        assert not torch.equal(next_[:, 1], one[:, 1])


@pytest.mark.parametrize("shape", [(NUM_ENVS,), (1, NUM_ENVS)])
def test_a_term_that_does_not_return_a_row_per_env_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as caught:
        group({"fine": (constant(1.0), config()), "odd": (lambda: torch.zeros(shape), config())})
    assert str(caught.value).startswith("env.observations.actor.odd: returned ")
    assert f" {shape} of float32; it must return ({NUM_ENVS}, width) " in str(caught.value)


# In an env


JOINTS = "mjlab_dist.mdp.observations:JointPositions"


def test_an_env_observes_once_per_step_and_clears_history_at_the_start_of_an_episode() -> None:
    env = legged.make(
        4,
        observations={
            "actor": {
                "joints": ObservationConfig(func=JOINTS, params={"joints": ("F._hip",)}, history=3),
                "height": ObservationConfig(func="mjlab_dist.mdp.observations:base_height", delay=(1, 1)),
            },
            "critic": {"joints": ObservationConfig(func=JOINTS, uniform_noise=0.1)},
        },
    )
    assert env.observation_columns() == {
        "actor": {"joints": slice(0, 6), "height": slice(6, 7)},
        "critic": {"joints": slice(0, 5)},
    }
    expected: list[list[torch.Tensor]] = []
    heights: list[torch.Tensor] = []

    def note() -> None:
        expected.append([position.clone() for position in env.sim.qpos[:, 7:9] - 0.2])
        heights.append(env.sim.qpos[:, 2].clone())

    note()
    starts = [0] * 4
    for now in range(1, 12):
        if now == 6:
            legged.end_episodes(env, torch.tensor([False, True, False, False]))
            starts[1] = now
        if now == 9:
            env.reset()
            starts = [now] * 4
        else:
            env.step(torch.full((4, 4), 0.1 * now))
        note()
        observed, again = env.get_observations(), env.get_observations()
        assert torch.equal(observed["critic"], again["critic"])
        for i in range(4):
            past = torch.cat([expected[max(now - back, starts[i])][i] for back in (2, 1, 0)])
            assert torch.allclose(observed["actor"][i, :6], past, atol=1e-6)
            assert observed["actor"][i, 6] == heights[max(now - 1, starts[i])][i]


JITTER: dict[str, Any] = {
    "episode_length_s": 0.1,
    "observations": {
        "actor": {
            "late": ObservationConfig(func=JOINTS, delay=(0, 3), delay_jitter=0.3, history=2),
            "noisy": ObservationConfig(func=JOINTS, gaussian_noise=(0.1, 0.2, 0.0, 0.4, 0.5)),
        }
    },
}


@pytest.mark.usefixtures("engine_of_gpus")
def test_a_step_with_jitter_and_noise_per_column_is_a_replay() -> None:
    legged.assert_replays(legged.make(4, **JITTER))


def test_delays_with_jitter_are_resumed() -> None:
    state = legged.assert_resumes(lambda seed: legged.make(NUM_ENVS, seed, **JITTER), 7).state()
    assert (state["observations.actor.late.next_lag"] != state["observations.actor.late.lag"]).any()
