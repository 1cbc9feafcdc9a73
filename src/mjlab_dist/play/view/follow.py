"""A player that loads each new checkpoint of a run that another process trains."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.play.policy_episodes import load_env
from mjlab_dist.play.view.guard import report
from mjlab_dist.play.view.runs import Run, stamp_of

if TYPE_CHECKING:
    from mjlab_dist.env import Env
    from mjlab_dist.play.view.player import Player

# Seed of the start states
SEED = 1


class Follower:
    """Creates the player of a run when there is a checkpoint, and loads later checkpoints into it.

    A checkpoint that cannot be read is skipped until its file changes: it may have been removed, or may not have been
    copied completely yet.
    """

    def __init__(self, run: Run, train_config: TrainConfig, num_envs: int) -> None:
        """Start without a player."""
        self.run, self.player = run, None
        self.player: Player | None
        self.shown: Path | None = None
        self.chosen: Path | None = None  # the newest
        self._train_config, self._num_envs = train_config, num_envs
        self._env: Env | None = None
        self._loading: tuple[Path, tuple[int, int], Future[None]] | None = None
        self._refused: dict[Path, tuple[int, int]] = {}

    @property
    def unreadable(self) -> Path | None:
        """The checkpoint that should be played but cannot be read; None if there is none."""
        due = self.chosen or next(reversed(self.run.checkpoints.values()), None)
        return due if due is not None and self._is_refused(due) else None

    def update(self) -> None:
        """Create the player when there is a checkpoint. Later, start or finish loading the checkpoint to play."""
        if self.player is None:
            self._make_player()
            return
        if self._loading is not None and self._loading[2].done():
            path, stamp, done = self._loading
            self._loading = None
            if (error := done.exception()) is None:
                self.shown = path
            else:
                self._refuse(path, stamp, error)
        if self._loading is None and (path := self._wanted()) is not None:
            self._loading = (path, stamp_of(path), self.player.load(path))

    def close(self) -> None:
        """Stop the player."""
        if self.player is not None:
            self.player.stop()

    def _make_player(self) -> None:
        from mjlab_dist.learn import load_policy  # imports torch
        from mjlab_dist.play.view.player import Player  # imports torch

        readable = [path for path in reversed(self.run.checkpoints.values()) if not self._is_refused(path)]
        if readable and self._env is None:
            self._env = load_env(self._train_config, self._num_envs, SEED)
        for path in readable:
            assert self._env is not None
            stamp = stamp_of(path)
            try:
                policy = load_policy(self._env, self._train_config, path)
            except Exception as error:  # noqa: BLE001 (a file may be damaged in any way)
                self._refuse(path, stamp, error)
                continue
            self.player = Player(self._env, policy, functools.partial(load_policy, self._env, self._train_config))
            self.shown = path
            return

    def _wanted(self) -> Path | None:
        """Return the checkpoint to load now; None if there is none to load."""
        for path in [self.chosen] if self.chosen is not None else reversed(self.run.checkpoints.values()):
            if path == self.shown:
                return None
            if not self._is_refused(path):
                return path
        return None

    def _refuse(self, path: Path, stamp: tuple[int, int], error: BaseException) -> None:
        self._refused[path] = stamp
        if not isinstance(error, UserError):  # the page names the checkpoint; only other errors need more words
            report(error)

    def _is_refused(self, path: Path) -> bool:
        return path in self._refused and self._refused[path] == stamp_of(path)
