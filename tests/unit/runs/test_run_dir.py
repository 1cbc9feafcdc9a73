"""Names of run directories, and how runs and checkpoints are found."""

from __future__ import annotations

import dataclasses
import datetime
import re
import shutil
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from run_files import write_checkpoint

from mjlab_dist import policies
from mjlab_dist.config import PlayConfig, TrainConfig, registry
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.launch.plan import find_resumed
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.lease import leased
from mjlab_dist.runs.run_dir import (
    BEST_LINK,
    CHECKPOINTS_DIR,
    CONFIG_FILE,
    LATEST_LINK,
    METRICS_FILE,
    checkpoint_path,
    create_run_dir,
    find_checkpoint,
    find_run,
    find_run_to_resume,
    list_checkpoints,
    read_config_file,
    to_yaml,
)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), log_root=str(tmp_path / "logs"))


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run start in the same second."""
    moment = datetime.datetime(2026, 11, 21, 3, 14, 25, tzinfo=datetime.UTC)
    clock = types.SimpleNamespace(now=lambda _: moment)
    monkeypatch.setattr("mjlab_dist.runs.run_dir.datetime", types.SimpleNamespace(datetime=clock, UTC=datetime.UTC))


def make_run(config: TrainConfig, name: str) -> Path:
    """Create a run directory with a given name, its config and a checkpoint."""
    run_dir = Path(config.log_root, config.task, name)
    add_checkpoint(run_dir, 1)
    (run_dir / CONFIG_FILE).write_text(yaml.safe_dump(to_plain(config)))
    return run_dir


def add_checkpoint(run_dir: Path, iteration: int) -> None:
    write_checkpoint(checkpoint_path(run_dir, iteration))


def latest(config: TrainConfig) -> Path:
    return find_run(config.log_root, config.task, "latest")


def refusal_of(log_root: str, task: str, run: str) -> str:
    with pytest.raises(UserError) as caught:
        find_run(log_root, task, run)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"--run {run}:")
    return message


def test_a_run_directory_is_named_by_root_task_time_and_name(config: TrainConfig):
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    run_dir = create_run_dir(dataclasses.replace(config, run_name="wide-net"))
    after = datetime.datetime.now(datetime.UTC)
    assert run_dir.is_dir()
    assert run_dir.parent == Path(config.log_root) / "cartpole-balance"
    stamp, _, name = run_dir.name.rpartition("_")
    assert name == "wide-net"
    started = datetime.datetime.strptime(stamp, "%Y-%m-%d_%H-%M-%S").replace(tzinfo=datetime.UTC)
    assert before <= started <= after


@pytest.mark.usefixtures("stopped_clock")
def test_runs_created_concurrently_have_different_directories(config: TrainConfig):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(create_run_dir, [config] * 24))
    assert len(set(made)) == 24


def test_a_log_root_that_is_a_file_is_refused(config: TrainConfig, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match=f"^--log-root {file}: "):
        create_run_dir(dataclasses.replace(config, log_root=str(file)))


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["2026-11-21_03-14-25", "2026-11-21_03-14-26", "2025-12-31_23-59-59"], "2026-11-21_03-14-26"),
        (["2026-11-21_03-14-25-2", "2026-11-21_03-14-25"], "2026-11-21_03-14-25-2"),
        (["2026-11-21_03-14-25-10", "2026-11-21_03-14-25-9", "2026-11-21_03-14-25"], "2026-11-21_03-14-25-10"),
        (["2026-11-21_03-14-25-2_a", "2026-11-21_03-14-25-10_a", "2026-11-21_03-14-25_a"], "2026-11-21_03-14-25-10_a"),
        (["2026-11-21_03-14-25_z", "2026-11-21_03-14-26_a"], "2026-11-21_03-14-26_a"),
        (["2026-11-21_03-14-25_99", "2026-11-21_03-14-25-2_1"], "2026-11-21_03-14-25-2_1"),
        (["zz-copied-by-hand", "2026-11-21_03-14-25"], "2026-11-21_03-14-25"),
    ],
)
def test_latest_is_the_newest(config: TrainConfig, names: list[str], newest: str):
    for name in names:
        make_run(config, name)
    assert latest(config).name == newest


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("run_names", [[""] * 12, ["same"] * 12, ["zebra", "ant"]])
def test_latest_is_the_last_run_of_the_same_second(config: TrainConfig, run_names: list[str]):
    made: list[Path] = []
    for run_name in run_names:
        made.append(create_run_dir(dataclasses.replace(config, run_name=run_name)))
        (made[-1] / CONFIG_FILE).touch()
        add_checkpoint(made[-1], 1)
        assert latest(config) == made[-1]
        assert made[-1].name.endswith(run_name)
    assert len(set(made)) == len(made)


def test_latest_skips_a_directory_without_a_config_and_runs_of_another_task(config: TrainConfig):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    Path(config.log_root, config.task, "2026-11-21_03-14-26").mkdir()
    make_run(dataclasses.replace(config, task="cartpole-swingup"), "2026-11-21_03-14-27")
    assert latest(config) == run_dir


def test_latest_skips_runs_without_a_checkpoint_and_reports_it(config: TrainConfig):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    for name in ("2026-11-21_03-14-26", "2026-11-21_03-14-27"):
        shutil.rmtree(make_run(config, name) / CHECKPOINTS_DIR)
    events: list[Event] = []
    with listening(events.append):
        assert find_run(config.log_root, config.task, "latest") == run_dir
    (warning,) = events
    assert warning["text"].startswith(f"--run latest: uses {run_dir};")
    assert "2026-11-21_03-14-27 and 1 more" in warning["text"]
    shutil.rmtree(run_dir / CHECKPOINTS_DIR)
    assert "no checkpoint" in refusal_of(config.log_root, config.task, "latest")


def test_a_run_whose_checkpoints_are_gone_is_not_resumed(config: TrainConfig):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    metrics = run_dir / METRICS_FILE
    metrics.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    resumed = dataclasses.replace(config, resume=str(run_dir))
    assert find_resumed(resumed) == run_dir
    shutil.rmtree(run_dir / CHECKPOINTS_DIR)
    with pytest.raises(UserError, match=f"^--resume {run_dir}: .*2 iterations.*no checkpoint"):
        find_resumed(resumed)
    with leased(run_dir), pytest.raises(UserError, match="is training this run"):  # which writes a checkpoint later
        find_resumed(resumed)
    metrics.unlink()
    assert find_resumed(resumed) == run_dir, "without metrics, no iteration would be overwritten"


def test_a_run_with_checkpoints_of_another_program_is_not_resumed(config: TrainConfig):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    resumed = dataclasses.replace(config, resume=str(run_dir))
    write_checkpoint(checkpoint_path(run_dir, 2), model_state_dict={})
    assert find_resumed(resumed) == run_dir, "the older checkpoint can be read"
    write_checkpoint(checkpoint_path(run_dir, 1), model_state_dict={})
    with pytest.raises(UserError, match=rf"^--resume {run_dir}: none of its 2 .*model_2.pt: rsl_rl below version 5"):
        find_resumed(resumed)


@pytest.mark.parametrize(
    "line",
    [
        *("{broken", "[1]", '{"loss": 1}', "\udcff", "[" * 100_000, "9" * 5000),
        *(f'{{"iteration": {iteration}}}' for iteration in ("true", "-1", "1.5", '"2"', "null", "[2]")),
        *(
            f'{{"iteration": 2, "mean_return": {value}}}'
            for value in ('"1"', "[1]", '{"a": 1}', "true", "9" * 400, f"{'[' * 2000}{']' * 2000}")
        ),
    ],
)
def test_a_line_of_metrics_that_cannot_be_read_is_named(config: TrainConfig, line: str):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    rows = f'{{"iteration": 1}}\n{line}\n{{"iteration": 3}}\n'
    (run_dir / METRICS_FILE).write_bytes(rows.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=f"^{run_dir / METRICS_FILE}: line 2 "):
        find_resumed(dataclasses.replace(config, resume=str(run_dir)))


def test_a_run_is_not_resumed_through_links(config: TrainConfig, tmp_path: Path):
    run_dir, resumed = make_run(config, "2026-11-21_03-14-25"), tmp_path / "other"
    resumed.mkdir()
    shutil.move(run_dir / "checkpoints", resumed)
    (run_dir / "checkpoints").symlink_to(resumed / "checkpoints")
    with pytest.raises(UserError, match=rf"^--resume {run_dir}: {run_dir}/checkpoints is a link "):
        find_resumed(dataclasses.replace(config, resume=str(run_dir)))


def test_a_path_that_does_not_exist_is_no_run_of_weights_and_biases(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_run(config, "2026-11-21_03-14-25")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not a run directory"):
        find_run_to_resume(config.log_root, config.task, f"logs/{config.task}/missing")
    with pytest.raises(UserError, match="Weights & Biases"):
        find_run_to_resume(config.log_root, config.task, "team/project/missing")


def test_no_run_at_all_is_refused(config: TrainConfig):
    message = refusal_of(config.log_root, config.task, "latest")
    assert config.task in message
    assert config.log_root in message
    assert "--log-root" in message


def test_a_path_must_be_a_run_of_the_task(config: TrainConfig, tmp_path: Path):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    assert find_run("elsewhere", config.task, str(run_dir)) == run_dir
    message = refusal_of(config.log_root, "cartpole-swingup", str(run_dir))
    assert re.search(r" cartpole-balance\b.* cartpole-swingup\b", message)
    assert CONFIG_FILE in refusal_of(config.log_root, config.task, str(tmp_path))


def test_a_file_with_another_name_is_not_a_checkpoint(tmp_path: Path):
    newest = checkpoint_path(tmp_path, 2)
    newest.parent.mkdir()
    newest.touch()
    for name in (".model_3.pt.123.tmp", "model_best.pt", "model_7.pt.bak", ".model_8.pt", "copy_of_model_9.pt"):
        (newest.parent / name).touch()
    for name, target in ((LATEST_LINK, "model_2.pt"), (BEST_LINK, "model_2.pt"), ("model_10.pt", "lost.pt")):
        (newest.parent / name).symlink_to(target)
    assert find_checkpoint(tmp_path) == newest
    assert list_checkpoints(tmp_path) == {2: newest}


def test_checkpoints_are_listed_from_the_oldest(tmp_path: Path):
    assert list_checkpoints(tmp_path) == {}
    for iteration in (100, 9, 20):
        path = checkpoint_path(tmp_path, iteration)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert list(list_checkpoints(tmp_path)) == [9, 20, 100]
    assert find_checkpoint(tmp_path) == checkpoint_path(tmp_path, 100)


def test_play_finds_the_newest_and_the_best_by_name(config: TrainConfig):
    run_dir = make_run(config, "2026-11-21_03-14-25")
    checkpoint_path(run_dir, 1).unlink()

    def played(checkpoint: str | None) -> Path:
        return policies.resolve(config.task, PlayConfig(checkpoint=checkpoint, log_root=config.log_root))[1]

    for name in (None, "latest"):
        with pytest.raises(UserError, match=r"^--run latest: .*no checkpoint"):
            played(name)
    for iteration in (10, 20, 30):
        add_checkpoint(run_dir, iteration)
    assert played(None) == played("latest") == checkpoint_path(run_dir, 30)
    with pytest.raises(UserError, match=f"^--checkpoint best: {run_dir} .*--checkpoint.keep-best.* latest$"):
        played("best")
    (run_dir / CHECKPOINTS_DIR / BEST_LINK).symlink_to("model_20.pt")
    assert played("best") == checkpoint_path(run_dir, 20)
    file = checkpoint_path(run_dir, 10)
    assert played(str(file)) == file
    with pytest.raises(UserError, match=r"^--checkpoint bets: .* latest or best"):
        played("bets")


@pytest.mark.parametrize("names", [[], [".model_3.pt.123.tmp"]])
def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, names: list[str]):
    (tmp_path / CHECKPOINTS_DIR).mkdir()
    for name in names:
        (tmp_path / CHECKPOINTS_DIR / name).touch()
    with pytest.raises(UserError, match=f"^--run {tmp_path}: "):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("seed: 3", "seed: three"),
        ("seed: 3", "sead: 3"),
        ("  gamma: 0.99", "  gamma: high"),
        ("seed: 3", "seed: \0\0"),
        ("seed: 3", "seed: \udcff"),
        ("sigma: 0.5", "sigma: [wide"),
    ],
)
def test_an_error_in_a_config_file_is_named_with_its_line(config: TrainConfig, tmp_path: Path, before: str, after: str):
    path = tmp_path / CONFIG_FILE
    lines = to_yaml(dataclasses.replace(config, seed=3)).splitlines()
    number = next((i for i, line in enumerate(lines) if line == before), len(lines) - 1)
    lines[number] = after
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"^--config {path}: line {number + 1}: ") as caught:
        read_config_file(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_parameter_of_the_wrong_type_is_found_among_others_of_its_name(config: TrainConfig, tmp_path: Path):
    path = tmp_path / CONFIG_FILE
    plain = to_plain(config)
    *_, last = plain["env"]["rewards"]
    plain["env"]["rewards"][last]["weight"] = "heavy"
    path.write_text(text := yaml.safe_dump(plain, sort_keys=False))
    number = text.splitlines().index("      weight: heavy") + 1
    with pytest.raises(UserError, match=rf"^--config {path}: line {number}: .*heavy"):
        read_config_file(path)
