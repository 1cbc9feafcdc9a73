"""Launches acquire, wait for and lose the lease of a run, which is a file that names the launch that trains the run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from mjlab_dist.errors import TakenOverError, UserError
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs import lease
from mjlab_dist.runs.lease import EXPIRED_S, LEASE_FILE, LeaseWatch, acquire, leased


def change(run_dir: Path, **fields: Any) -> None:
    """Change fields in the lease file, as if another launch had written them."""
    path = run_dir / LEASE_FILE
    changed = path.with_suffix(".new")
    changed.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    changed.replace(path)


def elsewhere(run_dir: Path) -> None:
    """Write the lease of a launch on another machine."""
    acquire(run_dir)
    change(run_dir, token="other", host="node7", pid=1, system="another start of another machine")


def refuse(_: float) -> None:
    """Fail instead of sleeping."""
    pytest.fail("sleep was called")


class Clock:
    """A clock that advances only in calls of sleep."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self._meanwhile = meanwhile

    def now(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self._meanwhile()


def test_a_lease_is_removed_at_the_end_and_can_be_acquired_again(tmp_path: Path) -> None:
    for _ in range(2):
        with leased(tmp_path) as own:
            own.renew()
            assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]
        assert not list(tmp_path.iterdir())


def test_a_run_of_another_process_is_refused_even_if_the_process_is_stopped(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from mjlab_dist.runs.lease import acquire; "
    program += "acquire(Path(sys.argv[1])); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        psutil.Process(process.pid).suspend()
        with pytest.raises(UserError, match=rf"^--resume {tmp_path}: process {process.pid} on "):
            acquire(tmp_path, sleep=Clock().sleep)
        process.kill()
        process.wait()
    # The end of the lease's launch is noticed at once, without sleeping.
    acquire(tmp_path, sleep=refuse).renew()


def test_a_zombie_does_not_train(tmp_path: Path) -> None:
    acquire(tmp_path)
    with subprocess.Popen(["true"]) as process:
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        change(tmp_path, token="other", pid=process.pid, started=started)
        acquire(tmp_path, sleep=refuse).renew()


def test_a_process_id_that_is_used_again_is_not_the_owner(tmp_path: Path) -> None:
    acquire(tmp_path)
    change(tmp_path, token="other", started=1)
    acquire(tmp_path, sleep=refuse).renew()


def test_another_machine_that_renews_is_refused_with_any_clock(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    hours = iter(range(100, 0, -1))

    def renew_in_the_past() -> None:
        if clock.now_s > EXPIRED_S / 2:
            os.utime(tmp_path / LEASE_FILE, (0, next(hours)))

    clock = Clock(renew_in_the_past)
    events: list[Event] = []
    with listening(events.append), pytest.raises(UserError, match=r"process 1 on node7 "):
        acquire(tmp_path, clock.now, clock.sleep)
    assert [event["kind"] for event in events] == ["status"]
    assert "node7" in events[0]["text"]


def test_another_machine_that_does_not_renew_is_replaced(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    os.utime(tmp_path / LEASE_FILE, (2e9, 2e9))  # far in the future
    clock = Clock()
    own = acquire(tmp_path, clock.now, clock.sleep)
    assert clock.now_s == pytest.approx(EXPIRED_S, abs=1)
    own.renew()
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]


def test_a_lease_that_is_released_while_another_launch_waits_is_free(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    clock = Clock((tmp_path / LEASE_FILE).unlink)
    acquire(tmp_path, clock.now, clock.sleep).renew()
    assert clock.now_s < 1


def owner(**fields: Any) -> bytes:
    named = {"token": "a", "host": "node7", "pid": 1, "started": 1, "system": "other"}
    return json.dumps({**named, **fields}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(300),
        b"[]",
        b'{"token": "a"}',
        b"[" * 100_000,
        b"9" * 5000,
        *(owner(pid=pid) for pid in ("1", 0, -1, 1 << 40, True, None, 1.5, [1])),
        *(owner(host=host) for host in (7, "a\x1b[2Jb", "a\nb")),
        owner(token=["a"]),
        owner(started="1"),
        owner(system={}),
    ],
)
def test_a_damaged_lease_is_replaced_after_a_wait(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEASE_FILE).write_bytes(content)
    clock, events = Clock(), list[Event]()
    assert LeaseWatch(tmp_path).look() == "unknown"
    with listening(events.append):
        acquire(tmp_path, clock.now, clock.sleep).renew()
    assert clock.now_s == pytest.approx(EXPIRED_S, abs=1)
    assert f"{LEASE_FILE}: line 1 " in events[0]["text"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_a_lease(path: Path) -> None:
    path.with_name("other").write_bytes(owner())
    path.symlink_to("other")


@pytest.mark.parametrize("make", [fifo, link, loop, link_to_a_lease, Path.mkdir])
def test_a_lease_that_is_not_a_file_is_named_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / LEASE_FILE)
    with pytest.raises(UserError, match=rf"^{tmp_path / LEASE_FILE}: ") as refusal:
        acquire(tmp_path, sleep=refuse)
    assert "\n" not in str(refusal.value)
    assert LeaseWatch(tmp_path).look() == "unknown"


def test_one_of_many_launches_at_once_gets_a_free_lease_or_takes_over_a_dead_launch(tmp_path: Path) -> None:
    def attempt(run_dir: Path) -> bool:
        try:
            acquire(run_dir).renew()
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            run_dir = tmp_path / str(number)
            run_dir.mkdir()
            if number % 4:
                acquire(run_dir)
                change(run_dir, token="dead", started=1)
            assert sum(pool.map(attempt, [run_dir] * 8)) == 1
            assert [path.name for path in run_dir.iterdir()] == [LEASE_FILE]


def test_a_launch_that_is_killed_while_it_takes_over_can_be_replaced(tmp_path: Path) -> None:
    acquire(tmp_path)
    change(tmp_path, token="dead", started=1)
    program = "import os, sys; from pathlib import Path; from mjlab_dist.runs import lease; "
    program += "lease.write_atomically = lambda *_: os._exit(9); "  # after the claim, before the new lease
    program += "lease.acquire(Path(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    acquire(tmp_path, sleep=refuse).renew()
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_links(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse_links)
    with leased(tmp_path) as own:
        own.renew()
        with pytest.raises(UserError, match="is training this run"):
            acquire(tmp_path, sleep=refuse)
    assert not list(tmp_path.iterdir())


def test_a_replaced_launch_notices_and_keeps_the_file(tmp_path: Path) -> None:
    with leased(tmp_path) as own:
        elsewhere_after = pickle.loads(pickle.dumps(own))  # rank 0 gets a pickled copy, which must also notice
        change(tmp_path, token="other", host="node7")
        for one in (own, elsewhere_after):
            with pytest.raises(TakenOverError, match=rf" on node7 .*{tmp_path}"):
                one.renew()
    assert json.loads((tmp_path / LEASE_FILE).read_text())["token"] == "other"
    (tmp_path / LEASE_FILE).unlink()
    with pytest.raises(TakenOverError):
        own.renew()


def test_renewing_changes_the_time_of_the_file_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.now_s = 1000.0
    monkeypatch.setattr("mjlab_dist.runs.lease.time.monotonic", clock.now)
    own = acquire(tmp_path)
    changed: list[bool] = []
    for _ in range(3):
        os.utime(tmp_path / LEASE_FILE, (0, 0))
        own.renew()
        changed.append((tmp_path / LEASE_FILE).stat().st_mtime > 0)
        clock.now_s += 0.6 * lease.RENEWED_S
    assert changed == [True, False, True]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^{tmp_path / 'none'}"):
        acquire(tmp_path / "none")
