"""The viewer follows the newest checkpoint of a run: it loads new checkpoints, and skips damaged ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mjlab_dist
from mjlab_dist.config import TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.learn import networks
from mjlab_dist.messages import Event, listening
from mjlab_dist.policies.view import gate
from mjlab_dist.policies.view.runs import Run
from mjlab_dist.policies.view.watch import Follower
from mjlab_dist.runs.run_dir import checkpoint_path, read_config_file

if TYPE_CHECKING:
    from mjlab_dist.learn.networks import MLPModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory with checkpoints of three iterations."""
    fields: dict[str, Any] = {"checkpoint.interval": 1}
    result = mjlab_dist.train(
        "cartpole-balance", num_envs=4, gpu_ids=None, max_iterations=3, quiet=True,
        log_root=str(tmp_path_factory.mktemp("logs")), **fields,
    )  # fmt: skip
    return result.run_dir


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Copy of the run without its checkpoints."""
    run_dir = tmp_path / "copy"
    (run_dir / "checkpoints").mkdir(parents=True)
    shutil.copy(trained / "config.yaml", run_dir)
    return run_dir


@pytest.fixture
def follower(copy: Path) -> Iterator[Follower]:
    follower = Follower(Run(copy), read_config_file(copy), 1)
    yield follower
    follower.close()


def _update(follower: Follower) -> Path | None:
    """Update a follower until it has nothing left to do. Return the checkpoint that it shows."""
    follower.run.look()
    follower.update()
    if follower.player is not None:
        follower.player.step()
        follower.update()
    return follower.shown


def _save(trained: Path, run_dir: Path, *iterations: int) -> None:
    """Copy checkpoints to the copy of the run."""
    for iteration in iterations:
        shutil.copy(checkpoint_path(trained, iteration), checkpoint_path(run_dir, iteration))


def test_each_new_checkpoint_is_loaded(follower: Follower, trained: Path, copy: Path) -> None:
    assert _update(follower) is None
    assert follower.player is None
    for iteration in (1, 2, 3):
        _save(trained, copy, iteration)
        assert _update(follower) == checkpoint_path(copy, iteration)
    assert follower.unreadable is None


def test_a_damaged_checkpoint_is_skipped_until_it_changes(follower: Follower, trained: Path, copy: Path) -> None:
    # As long as the first checkpoint cannot be read, there is no player
    first = checkpoint_path(copy, 1)
    first.write_bytes(checkpoint_path(trained, 1).read_bytes()[:1000])
    assert _update(follower) is None
    assert (follower.player, follower.unreadable) == (None, first)
    _save(trained, copy, 1)
    assert _update(follower) == first
    # If a later checkpoint is damaged, the previous policy stays
    second = checkpoint_path(copy, 2)
    second.write_bytes(b"damaged")
    for _ in range(2):
        assert _update(follower) == first
        assert follower.unreadable == second
    _save(trained, copy, 2)
    assert _update(follower) == second


def test_an_unexpected_error_of_a_checkpoint_is_reported_and_the_checkpoint_skipped(
    follower: Follower, trained: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_reported", set())
    first, second = (checkpoint_path(copy, iteration) for iteration in (1, 2))
    _save(trained, copy, 1)
    load, events = networks.load_policy, list[Event]()

    def load_or_fail(env: Env, config: TrainConfig, path: Path) -> MLPModel:
        if path in bad:
            raise RecursionError("nested too deeply")
        return load(env, config, path)

    monkeypatch.setattr(networks, "load_policy", load_or_fail)
    with listening(events.append):
        bad = [first]
        assert _update(follower) is None
        assert follower.unreadable == first
        bad = [second]
        _save(trained, copy, 1)
        assert _update(follower) == first
        _save(trained, copy, 2)
        assert _update(follower) == first
        assert follower.unreadable == second
    assert len(events) == 1


def test_a_checkpoint_that_disappears_while_it_is_read(follower: Follower, trained: Path, copy: Path) -> None:
    _save(trained, copy, 1, 2)
    assert _update(follower) == checkpoint_path(copy, 2)
    _save(trained, copy, 3)
    follower.run.look()
    checkpoint_path(copy, 3).unlink()
    follower.update()
    assert follower.player is not None
    follower.player.step()
    follower.update()
    assert _update(follower) == checkpoint_path(copy, 2)


def test_a_chosen_checkpoint_stays(follower: Follower, trained: Path, copy: Path) -> None:
    _save(trained, copy, 1, 2)
    _update(follower)
    follower.chosen = checkpoint_path(copy, 1)
    _save(trained, copy, 3)
    assert _update(follower) == checkpoint_path(copy, 1)
    # If the run removes the checkpoint, the loaded policy stays
    checkpoint_path(copy, 1).unlink()
    assert _update(follower) == checkpoint_path(copy, 1)
    follower.chosen = None
    assert _update(follower) == checkpoint_path(copy, 3)


def test_the_simulation_pauses_while_no_page_is_open(
    follower: Follower, trained: Path, copy: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    _save(trained, copy, 1)
    _update(follower)
    player = follower.player
    assert player is not None
    player.watch(is_watched=False)
    player.start()
    player.reset().result()  # now all requests are done
    at = player.frame.step
    _save(trained, copy, 2)
    follower.run.look()
    follower.update()
    wait_for(lambda: (follower.update(), follower.shown == checkpoint_path(copy, 2))[1])
    assert player.frame.step == at
    player.watch(is_watched=True)
    wait_for(lambda: player.frame.step > at)
