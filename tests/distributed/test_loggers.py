"""The installed train command with several loggers, with loggers of the user, and with trackio."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command
from run_files import only_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import CONFIG_FILE, read_metrics, video_path

pytestmark = pytest.mark.slow

TRAIN = (
    "train", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "8",
    "--sync.check-interval", "1", "--checkpoint.interval", "2",
)  # fmt: skip

LINES = """
import json
import os
from pathlib import Path

import mjlab_dist


class Lines(mjlab_dist.Logger):
    def __init__(self, run_dir, config, resumed_at):
        self._write(start=[str(run_dir), config.num_envs, resumed_at, os.environ.get("RANK", "0")])

    def log(self, row, step):
        self._write(step=step, row=dict(row))

    def video(self, file, iteration):
        self._write(video=[str(file), iteration])

    def close(self):
        self._write(close=True)

    def _write(self, **line):
        with Path("lines.jsonl").open("a") as file:
            file.write(json.dumps(line) + chr(10))


class Failing(mjlab_dist.Logger):
    def log(self, row, step):
        if step == 2:
            raise RuntimeError("the disk of curves is full")
"""


@pytest.fixture
def own(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module with loggers that ranks can import."""
    (command.cwd / "own_loggers.py").write_text(LINES)
    monkeypatch.setenv("PYTHONPATH", str(command.cwd))


def lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "lines.jsonl").read_text().splitlines()]


@pytest.fixture
def database(command: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of trackio. The fixture blocks the network, and settings of the user have no effect."""
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(command.cwd / "hugging_face"))
    monkeypatch.setenv("TRACKIO_DIR", str(command.cwd / "trackio"))
    return command.cwd / "trackio"


TRACKIO = """
import contextlib
import io
import json
import sys

from trackio.cli import main

answers = []
for question in json.loads(sys.argv[1]):
    sys.argv[1:] = ["get", *question, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main()
    answers.append(json.loads(printed.getvalue()))
print(json.dumps(answers))
"""


def from_trackio(command: Command, *questions: Sequence[str]) -> list[dict[str, Any]]:
    """Return what trackio's own command reads from the database. One process does all the reading."""
    done = command(command.script(TRACKIO), json.dumps(questions))
    assert done.code == 0, done.err
    return json.loads(done.out)


RANKS = pytest.mark.parametrize("num_ranks", ["1", pytest.param("2", marks=pytest.mark.long)])


@RANKS
@pytest.mark.usefixtures("own")
def test_every_logger_gets_every_row_also_after_a_resume(command: Command, database: Path, num_ranks: str) -> None:
    names = ("tensorboard", "own_loggers:Lines", "trackio")
    flags = (*TRAIN, "--cpu-ranks", num_ranks, "--wandb-project", "proj")
    done = command(*flags, "--logger", *names, "--max-iterations", "4")
    assert done.code == 0, done.err
    assert "rackio" not in done.out, "the output of trackio itself is shown only with --verbose"
    run = only_run(command.cwd)
    assert yaml.safe_load((run / CONFIG_FILE).read_text())["logger"] == list(names)
    # The resumed run uses the loggers in its config
    resumed = command(*flags, "--resume", "latest", "--max-iterations", "6")
    assert resumed.code == 0, resumed.err
    assert only_run(command.cwd) == run
    assert done.warnings == resumed.warnings == []
    assert done.err == resumed.err == ""
    metrics = read_metrics(run)
    assert [row["iteration"] for row in metrics] == [1, 2, 3, 4, 5, 6]

    # Only rank 0 creates the logger of the user
    first, *rows = lines(command.cwd)
    assert first == {"start": [str(run), 8, None, "0"]}
    assert rows.pop(4) == {"close": True}
    assert rows.pop(4)["start"][2:] == [4, "0"]
    assert rows.pop() == {"close": True}
    for line, row in zip(rows, metrics, strict=True):
        assert line["step"] == row["iteration"]
        assert line["row"]["train/mean_step_reward"] == row["mean_step_reward"]
        assert line["row"]["perf/steps_per_s"] == row["steps_per_s"]
        assert line["row"]["loss/value"] == row["loss/value"]

    # TensorBoard
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload().Scalars("train/mean_step_reward")
    assert [(event.step, event.value) for event in events] == [
        (row["iteration"], pytest.approx(row["mean_step_reward"])) for row in metrics
    ]

    # trackio keeps runs in its database, without a network
    name = ("--project", "proj", "--run", f"cartpole-balance_{run.name}")
    columns = ("mean_step_reward", "episodes")
    metric_of = [("metric", *name, "--metric", f"train/{column}") for column in columns]
    described, *logged = from_trackio(command, ("run", *name), *metric_of)
    assert described["config"]["task"] == "cartpole-balance"
    assert described["last_step"] == 6
    for column, metric in zip(columns, logged, strict=True):
        values = [(one["step"], one["value"]) for one in metric["values"]]
        assert values == [(row["iteration"], row[column]) for row in metrics]
    assert len(list(database.glob("*.db"))) == 1


@RANKS
@pytest.mark.usefixtures("own")
def test_training_continues_without_loggers_that_fail(command: Command, database: Path, num_ranks: str) -> None:
    database.write_text("a file, not a directory")
    names = ("own_loggers:Failing", "trackio", "own_loggers:Lines")
    done = command(*TRAIN, "--cpu-ranks", num_ranks, "--max-iterations", "5", "--logger", *names)
    assert done.code == 0, done.err
    assert done.err == ""
    problem = "failed in log() at iteration 2 (RuntimeError: the disk of curves is full)"
    (own,) = (line for line in done.warnings if f"logger own_loggers:Failing {problem}" in line)
    (warning,) = (line for line in done.warnings if line != own)
    assert "trackio: " in warning
    assert str(database) in warning
    run = only_run(command.cwd)
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3, 4, 5]
    assert [line["step"] for line in lines(command.cwd) if "step" in line] == [1, 2, 3, 4, 5]
    assert not list(run.glob("events.out.*"))


@pytest.mark.usefixtures("own")
@pytest.mark.long
def test_own_logger_beside_tensorboard_gets_videos(command: Command) -> None:
    flags = ("--video-interval", "2", "--video-length", "0.2", "--max-iterations", "2")
    done = command(*TRAIN, *flags, "--logger", "own_loggers:Lines", "tensorboard")
    assert done.code == 0, done.err
    assert done.warnings == []
    run = only_run(command.cwd)
    shown = [line["video"] for line in lines(command.cwd) if "video" in line]
    assert shown == [[str(video_path(run, 2)), 2]]
    (image,) = EventAccumulator(str(run)).Reload().Images("video")
    assert image.encoded_image_string.startswith(b"GIF")
    assert "close" in lines(command.cwd)[-1]


@pytest.mark.long
def test_the_example_of_the_docs_adds_rows_after_a_resume(command: Command) -> None:
    examples = {"PYTHONPATH": str(Path(__file__).parents[2] / "docs" / "examples")}
    done = command(*TRAIN, "--logger", "csv_logger:CsvLogger", "--max-iterations", "2", env=examples)
    assert done.code == 0, done.err
    done = command(*TRAIN, "--resume", "latest", "--max-iterations", "3", env=examples)
    assert (done.code, done.warnings) == (0, []), done.err
    run = only_run(command.cwd)
    head, *rows = csv.reader((run / "returns.csv").open())
    assert head == ["iteration", "train/mean_return", "perf/steps_per_s"]
    assert [(int(i), float(speed)) for i, _, speed in rows] == [
        (row["iteration"], row["steps_per_s"]) for row in read_metrics(run)
    ]


@pytest.mark.usefixtures("own")
def test_a_logger_that_does_not_exist_is_refused_before_anything_starts(command: Command) -> None:
    for name, problem in (("own_loggers:Nothing", "Nothing"), ("own_logger:Lines", "own_logger"), ("paper", "use")):
        done = command(*TRAIN, "--cpu-ranks", "2", "--logger", "tensorboard", name)
        assert done.code == Exit.USAGE
        (line,) = done.err.splitlines()
        assert f"--logger {name}: " in line
        assert problem in line.partition(name)[2]
    assert not (command.cwd / "logs").exists()


@pytest.mark.long
def test_trackio_gets_the_video(command: Command, database: Path) -> None:
    flags = ("--video-interval", "2", "--video-length", "0.2", "--max-iterations", "2", "--verbose")
    done = command(*TRAIN, *flags, "--logger", "trackio")
    assert done.code == 0, done.err
    assert done.warnings == []
    assert "Created new run" in done.out
    run = only_run(command.cwd)
    (logged,) = database.glob("media/**/*.mp4")
    assert logged.read_bytes() == video_path(run, 2).read_bytes()
    name = ("--project", "mjlab_dist", "--run", f"cartpole-balance_{run.name}")
    (described,) = from_trackio(command, ("run", *name))
    assert Counter(described["metrics"])["video"] == 1
