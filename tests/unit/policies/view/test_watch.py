"""The page of watch continues, whatever the files of one run contain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from mjlab_dist.config import WatchConfig
from mjlab_dist.config.registry import task_config
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.messages import Event, listening
from mjlab_dist.policies.view import gate
from mjlab_dist.policies.view.gate import Server, open_server
from mjlab_dist.policies.view.page import Page
from mjlab_dist.policies.view.player import Player
from mjlab_dist.policies.view.watch import Watcher
from mjlab_dist.runs.run_dir import to_yaml

TASK = "cartpole-balance"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(gate, "_reported", set())
    server = open_server("127.0.0.1", None)
    yield server
    server.stop()


@pytest.fixture
def events() -> Iterator[list[Event]]:
    found: list[Event] = []
    with listening(found.append):
        yield found


def _make_run(folder: bytes, config: str = to_yaml(task_config(TASK))) -> Path:
    run_dir = Path(os.fsdecode(folder))
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(config)
    return run_dir


@pytest.fixture
def watcher(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """A watcher of a run without a checkpoint. It behaves as if its page were open."""
    monkeypatch.setattr(server, "get_clients", lambda: {0: Notified()})
    watcher = Watcher(server, WatchConfig(log_root=str(tmp_path)))
    watcher.open(_make_run(bytes(tmp_path / TASK / "own")), task_config(TASK))
    return watcher


class Notified:
    """A client that keeps its notifications."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add_notification(self, _: str, text: str, color: str) -> None:  # noqa: ARG002
        self.texts.append(text)


def _run(watcher: Watcher, num_loops: int = 3) -> None:
    loops = iter(range(num_loops))

    def is_over() -> bool:
        watcher._wake.set()
        watcher._look_due_s = watcher._list_due_s = 0.0
        return next(loops, None) is None

    watcher.run(is_over)


def test_names_that_are_not_unicode_or_not_unique_are_shown(watcher: Watcher, tmp_path: Path) -> None:
    _make_run(bytes(tmp_path / TASK) + b"/\xff<b>")
    _make_run(bytes(tmp_path / "elsewhere" / "own"))
    _run(watcher)
    shown = watcher._shown
    assert len(shown._run.options) == 3
    assert shown._runs[shown._run.value] == tmp_path / TASK / "own"
    for text in (shown._table.content, *shown._run.options):
        assert text.encode()
        assert "\n" not in text


def test_an_error_of_a_loop_is_reported_once(
    watcher: Watcher, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: Path) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(watcher._list, "look", look)
    _run(watcher)
    assert [event["text"] for event in events] == ["the viewer continues after an error: OSError: Too many open files"]


@pytest.mark.parametrize(
    "config", [10_000 * "[", "\0", to_yaml(task_config(TASK)).replace("run_name: ''", 'run_name: "\\ud800"')]
)
def test_a_run_that_cannot_be_opened_leaves_the_page(
    watcher: Watcher, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Notified()
    monkeypatch.setattr(watcher._server, "get_clients", lambda: {0: client})
    watcher._want(_make_run(bytes(tmp_path / TASK / "other"), config))
    shown = watcher._shown
    _run(watcher)
    assert watcher._shown is shown
    assert len(client.texts) == 1


def test_an_error_of_the_player_is_shown_on_the_page(
    watcher: Watcher, build_env: Callable[[str], Env], server: Server
) -> None:
    player = Player(build_env(TASK), mock.Mock())
    watcher._shown.follower.player, watcher._shown._page = player, Page(server, player, None)
    player.failure = RuntimeError("in a step")
    _run(watcher)
    assert "the robot cannot be shown: RuntimeError: in a step" in watcher._shown._status.content


def test_the_first_run_must_have_a_task_that_can_be_built(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def update() -> None:
        raise UserError("task: cannot be built")

    monkeypatch.setattr(watcher._shown.follower, "update", update)
    with pytest.raises(UserError, match="cannot be built"):
        _run(watcher)
    watcher._has_switched = True
    _run(watcher)
    assert "task: cannot be built" in watcher._shown._status.content


def test_a_page_continues_after_an_error(
    server: Server, build_env: Callable[[str], Env], events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    player = Player(build_env(TASK), mock.Mock())
    page, calls = Page(server, player, list), list[int]()

    def update() -> None:
        calls.append(1)
        raise ValueError("of a frame")

    monkeypatch.setattr(page, "update", update)
    page.run(lambda: len(calls) == 3)
    assert [event["text"] for event in events] == ["the viewer continues after an error: ValueError: of a frame"]


def test_another_observation_is_plotted_by_the_thread_that_updates_the_charts(
    server: Server, build_env: Callable[[str], Env]
) -> None:
    player = Player(build_env("quadruped-velocity-flat"), mock.Mock())
    page = Page(server, player, list)
    before = page._observation
    page._chosen_term.value = page._chosen_term.options[-1]
    assert page._observation is before
    page._update_charts(player.frame)
    assert page._observation is not before
