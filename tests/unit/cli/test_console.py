"""Commands show the progress of compilation: on a terminal as a bar, otherwise as lines."""

from __future__ import annotations

import io
import shlex
import socket
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console
from run_files import write_checkpoint

from mjlab_dist.cli.console import EventPrinter, TrainConsole, make_console
from mjlab_dist.launch.output import unfailing

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def printer(terminal: bool) -> tuple[EventPrinter, io.StringIO]:
    out = io.StringIO()
    return EventPrinter(Console(file=out, force_terminal=terminal, width=100)), out


def compiling(done: int, total: int) -> dict[str, object]:
    return {"kind": "compiling", "done": done, "total": total}


def test_a_pipe_receives_the_first_and_the_last_line() -> None:
    shown, out = printer(terminal=False)
    with shown:
        for done in range(31):
            shown.listen(compiling(done, 30))
    first, last = out.getvalue().splitlines()
    assert "30 modules" in first
    assert "30 of 30" in last
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_a_bar_that_disappears_after_compiling() -> None:
    shown, out = printer(terminal=True)
    for done in range(3):
        shown.listen(compiling(done, 2))
    assert "2/2" in out.getvalue()
    assert out.getvalue().count(HIDE_CURSOR) == out.getvalue().count(SHOW_CURSOR) == 1


def test_an_error_restores_the_cursor() -> None:
    shown, out = printer(terminal=True)
    shown.listen(compiling(0, 2))
    with pytest.raises(KeyboardInterrupt), shown:
        raise KeyboardInterrupt
    assert out.getvalue().count(HIDE_CURSOR) == out.getvalue().count(SHOW_CURSOR) == 1


def test_a_restart_shows_a_new_bar() -> None:
    shown, out = printer(terminal=True)
    with shown:
        shown.listen(compiling(0, 50))
        shown.listen(compiling(0, 2))
        assert "0/2" in out.getvalue()


@pytest.mark.parametrize("text", ["rank[0] [/red]", "logs[/x]", "[bold]", ":smile: 1.0"])
def test_text_is_printed_unchanged(text: str) -> None:
    out = io.StringIO()
    console = make_console(file=out, soft_wrap=True)
    EventPrinter(console).listen({"kind": "status", "text": text})
    assert out.getvalue() == f"{text}\n"
    TrainConsole(text, console).started(Path(text), "2 ranks")
    assert out.getvalue().count(text) == 4


def test_below_a_cell_of_a_notebook_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = types.SimpleNamespace(isatty=lambda: True, write=str, flush=str)
    assert make_console(file=terminal).is_terminal
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert not make_console(file=terminal).is_terminal


def test_printed_commands_can_be_typed(tmp_path: Path) -> None:
    run_dir = tmp_path / "my runs" / "it's 1"
    write_checkpoint(run_dir / "checkpoints" / "model_1.pt")
    out = io.StringIO()
    console = TrainConsole("a-task", make_console(file=out, soft_wrap=True))
    console.started(run_dir, "1 rank")
    console.listen({"kind": "length", "max_iterations": 2})
    row = {"iteration": 1, "total_steps": 8, "elapsed_s": 1.0, "steps_per_s": 8.0, "mean_return": None}
    console.listen({"kind": "iteration", "row": {**row, "mean_episode_length": None}})
    console.finished(run_dir, stopped=True)
    lines = (shlex.split(line)[1:] for line in out.getvalue().splitlines() if "uv run" in line)
    watch, resume, play, video = (words[2:] for words in lines)
    assert watch == ["mjlab-dist", "watch", str(run_dir)]
    assert resume == ["train", "a-task", "--resume", str(run_dir)]
    assert play == ["play", "a-task", "--run", str(run_dir), "--viewer", "web"]
    assert video == ["play", "a-task", "--run", str(run_dir), "--video", "a-task.mp4"]


def test_a_failure_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes separate, unlike a pipe
    with reader, writer:
        monkeypatch.setattr(sys, "stderr", unfailing(writer.fileno(), None, by_line=True))
        TrainConsole("a-task").failed("Traceback ...\nLostRankError: rank 0 has ended\n", "failed: LostRankError")
        assert reader.recv(10_000) == (
            b"Traceback ...\nLostRankError: rank 0 has ended\ntrain: failed: LostRankError\n"
        )
