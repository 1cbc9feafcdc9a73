"""Rows of metrics: files stay complete, curves continue after a resume, and wandb cannot disturb training."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import math
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import command_line
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import logged_steps

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.learn.loggers import Logger
from mjlab_dist.learn.loggers import wandb_logger as module
from mjlab_dist.learn.loggers.all_loggers import JsonlWriter, LoggerGroup, scalars, writers
from mjlab_dist.learn.loggers.tensorboard_logger import TensorBoardLogger
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.run_dir import (
    METRICS_FILE,
    RANK_METRICS_FILE,
    WANDB_FILE,
    WandbRun,
    cut_metrics,
    find_run_to_resume,
    read_metrics,
    read_wandb_run,
    write_wandb_run,
)

KEY = "0123456789abcdef" * 2 + "01234567"


def row(iteration: int, value: float = 0.5) -> Row:
    return {"iteration": iteration, "mean_return": value, "collect_s": 0.25, "loss/value": None}


def fill(writer: JsonlWriter | Logger, iterations: range, value: float = 0.5) -> None:
    for iteration in iterations:
        if isinstance(writer, JsonlWriter):
            writer.write(row(iteration, value))
        else:
            writer.log(scalars(row(iteration, value)), iteration)


def tensorboard(run_dir: Path, resumed_at: int | None) -> TensorBoardLogger:
    return TensorBoardLogger(run_dir, registry.task_config("cartpole-balance"), resumed_at)


def test_rows_of_ranks_have_their_own_file_and_curves(tmp_path: Path) -> None:
    config = dataclasses.replace(registry.task_config("cartpole-balance"), log_ranks=True)

    def fill_both(resumed_at: int | None, iterations: range) -> None:
        made = writers(config, tmp_path, resumed_at)
        for iteration in iterations:
            ranks: list[Row] = [
                {"iteration": iteration, "rank": i, "steps_per_s": 100.0 * i, "mean_return": None} for i in range(2)
            ]
            for writer in made:
                writer.write(row(iteration), ranks)
        for writer in made:
            writer.close()

    fill_both(None, range(1, 5))
    fill_both(2, range(3, 4))
    rows = read_metrics(tmp_path, RANK_METRICS_FILE)
    assert [(one["iteration"], one["rank"]) for one in rows] == [(i, rank) for i in (1, 2, 3) for rank in (0, 1)]
    assert all(one["steps_per_s"] == 100 * one["rank"] for one in rows)
    assert [one["iteration"] for one in read_metrics(tmp_path)] == [1, 2, 3]
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert sorted(tag for tag in tags if tag.startswith("rank_")) == ["rank_steps_per_s/0", "rank_steps_per_s/1"]


def strict(line: str) -> Any:
    """Parse JSON strictly, without NaN and Infinity."""

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


# metrics.jsonl


def test_every_row_is_flushed_when_it_is_written_and_nan_becomes_null(tmp_path: Path):
    writer = JsonlWriter(tmp_path, None)
    made: list[Row] = [{"iteration": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": None}, row(2, 1.5)]
    written: list[Row] = [{"iteration": 1, "a": None, "b": None, "c": None, "d": None}, row(2, 1.5)]
    for count, one in enumerate(made, 1):
        writer.write(one)
        text = (tmp_path / METRICS_FILE).read_text()
        assert text.endswith("\n")
        assert [strict(line) for line in text.splitlines()] == written[:count]
    writer.close()
    assert read_metrics(tmp_path) == written


@pytest.mark.parametrize("torn", ["", '{"iter', '{"iteration": 11}'], ids=["whole", "torn", "without its end"])
@pytest.mark.parametrize("resumed_at", [0, 6, 10, 99])
def test_rows_after_the_checkpoint_are_removed(tmp_path: Path, resumed_at: int, torn: str):
    fill(JsonlWriter(tmp_path, None), range(1, 11), value=1.0)
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write(torn)  # a row that a killed process did not complete
    assert [one["iteration"] for one in read_metrics(tmp_path)] == list(range(1, 11))
    kept = min(resumed_at, 10)
    fill(JsonlWriter(tmp_path, resumed_at), range(kept + 1, 13), value=2.0)
    assert read_metrics(tmp_path) == [row(i, 1.0 if i <= kept else 2.0) for i in range(1, 13)]


LINE = json.dumps(row(1)) + "\n"


@pytest.mark.parametrize(
    ("first", "size", "lost"),
    [
        (10 * len(LINE), 500, ()),
        (9 * len(LINE), len(LINE), (10,)),
        (8 * len(LINE) + 7, 2 * len(LINE), (9, 10)),
        (2 * len(LINE) + 7, len(LINE), (3, 4)),
        (0, 10 * len(LINE), range(1, 11)),
    ],
    ids=["after the end", "last row", "parts of rows", "in the middle", "all"],
)
@pytest.mark.parametrize("name", [METRICS_FILE, RANK_METRICS_FILE])
def test_rows_that_a_power_failure_has_zeroed_are_dropped_with_a_warning(
    tmp_path: Path, name: str, first: int, size: int, lost: Sequence[int]
) -> None:
    data = bytearray(b"".join((json.dumps(row(i % 10)) + "\n").encode() for i in range(1, 11)))
    data[first : first + size] = bytes(size)
    (tmp_path / name).write_bytes(data.replace(b'"iteration": 0', b'"iteration": 10'))
    kept = [i for i in range(1, 11) if i not in lost]
    if first != 2 * len(LINE) + 7:  # in the skipped case, parts of two rows remain in one line
        assert [one["iteration"] for one in read_metrics(tmp_path, name)] == kept
    (tmp_path / METRICS_FILE).touch()
    events: list[Event] = []
    with listening(events.append):
        JsonlWriter(tmp_path, 10 if name == RANK_METRICS_FILE or lost else 9).close()
    text = "\n".join(event["text"] for event in events if str(tmp_path / name) in event["text"])
    assert text
    assert len(text.splitlines()) == 1
    assert b"\0" not in (tmp_path / name).read_bytes()
    assert f" {len(lost)} iteration" in text or not lost


def test_rows_that_were_never_written_to_disk_are_reported(tmp_path: Path) -> None:
    fill(JsonlWriter(tmp_path, None), range(1, 8))
    events: list[Event] = []
    with listening(events.append):
        JsonlWriter(tmp_path, 10).close()
    (event,) = events
    assert event["kind"] == "warning"
    assert " 3 iterations" in event["text"]


def test_a_run_killed_before_its_first_row_resumes(tmp_path: Path):
    cut_metrics(tmp_path, 3)
    assert not (tmp_path / METRICS_FILE).exists()
    fill(JsonlWriter(tmp_path, 0), range(1, 2))
    assert read_metrics(tmp_path) == [row(1)]


# TensorBoard


def curve(run_dir: Path, name: str) -> list[tuple[int, float]]:
    """Return the points that TensorBoard shows for a directory."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path: Path):
    fill(tensorboard(tmp_path, None), range(1, 21), value=1.0)  # not closed, as in a killed process
    assert curve(tmp_path, "train/mean_return") == [(i, 1.0) for i in range(1, 21)]
    second = tensorboard(tmp_path, 10)
    fill(second, range(11, 16), value=2.0)
    assert curve(tmp_path, "train/mean_return") == [(i, 1.0 if i <= 10 else 2.0) for i in range(1, 16)]
    second.close()
    fill(tensorboard(tmp_path, 12), range(13, 31), value=3.0)
    expected = [(i, 1.0 if i <= 10 else 2.0 if i <= 12 else 3.0) for i in range(1, 31)]
    assert curve(tmp_path, "train/mean_return") == expected
    assert [step for step, _ in curve(tmp_path, "perf/collect_s")] == list(range(1, 31))
    # A run that starts from scratch shows no earlier rows
    fill(tensorboard(tmp_path, 0), range(1, 4), value=4.0)
    assert curve(tmp_path, "train/mean_return") == [(i, 4.0) for i in range(1, 4)]


def test_tensorboard_raises_the_error_of_a_full_disk_where_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised_in_threads: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised_in_threads.append)
    writer = tensorboard(tmp_path, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            fill(writer, range(1, 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.close()
    assert not raised_in_threads


def test_scalars_are_grouped_by_name_without_the_iteration_and_unknown_values():
    named = scalars({"iteration": 3, "mean_return": None, "episodes": 4, "collect_s": 2.0, "loss/value": 0.5})
    assert named == {"train/episodes": 4.0, "perf/collect_s": 2.0, "loss/value": 0.5}
    assert all(type(value) is float for value in named.values())


# Weights & Biases


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Config of a run with a wandb account whose server does not answer."""
    for name in ("WANDB_MODE", "WANDB_SERVICE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    return dataclasses.replace(registry.task_config("cartpole-balance"), logger=("wandb",), wandb_project="proj")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """Collect printed warnings. After the test, check that no process is left."""
    texts: list[str] = []
    before = set(psutil.Process().children(recursive=True))  # processes of other tests
    with listening(lambda event: texts.append(event["text"]) if event["kind"] == "warning" else None):
        yield texts
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [line for process in left if (line := command_line(process))]


class FakeWandb:
    """Replaces the library, and is its only run. ``faults`` are called at the start of the methods of their names."""

    entity, project, id, offline, disabled = "team", "proj", "abc", False, False

    def __init__(self, **faults: Callable[..., object]) -> None:
        self.faults = faults
        self.inits: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []

    def init(self, **options: Any) -> FakeWandb:
        self._call("init", options)
        self.inits.append(options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self._call("log")
        self.rows.append((step, values))

    def finish(self) -> None:
        self._call("finish")

    def setup(self, settings: object) -> None:
        """Start nothing."""

    def teardown(self) -> None:
        """End nothing."""

    def Settings(self, **settings: object) -> dict[str, object]:  # noqa: N802
        return settings

    def _call(self, name: str, *args: object) -> None:
        self.faults.get(name, lambda *_: None)(*args)


Fake = Callable[..., FakeWandb]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Function that replaces wandb with a fake library, which calls the functions that the test passes."""

    def put(**faults: Callable[..., object]) -> FakeWandb:
        made = FakeWandb(**faults)
        monkeypatch.setitem(sys.modules, "wandb", made)
        return made

    return put


@pytest.fixture
def hang() -> Iterator[Callable[..., object]]:
    """Function that returns at the end of the test."""
    ended = threading.Event()
    yield lambda *_: ended.wait()
    ended.set()


def fails(error: BaseException) -> Callable[..., object]:
    def fail(*_: object) -> None:
        raise error

    return fail


Log = Callable[..., None]


@pytest.fixture
def log(config: TrainConfig, run_dir: Path) -> Log:
    """Function that logs rows, as a run does, and closes the loggers."""

    def log(iterations: range, resumed_at: int | None = None, **fields: Any) -> None:
        group = LoggerGroup(dataclasses.replace(config, **fields), run_dir, resumed_at)
        for iteration in iterations:
            group.write(row(iteration))
        group.close()

    return log


def test_rows_reach_wandb_in_order(config: TrainConfig, run_dir: Path, warnings: list[str], fake: Fake) -> None:
    may_start = threading.Event()
    wandb = fake(init=lambda _: may_start.wait())
    group = LoggerGroup(config, run_dir, None)
    written = read_wandb_run(run_dir)
    assert written is not None, "the id is known before wandb has started"
    may_start.set()
    for iteration in range(1, 3001):
        group.write(row(iteration))
    group.close()
    assert [step for step, _ in wandb.rows] == list(range(1, 3001))
    assert wandb.rows[0][1] == {"train/mean_return": 0.5, "perf/collect_s": 0.25}
    (options,) = wandb.inits
    assert (options["project"], options["id"], options["name"]) == ("proj", written.id, "run")
    assert options["config"]["task"] == "cartpole-balance"
    assert not warnings


def test_a_resume_continues_the_same_wandb_run(log: Log, run_dir: Path, warnings: list[str], fake: Fake) -> None:
    wandb = fake()
    for project in ("proj", "another"):
        log(range(1, 2), wandb_project=project)
    assert json.loads((run_dir / WANDB_FILE).read_text()) == {"entity": "team", "project": "proj", "id": "abc"}
    _, second = wandb.inits
    assert second.items() >= {"entity": "team", "project": "proj", "id": "abc", "resume": "allow"}.items()
    assert not warnings


@pytest.mark.parametrize("damaged", [b"", bytes(60), b"[]", b'{"id": 3, "project": "proj"}', b'{"id": "abc", "proj'])
def test_a_damaged_id_of_the_wandb_run_starts_a_new_one(
    log: Log, run_dir: Path, warnings: list[str], fake: Fake, damaged: bytes
) -> None:
    fake()
    (run_dir / WANDB_FILE).write_bytes(damaged)
    log(range(1, 2))
    assert read_wandb_run(run_dir) is not None
    (warning,) = warnings
    assert str(run_dir / WANDB_FILE) in warning


def test_wandb_starts_offline_if_it_cannot_start_online(log: Log, run_dir: Path, warnings: list[str], fake: Fake):
    def fail(options: dict[str, Any]) -> None:
        if options["mode"] != "offline":
            raise RuntimeError("no\nnetwork")

    wandb = fake(init=fail)
    log(range(1, 11))
    assert [step for step, _ in wandb.rows] == list(range(1, 11))
    (warning,) = warnings
    assert "cannot be reached (no)" in warning
    assert f"`uv run wandb sync {run_dir}/wandb/offline-run-*`" in warning


@pytest.mark.parametrize(
    ("where", "error", "expected"),
    [
        ("init", ValueError(), ["(ValueError)", "(ValueError: )"]),
        ("log", OSError("broken\npipe"), ["(OSError: broken)"]),
        ("log", SystemExit(1), ["(SystemExit: 1)"]),
        ("finish", ValueError("no"), ["in close() (ValueError: no)"]),
        ("finish", TimeoutError(), ["wandb sync"]),
    ],
)
def test_a_failing_wandb_causes_only_a_warning(
    log: Log, warnings: list[str], fake: Fake, where: str, error: BaseException, expected: list[str]
) -> None:
    fake(**{where: fails(error)})
    log(range(1, 11))
    assert len(warnings) == len(expected)
    for text, part in zip(warnings, expected, strict=True):
        assert part in text
    assert "metrics.jsonl has every row" in warnings[-1] or isinstance(error, TimeoutError)


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_run_waits_a_limited_time_for_wandb_at_its_end(
    log: Log,
    warnings: list[str],
    fake: Fake,
    hang: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    assert_within: Callable[[float, float], None],
    where: str,
) -> None:
    for name in ("START_S", "FINISH_S", "GRACE_S"):
        monkeypatch.setattr(module, name, 0.2)
    fake(**{where: hang})
    start = time.monotonic()
    log(range(1, 11))
    assert_within(time.monotonic() - start, 2)
    (warning,) = warnings
    assert "in close() (TimeoutError: it did not end within " in warning


@pytest.mark.parametrize("where", ["init", "log"])
def test_a_wandb_that_accepts_no_rows_is_stopped(
    log: Log, warnings: list[str], fake: Fake, hang: Callable[..., object], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 100)
    fake(**{where: hang})
    log(range(1, 121))
    (warning,) = warnings
    assert "TimeoutError: it has accepted no rows for 100 iterations" in warning


@pytest.mark.slow
def test_offline_rows_are_on_disk_after_closing(
    log: Log, run_dir: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log(range(1, 1001))
    log(range(11, 31), resumed_at=10)
    files = sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))
    written = read_wandb_run(run_dir)
    assert written is not None
    assert written.entity is None
    assert [file.stem for file in files] == [f"run-{written.id}"] * 2, "both files belong to one wandb run"
    assert [logged_steps(file) for file in files] == [list(range(1, 1001)), list(range(11, 31))]
    assert not warnings
    assert not list(run_dir.glob("events.out.*"))


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["key", "network", "answers"])
def test_rows_are_kept_for_later(
    config: TrainConfig,
    run_dir: Path,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    assert_within: Callable[[float, float], None],
    lacks: str,
) -> None:
    monkeypatch.setattr(module, "INIT_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if lacks == "key":
            monkeypatch.delenv("WANDB_API_KEY")
        if lacks == "answers":
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        group = LoggerGroup(config, run_dir, None)
        for iteration in range(1, 11):
            group.write(row(iteration))
        assert_within(time.monotonic() - start, 1)  # training does not wait
        group.close()
        assert_within(time.monotonic() - start, 20)
    (file,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    assert logged_steps(file) == list(range(1, 11))
    (warning,) = warnings
    assert warning.startswith("Weights & Biases cannot be reached (")
    assert ("(No API key configured." in warning) == (lacks == "key")
    assert KEY not in warning
    assert "wandb" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_disabled_wandb_does_nothing(log: Log, run_dir: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    log(range(1, 11))
    assert not (run_dir / "wandb").exists()
    assert not warnings


class Service(http.server.BaseHTTPRequestHandler):
    """The part of a Weights & Biases server that the library needs. Class attributes store its data."""

    has_steps = 0
    logged: list[int] = []  # noqa: RUF012

    def do_POST(self) -> None:
        """Answer a query, or receive rows."""
        is_json = "json" in str(self.headers["Content-Type"])
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}") if is_json else {}
        if self.path == "/graphql":
            self._answer({"data": self._data(body)})
            return
        rows = body.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.logged.extend(json.loads(one)["_step"] for one in rows)
        self._answer({})

    def _data(self, body: dict[str, Any]) -> dict[str, Any]:
        query, variables = body["query"], body["variables"]
        project = {"id": "p", "name": "proj", "entity": {"id": "e", "name": "team"}}
        bucket = {"id": "b", "name": variables.get("name"), "displayName": "run", "config": "{}", "project": project}
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "RunResumeStatus" in query and self.has_steps:
            tail = json.dumps([json.dumps({"_step": self.has_steps})])
            history = {"historyLineCount": self.has_steps, "historyTail": tail, "logLineCount": 0, "eventsLineCount": 0}
            told = {"eventsTail": "[]", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}', "tags": [], **history}
            return {"model": {**project, "bucket": {**bucket, **told}}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.headers['Host']}/up"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {"model": None}

    do_PUT = do_GET = do_POST  # noqa: N815

    def _answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextlib.contextmanager
def service(has_steps: int) -> Iterator[tuple[str, list[int]]]:
    """Run a fake server of Weights & Biases. Yield its address and the steps that it receives."""
    memory: dict[str, Any] = {"has_steps": has_steps, "logged": []}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Memory", (Service,), memory)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", memory["logged"]
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("has_steps", [0, 30])
def test_wandb_receives_the_steps_that_it_lacks(
    log: Log, run_dir: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, has_steps: int
) -> None:
    with service(has_steps) as (url, logged):
        monkeypatch.setenv("WANDB_BASE_URL", url)
        log(range(1, 101))
    assert not warnings
    assert logged == list(range(has_steps + 1, 101))
    written = read_wandb_run(run_dir)
    assert written is not None
    assert (written.entity, written.project) == ("team", "proj")


# --resume entity/project/id


def test_a_wandb_run_records_the_run_directory(tmp_path: Path):
    log_root = str(tmp_path)
    known = {
        "2026-11-21_00-00-01": WandbRun(entity="team", project="proj", id="aaaa"),
        "2026-11-21_00-00-02": WandbRun(project="proj", id="bbbb"),
        "2026-11-21_00-00-03": WandbRun(entity="team", project="other", id="aaaa"),
        "2026-11-21_00-00-04": None,
    }
    for name, run in known.items():
        (tmp_path / "walk" / name).mkdir(parents=True)
        if run:
            write_wandb_run(tmp_path / "walk" / name, run)
    (tmp_path / "walk" / "2026-11-21_00-00-04" / WANDB_FILE).write_text("damaged")

    for path, number in (("team/proj/aaaa", 1), ("anyone/proj/bbbb", 2), ("team/other/aaaa", 3)):
        assert find_run_to_resume(log_root, "walk", path) == tmp_path / "walk" / f"2026-11-21_00-00-0{number}"
    for task, path in (("walk", "me/proj/aaaa"), ("walk", "team/proj/cccc"), ("run", "team/proj/aaaa")):
        with pytest.raises(UserError, match=f"^--resume {path}: no run of {task} under {log_root} belongs to "):
            find_run_to_resume(log_root, task, path)
