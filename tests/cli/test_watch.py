"""The installed command watch: command lines that it refuses, a run on two ranks, files that appear one by one."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import choose, row
from conftest import Command

from mjlab_dist.learn import checkpoint
from mjlab_dist.runs.run_dir import checkpoint_path, list_checkpoints

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

TASK = "cartpole-balance"

OpenTab = Callable[[str], "Page"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of the cartpole, with the checkpoints of two iterations."""
    place = tmp_path_factory.mktemp("watch")
    small = ("--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "2", "--checkpoint.interval", "1")
    done = Command("trained", place).here("train", TASK, *small)
    assert done.code == 0, done.err
    return next((place / "logs" / TASK).iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "latest: there is no run under logs"),
        (("latest", "--log-root", "nowhere"), "latest: there is no run under nowhere"),
        (("nowhere",), "nowhere: is not a run directory"),
        ((".",), ".: is not a run directory"),
        (("RUN", "--port", "0"), "--port 0: must be at least 1 and at most 65535"),
        (("RUN", "--host", "192.0.2.1"), "--host 192.0.2.1: is not an address of this machine"),
        (("RUN", "--num-envs", "0"), "--num-envs 0: must be at least 1"),
        (("FOREIGN",), "os:system: is not from mjlab_dist"),
        (("DAMAGED",), "is not YAML"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: tuple[str, ...], message: str, command: Command, trained: Path
) -> None:
    text = (trained / "config.yaml").read_text()
    foreign, damaged = command.cwd / "foreign", command.cwd / "damaged"
    for run_dir, changed in ((foreign, re.sub(r"func: \S+", "func: os:system", text, count=1)), (damaged, "{")):
        run_dir.mkdir()
        (run_dir / "config.yaml").write_text(changed)
    names = {"RUN": str(trained), "FOREIGN": str(foreign), "DAMAGED": str(damaged)}
    done = command.here("mjlab-dist", "watch", *(names.get(word, word) for word in words))
    assert done.code == 2, done.err
    assert len(done.err.splitlines()) == 1, done.err
    assert message in done.err


def test_a_taken_port_is_refused(command: Command, trained: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = command.here("mjlab-dist", "watch", str(trained), "--port", port)
    assert done.code == 2, done.err
    assert done.err.startswith(f"mjlab-dist watch: --port {port}: is used by another program"), done.err


@pytest.mark.long
def test_the_page_follows_a_run_on_two_ranks_to_its_end(
    command: Command, open_tab: OpenTab, wait_for: Callable[[Callable[[], bool]], None], slow_training: Path
) -> None:
    flags = (
        *("--num-envs", "8", "--max-iterations", "100000", "--checkpoint.interval", "2", "--log-ranks"),
        *("--agent.num-steps-per-env", "8", "--agent.num-learning-epochs", "1"),
        *("--env.episode-length-s", "0.2"),  # short episodes: curves of returns need episodes that have ended
        *("--logger", "tensorboard", "slow_logger:Slow"),
    )
    slow_training.write_text("0.5")
    train = command.start("train", TASK, "--gpu-ids", "None", "--cpu-ranks", "2", *flags)
    wait_for(lambda: any((command.cwd / "logs").glob("*/*/metrics.jsonl")))
    watch = command.start("mjlab-dist", "watch", "latest")
    tab = open_tab(_url(watch))
    # The newest policy of the run
    first = _iteration_shown(tab)
    wait_for(lambda: _iteration_shown(tab) > first)
    assert tab.get_by_text(re.compile("^running: iteration ")).is_visible()
    # Curves of the run and of each rank
    tab.get_by_role("tab", name="Curves").click()
    lines = "Object.values(window.__viserTestpoints?.uplots ?? {}).map(u => u.chart.data.map(d => d.length))"
    wait_for(lambda: [len(plot) for plot in tab.evaluate(lines)].count(3) == 2)
    num_points = max(max(plot) for plot in tab.evaluate(lines))
    wait_for(lambda: max(max(plot) for plot in tab.evaluate(lines)) > num_points)
    plots = "Object.values(window.__viserTestpoints.uplots).flatMap(u => Array.from(u.chart.data))"
    assert tab.evaluate(f"{plots}.every(line => Array.from(line).every(Number.isFinite))")
    # The top label of a y axis is 12 pixels high, so half of it needs 6 pixels above the axis
    spaces = "Object.values(window.__viserTestpoints.uplots).map(u => u.chart.bbox.top / devicePixelRatio)"
    assert min(tab.evaluate(spaces)) >= 6
    # End of the run
    train.send_signal(signal.SIGINT)
    done = command.finish(train)
    assert done.code == 75, done.err
    tab.get_by_text(re.compile("^stopped before its last iteration: ")).wait_for()
    run_dir = next((command.cwd / "logs" / TASK).iterdir())
    newest = max(list_checkpoints(run_dir))
    wait_for(lambda: _iteration_shown(tab) == newest)
    _end(command, watch)


def test_files_that_appear_one_by_one(command: Command, trained: Path, open_tab: OpenTab) -> None:
    run_dir, other = command.cwd / "copy", command.cwd / "logs" / TASK / trained.name
    (run_dir / "checkpoints").mkdir(parents=True)
    shutil.copy(trained / "config.yaml", run_dir)
    shutil.copytree(trained, other)
    before = _contents(other)
    watch = command.start("mjlab-dist", "watch", str(run_dir))
    tab = open_tab(_url(watch))
    # At first, there is no checkpoint and no row. After the first row, the page has curves, but no robot
    tab.get_by_text("no checkpoint yet", exact=False).wait_for()
    tab.get_by_text("no iteration yet", exact=False).wait_for()
    line = (trained / "metrics.jsonl").read_text().splitlines()[0]
    (run_dir / "metrics.jsonl").write_text(line + "\n")
    tab.get_by_text("iteration 1 of 2", exact=False).wait_for()
    tab.get_by_text("steps/s", exact=True).wait_for()
    # A damaged checkpoint, then a complete one
    checkpoint_path(run_dir, 1).write_bytes(b"damaged")
    tab.get_by_text("model_1.pt cannot be used", exact=False).wait_for()
    content = checkpoint.load(checkpoint_path(trained, 2), "cpu")
    for iteration in (2, 10):
        checkpoint.save(checkpoint_path(run_dir, iteration), {**content, "iter": iteration})
        tab.get_by_text(f"policy of iteration {iteration}", exact=True).wait_for()
    # Choose a checkpoint, then follow the newest checkpoint again
    choose(tab, "Checkpoint", "model_2.pt")
    tab.get_by_text("policy of iteration 2", exact=True).wait_for()
    assert not row(tab, "Follow newest").locator("input").is_checked()
    row(tab, "Follow newest").locator("input").click()
    tab.get_by_text("policy of iteration 10", exact=True).wait_for()
    # The run is resumed, and its new rows replace old ones
    rows = [json.dumps(json.loads(line) | {"iteration": n}) + "\n" for n in range(1, 8)]
    (run_dir / "metrics.jsonl").write_text("".join(rows))
    tab.get_by_text("iteration 7 of 2", exact=False).wait_for()
    # Another run
    tab.get_by_role("tab", name="Runs").click()
    choose(tab, "Show run", f"{TASK}/{other.name}")
    tab.get_by_text(other.name, exact=True).wait_for()
    assert tab.get_by_text(TASK, exact=True).first.is_visible()
    tab.get_by_text("finished: iteration 2 of 2", exact=False).wait_for()
    tab.get_by_text("policy of iteration 2", exact=True).wait_for()
    _end(command, watch)
    assert _contents(other) == before


def _url(watch: subprocess.Popen[str]) -> str:
    """Return the address that the command prints."""
    assert watch.stdout is not None
    lines: list[str] = []
    for line in watch.stdout:
        lines.append(line)
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError(f"{lines} {watch.stderr.read() if watch.stderr else ''}")


def _end(command: Command, watch: subprocess.Popen[str]) -> None:
    watch.send_signal(signal.SIGINT)
    done = command.finish(watch)
    assert done.code == 0
    assert done.err == ""


def _iteration_shown(tab: Page) -> int:
    text = tab.get_by_text(re.compile(r"^policy of iteration \d+"))
    text.wait_for()
    return int(text.inner_text().split()[-1])


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of all files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
