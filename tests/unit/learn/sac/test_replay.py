"""The replay: its samples equal those of a loop over steps, and do not depend on how envs are split over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mjlab_dist.learn.sac.replay import NEXT, Batch, Replay, block_size

WIDTHS = {"actor": 2, "critic": 3}
GAMMA = 0.9
KEY = 7


def steps(count: int, num_envs: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random steps. The first number of each observation identifies step and env."""
    g = torch.Generator().manual_seed(seed)
    rows: dict[str, torch.Tensor] = {
        name: torch.randn(count, num_envs, width, generator=g)
        for group, width in WIDTHS.items()
        for name in (group, NEXT + group)
    }
    rows["actor"][..., 0] = torch.arange(count * num_envs).view(count, num_envs)
    rows["actions"] = torch.randn(count, num_envs, 2, generator=g)
    rows["rewards"] = torch.randn(count, num_envs, generator=g)
    rows["dones"] = torch.rand(count, num_envs, generator=g) < 0.3
    rows["terminated"] = rows["dones"] & (torch.rand(count, num_envs, generator=g) < 0.5)
    return rows


def part(rows: dict[str, torch.Tensor], where: Any) -> dict[str, torch.Tensor]:
    return {name: row[where] for name, row in rows.items()}


def make(num_rows: int, num_envs: int) -> Replay:
    return Replay(num_rows, num_envs, WIDTHS, 2, "cpu")


def draw(replay: Replay, positions: torch.Tensor, block: int, n: int = 3) -> Batch:
    return replay.sample(KEY, positions, block=block, num_steps=n, gamma=GAMMA)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("added", [(6,), (4, 5, 4)])
def test_samples_equal_those_of_a_loop(n: int, added: tuple[int, ...]) -> None:
    """The ring has 10 rows: with 13 steps, it has wrapped around."""
    rows, replay = steps(sum(added), 4), make(10, 4)
    for first, count in zip((0, 4, 9), added, strict=False):
        replay.add(part(rows, slice(first, first + count)))
    batch = draw(replay, torch.arange(400).view(2, 200), 4, n)
    oldest, seen = max(0, sum(added) - 10), set()
    for update in range(2):
        for i in range(200):
            step, env = divmod(int(batch.observations["actor"][update, i, 0]), 4)
            seen.add((step, env))
            total, discount, last = 0.0, 1.0, step
            for last in range(step, step + n):
                total += discount * rows["rewards"][last, env].item()
                discount *= GAMMA
                if rows["dones"][last, env]:
                    break
            assert batch.rewards[update, i].item() == pytest.approx(total, abs=1e-6)
            goes_on = not rows["terminated"][last, env]
            assert batch.discounts[update, i].item() == pytest.approx(discount * goes_on, abs=1e-6)
            assert torch.equal(batch.actions[update, i], rows["actions"][step, env])
            for group in WIDTHS:
                assert torch.equal(batch.observations[group][update, i], rows[group][step, env])
                assert torch.equal(batch.next_observations[group][update, i], rows[NEXT + group][last, env])
    # Every step whose n rewards are known is drawn
    assert seen == {(step, env) for step in range(oldest, sum(added) - n + 1) for env in range(4)}


@pytest.mark.parametrize("world_size", [2, 3, 6])
@pytest.mark.parametrize("num_samples", [6, 12, 30])
def test_ranks_draw_what_one_rank_draws(world_size: int, num_samples: int) -> None:
    num_envs, rows = 12, steps(8, 12)
    block = block_size(num_envs, num_samples)
    positions = torch.arange(5 * num_samples).view(5, num_samples)
    whole = make(10, num_envs)
    whole.add(rows)
    expected = draw(whole, positions, block)
    drawn = []
    for rank in range(world_size):
        own = slice(rank * num_envs // world_size, (rank + 1) * num_envs // world_size)
        replay = make(10, num_envs // world_size)
        replay.add(part(rows, (slice(None), own)))
        samples = slice(rank * num_samples // world_size, (rank + 1) * num_samples // world_size)
        drawn.append(draw(replay, positions[:, samples], block))
    for field in ("actions", "rewards", "discounts"):
        assert torch.equal(torch.cat([getattr(one, field) for one in drawn], dim=1), getattr(expected, field))
    for group in WIDTHS:
        found = torch.cat([one.next_observations[group] for one in drawn], dim=1)
        assert torch.equal(found, expected.next_observations[group])


def test_a_loaded_replay_gives_the_same_samples() -> None:
    rows, positions = steps(13, 4), torch.arange(40).view(1, 40)
    replay, other, smaller = make(10, 4), make(10, 4), make(5, 4)
    assert replay.state() == {}
    for first in range(0, 13, 4):
        replay.add(part(rows, slice(first, first + 4)))
    assert other.load_state(replay.state())
    for mine, theirs in zip(draw(replay, positions, 4).split(), draw(other, positions, 4).split(), strict=True):
        torch.testing.assert_close(mine._asdict(), theirs._asdict(), rtol=0, atol=0)
    assert smaller.load_state(replay.state())
    assert torch.equal(smaller.state()["actions"], rows["actions"][-5:])
    assert not make(10, 5).load_state(replay.state())
    assert not other.load_state({})
    assert other.state() == {}


def test_rewards_of_new_episodes_are_not_added_to_those_of_old_ones() -> None:
    rows, replay = part(steps(4, 1), slice(None)), make(10, 1)
    rows["dones"][:], rows["terminated"][:] = False, False
    replay.add(rows)
    replay.end_episodes()
    replay.add(rows)
    batch = draw(replay, torch.arange(100).view(1, 100), 1, n=2)
    before_the_end = batch.observations["actor"][..., 0] == 3
    assert before_the_end.any()
    assert torch.equal(batch.rewards[before_the_end], rows["rewards"][3].expand(int(before_the_end.sum())))
    assert torch.equal(batch.discounts[before_the_end], torch.full((int(before_the_end.sum()),), GAMMA))
