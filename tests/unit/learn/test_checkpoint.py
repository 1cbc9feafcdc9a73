"""Checkpoints are never partial and are read without running code; the newest and the best ones are kept."""

from __future__ import annotations

import json
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import killed_saves
import numpy as np
import pytest
import torch
from conftest import Command
from killed_saves import Killed, names, numbers, target

from mjlab_dist.config import CheckpointConfig
from mjlab_dist.errors import UserError
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.checkpoint import LEARNER, CheckpointStore
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.pack_file import CHECKPOINT, MANIFEST, write_pack
from mjlab_dist.runs.run_dir import (
    BEST_LINK,
    CHECKPOINTS_DIR,
    LATEST_LINK,
    METRICS_FILE,
    checkpoint_path,
    choose_checkpoint,
    list_checkpoints,
)


class Unwritable:
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be written")


class Payload:
    """Creates a directory when it is unpickled in an unsafe way."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def refusal_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        checkpoint.load(path, "cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "model_3.pt"


def test_a_saved_checkpoint_loads(path: Path):
    plain = {"iteration": 3, "names": ["a", "b"], "rate": 1e-3, "nothing": None}
    tensors = {"weights": torch.arange(6.0).view(2, 3), "random": torch.get_rng_state()}
    checkpoint.save(path, {**plain, "tensors": tensors})
    read = checkpoint.load(path, "cpu")
    torch.testing.assert_close(read.pop("tensors"), tensors, rtol=0, atol=0)
    assert read == plain


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_temporary(path: Path):
    with pytest.raises(RuntimeError, match="cannot be written"):
        checkpoint.save(path, {"bad": Unwritable()})
    assert not list(path.parent.iterdir())
    checkpoint.save(path, {"iteration": 1})
    with pytest.raises(RuntimeError, match="cannot be written"):
        checkpoint.save(path, {"weights": torch.zeros(1000), "bad": Unwritable()})
    assert checkpoint.load(path, "cpu") == {"iteration": 1}
    assert [p.name for p in path.parent.iterdir()] == ["model_3.pt"]


def test_the_file_is_synced_before_it_takes_its_name(path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def watch(fd: int) -> None:
        synced.append((os.fstat(fd).st_size, path.exists()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", watch)
    checkpoint.save(path, {"weights": torch.zeros(1000)})
    size, named = synced[0]
    assert size == path.stat().st_size
    assert not named
    assert synced[-1][1], "the directory is synced after the renaming"


def test_a_file_with_a_flipped_bit_never_loads_wrong_values(path: Path):
    content = {"weights": torch.randn(500), "iter": 1}
    checkpoint.save(path, content)
    whole = path.read_bytes()
    refused = 0
    for position in range(0, len(whole), 3):
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        try:
            read = checkpoint.load(bytes(data), "cpu")
        except UserError:
            refused += 1
        else:
            assert torch.equal(read["weights"], content["weights"])
            assert read["iter"] == 1
    assert refused > len(whole) / 3 / 2


def test_a_checkpoint_written_by_plain_torch_loads(path: Path):
    path.parent.mkdir()
    torch.save({"actor_state_dict": {"weight": torch.ones(2)}, "iter": 3, "infos": None, "new": ["field"]}, path)
    assert checkpoint.load(path, "cpu")["new"] == ["field"]
    torch.save({"iter": 3}, path, _use_new_zipfile_serialization=False)
    assert checkpoint.load(path, "cpu") == {"iter": 3}


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path):
    file = tmp_path / "model_1.pt"
    file.write_text("iteration: 1\n")
    refusal_of(file)
    refusal_of(tmp_path / "missing.pt")
    torch.save([torch.ones(2)], file)
    assert " list" in refusal_of(file).removeprefix(f"checkpoint {file}")


@pytest.mark.parametrize("format_", ["zip", "legacy", "pickle"])
def test_code_in_a_file_does_not_run(tmp_path: Path, format_: str):
    file, marker = tmp_path / "model_1.pt", tmp_path / "marker"
    content = {"iteration": 1, "payload": Payload(marker)}
    if format_ == "pickle":
        file.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=format_ == "zip")
    refusal_of(file)
    assert not marker.exists()
    pickle.loads(pickle.dumps(content))
    assert marker.exists(), "an unsafe load runs it"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "logs" / "task" / "run"
    directory.mkdir(parents=True)
    return directory


MakeStore = Callable[..., CheckpointStore]


@pytest.fixture
def make_store(run_dir: Path) -> Iterator[MakeStore]:
    """Function that creates stores of the run. All stores are closed after the test."""
    made: list[CheckpointStore] = []

    def make(**config: Any) -> CheckpointStore:
        made.append(CheckpointStore(run_dir, CheckpointConfig(**config)))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Event that delays the writing of checkpoints until a test sets it."""
    opened, whole = threading.Event(), torch.save

    def save(*args: Any) -> None:
        assert opened.wait(60)
        whole(*args)

    monkeypatch.setattr(torch, "save", save)
    return opened


def content_of(run_dir: Path, iteration: int) -> dict[str, Any]:
    return checkpoint.load(checkpoint_path(run_dir, iteration), "cpu")


def write_metrics(run_dir: Path, returns: dict[int, float | None], tail: str = "") -> None:
    rows = [json.dumps({"iteration": n, "mean_return": value}) + "\n" for n, value in returns.items()]
    (run_dir / METRICS_FILE).write_text("".join(rows) + tail)


def write(store: CheckpointStore, contents: dict[int, dict[str, Any]]) -> None:
    for iteration, content in contents.items():
        store.save(iteration, content, None)
    store.close()


def fill(store: CheckpointStore, returns: dict[int, float | None]) -> None:
    for iteration, mean_return in returns.items():
        store.save(iteration, {"iter": iteration}, mean_return)
    store.close()


def assert_falls_back(store: CheckpointStore, needed: Mapping[str, type] | None = None) -> str:
    """Assert that the store reads checkpoint 20 because it refuses the newer one. Return its warning."""
    found, (warning,) = read_newest(store, needed)
    assert found is not None
    assert found[0].name == "model_20.pt"
    assert "\n" not in warning
    return warning


def test_training_continues_while_a_snapshot_is_written(run_dir: Path, make_store: MakeStore, gate: threading.Event):
    store = make_store()
    weights = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weights], lr=0.5)
    (weights * 2).sum().backward()
    optimizer.step()
    before = checkpoint.snapshot(optimizer.state_dict())
    store.save(1, {"weights": weights, "optimizer": optimizer.state_dict()}, None)
    store.check()
    assert not numbers(run_dir), "the checkpoint was written before the gate opened"
    saved = weights.detach().clone()
    optimizer.step()
    assert not torch.equal(saved, weights)
    gate.set()
    store.close()
    read = content_of(run_dir, 1)
    assert torch.equal(read["weights"], saved)
    assert read["optimizer"]["param_groups"] == before["param_groups"]
    for name, value in before["state"][0].items():
        assert torch.equal(read["optimizer"]["state"][0][name], value)
    assert not torch.equal(read["optimizer"]["state"][0]["exp_avg"], optimizer.state[weights]["exp_avg"])


def test_a_second_save_waits_for_the_first(run_dir: Path, make_store: MakeStore, gate: threading.Event):
    store = make_store()
    store.save(1, {"iter": 1}, None)
    threading.Timer(0.2, gate.set).start()
    store.save(2, {"iter": 2}, None)
    assert 1 in numbers(run_dir)
    store.close()
    assert numbers(run_dir) == [1, 2]


def test_a_checkpoint_is_passed_on_before_it_is_pruned(make_store: MakeStore):
    received: dict[int, bool] = {}
    store = make_store(keep_last=1, keep_best=0)
    store.receive = lambda file, iteration: received.update({iteration: file.is_file()})
    for iteration in (1, 2, 3):  # without any call in between, as in iterations that are faster than a save
        store.save(iteration, {"a": torch.ones(2)}, None)
    store.wait()
    assert received == {1: True, 2: True, 3: True}


def test_a_snapshot_of_a_view_stores_only_the_view(path: Path):
    whole = torch.arange(1_000_000.0)
    copy = checkpoint.snapshot({"part": whole[10:20], "same": [whole[:2], (whole[0].expand(3),)]})
    checkpoint.save(path, copy)
    assert path.stat().st_size < 10_000
    read = checkpoint.load(path, "cpu")
    assert read["part"].tolist() == list(range(10, 20))
    assert read["same"][1][0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [np.float64(1), np.arange(3), {1, 2}, object()], ids=lambda v: type(v).__name__)
def test_an_object_that_cannot_be_loaded_again_is_refused_by_name(run_dir: Path, make_store: MakeStore, value: Any):
    store = make_store()
    with pytest.raises(TypeError, match=r"^content\['infos'\]\[0\] is of "):
        store.save(1, {"infos": [value]}, None)
    fill(store, {2: None})
    assert numbers(run_dir) == [2]


RETURNS: dict[int, float | None] = {1: 5.0, 2: 9.0, 3: 1.0, 4: None, 5: 9.0, 6: 2.0, 7: 3.0}


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept", "best"),
    [
        (1, 1, [5, 7], 5),
        (1, 2, [2, 5, 7], 5),
        (2, 4, [1, 2, 5, 6, 7], 5),
        (1, 0, [7], None),
        (0, 1, [1, 2, 3, 4, 5, 6, 7], 5),
    ],
)
def test_the_newest_and_the_best_are_kept(
    run_dir: Path, make_store: MakeStore, keep_last: int, keep_best: int, kept: list[int], best: int | None
):
    fill(make_store(keep_last=keep_last, keep_best=keep_best), RETURNS)
    assert numbers(run_dir) == kept
    assert target(run_dir, LATEST_LINK) == "model_7.pt"
    if best is None:
        assert not (run_dir / CHECKPOINTS_DIR / BEST_LINK).is_symlink()
    else:
        assert target(run_dir, BEST_LINK) == f"model_{best}.pt"


@pytest.mark.parametrize("unknown", [None, float("nan"), float("-inf")])
def test_an_unknown_return_is_never_the_best(run_dir: Path, make_store: MakeStore, unknown: float | None):
    store = make_store(keep_last=1)
    fill(store, {1: unknown})
    assert names(run_dir) == {"model_1.pt", LATEST_LINK}
    fill(make_store(keep_last=1), {2: -100.0, 3: unknown, 4: unknown})
    assert numbers(run_dir) == [2, 4]
    assert target(run_dir, BEST_LINK) == "model_2.pt"


def test_a_resumed_run_keeps_its_earlier_best_checkpoints(run_dir: Path, make_store: MakeStore):
    fill(make_store(keep_last=1), {10: 50.0, 20: 30.0})
    write_metrics(run_dir, {9: 70.0, 10: 50.0, 19: None, 20: 30.0}, tail='{"iteration": 21, "mean_ret')
    fill(make_store(keep_last=1), {30: 40.0, 40: 45.0})
    assert numbers(run_dir) == [10, 40]
    assert target(run_dir, BEST_LINK) == "model_10.pt"
    write_metrics(run_dir, {10: 50.0, 20: 30.0, 30: 40.0, 40: 45.0})
    fill(make_store(keep_last=1), {50: 60.0})
    assert numbers(run_dir) == [50]


def test_without_metrics_the_link_identifies_the_best_checkpoint(run_dir: Path, make_store: MakeStore):
    fill(make_store(keep_last=1), {10: 50.0, 20: 30.0})
    fill(make_store(keep_last=1), {30: None})
    assert numbers(run_dir) == [10, 30]
    assert target(run_dir, BEST_LINK) == "model_10.pt"


def test_a_run_copied_with_files_in_place_of_links_resumes(run_dir: Path, make_store: MakeStore):
    fill(make_store(), {10: 50.0})
    for name in (LATEST_LINK, BEST_LINK):
        link = run_dir / CHECKPOINTS_DIR / name
        data = link.read_bytes()
        link.unlink()
        link.write_bytes(data)
    assert choose_checkpoint(run_dir, "best").name == BEST_LINK
    fill(make_store(), {20: 60.0})
    assert target(run_dir, LATEST_LINK) == target(run_dir, BEST_LINK) == "model_20.pt"


def test_pruning_touches_nothing_else(run_dir: Path, make_store: MakeStore):
    others = {"model_best.pt", "model_0.pt.bak", "notes.txt", "model_1.pt.unreadable"}
    store = make_store(keep_last=1, keep_best=0)
    for name in others:
        (run_dir / CHECKPOINTS_DIR / name).touch()
    fill(store, RETURNS)
    make_store()
    assert names(run_dir) == {*others, "model_7.pt", LATEST_LINK}


def test_temporary_files_and_links_of_a_killed_writer_are_cleaned_up(run_dir: Path, make_store: MakeStore):
    write_metrics(run_dir, RETURNS)
    fill(make_store(), {5: 9.0, 6: 2.0})
    whole = names(run_dir)
    directory = run_dir / CHECKPOINTS_DIR
    (directory / ".model_7.pt.123.tmp").write_bytes(b"half of it")
    (directory / ".latest.pt.123.tmp").symlink_to("model_7.pt")
    (directory / ".best.pt.123.tmp").symlink_to("model_5.pt")
    for link, lost in ((LATEST_LINK, "model_4.pt"), (BEST_LINK, "model_1.pt")):
        (directory / link).unlink()
        (directory / link).symlink_to(lost)
    make_store()
    assert names(run_dir) == whole
    assert target(run_dir, LATEST_LINK) == "model_6.pt"
    assert target(run_dir, BEST_LINK) == "model_5.pt"

    for path in list_checkpoints(run_dir).values():
        path.unlink()
    make_store()
    assert names(run_dir) == set()


def test_a_failure_in_the_thread_is_raised_once_in_one_line(run_dir: Path, make_store: MakeStore):
    store = make_store()
    directory = run_dir / CHECKPOINTS_DIR
    directory.rename(run_dir / "moved")
    directory.touch()
    calls: list[Callable[[], None]] = [store.close, lambda: store.save(2, {"iter": 2}, None), lambda: spin(store)]
    while calls:
        store.save(1, {"iter": 1}, None)
        with pytest.raises(OSError, match=f"^{checkpoint_path(run_dir, 1)}: ") as caught:
            calls.pop()()
        assert "\n" not in str(caught.value)
        store.check()
    store.close()

    directory.unlink()
    fill(make_store(), {3: None})
    assert numbers(run_dir) == [3]


def spin(store: CheckpointStore) -> None:
    """Check the store repeatedly, as training does once per iteration, until the check raises."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        store.check()


def read_newest(
    store: CheckpointStore, needed: Mapping[str, type] | None = None
) -> tuple[tuple[Path, bytes] | None, list[str]]:
    """Return the checkpoint that the store reads as the newest, and the warnings."""
    events: list[Event] = []
    with listening(events.append):
        found = store.read_newest(needed)
    assert {e["kind"] for e in events} <= {"warning"}
    return found, [e["text"] for e in events]


def test_all_ranks_read_the_newest_checkpoint(run_dir: Path, make_store: MakeStore):
    assert read_newest(make_store()) == (None, [])
    fill(make_store(), {9: None, 10: None})
    found, warnings = read_newest(make_store())
    assert found is not None
    assert found[0] == checkpoint_path(run_dir, 10)
    assert checkpoint.load(found[1], "cpu") == {"iter": 10}
    assert not warnings


def damage(path: Path, how: float | str) -> None:
    data = bytearray(path.read_bytes())
    if isinstance(how, float):
        data = data[: int(len(data) * how)]
    elif how == "flipped":
        data[data.index(torch.full((3,), 0.125).numpy().tobytes()) + 1] ^= 0x10
    elif how == "zeroed":
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)


@pytest.mark.parametrize("how", [0.0, 0.001, 0.3, 0.9, 0.9999, "flipped", "zeroed"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_one(
    run_dir: Path, make_store: MakeStore, how: float | str
):
    write_metrics(run_dir, {10: 1.0, 20: 2.0, 30: 3.0})
    store = make_store(keep_last=1, keep_best=3)
    for iteration in (10, 20, 30):
        store.save(iteration, {"weights": torch.full((2000,), 0.125), "iter": iteration}, iteration / 10)
    store.close()
    newest = checkpoint_path(run_dir, 30)
    damage(newest, how)
    damaged = newest.read_bytes()

    store = make_store(keep_last=1)
    assert re.search(rf"{newest}: .*model_20\.pt .*model_30\.pt\.unreadable", assert_falls_back(store))

    # The damaged file is renamed, not deleted. It is never again used as the newest checkpoint.
    assert target(run_dir, LATEST_LINK) == target(run_dir, BEST_LINK) == "model_20.pt"
    assert newest.with_name("model_30.pt.unreadable").read_bytes() == damaged
    store.save(25, {"iter": 25}, None)
    store.close()
    assert numbers(run_dir) == [20, 25]
    assert target(run_dir, LATEST_LINK) == "model_25.pt"


WHOLE = {
    "iter": 30,
    "actor_state_dict": {},
    "critic_state_dict": {},
    "optimizer_state_dict": {"state": {}, "param_groups": []},
}


@pytest.mark.parametrize(
    ("changed", "named"),
    [({name: None}, name) for name in WHOLE]
    + [({"optimizer_state_dict": {"state": {}}}, "optimizer_state_dict.param_groups"), ({"iter": "30"}, "iter")],
)
def test_a_checkpoint_that_lacks_an_entry_falls_back_to_the_previous_one(
    run_dir: Path, make_store: MakeStore, changed: dict[str, Any], named: str
):
    newest = {name: value for name, value in (WHOLE | changed).items() if value is not None}
    write(make_store(), {20: WHOLE | {"iter": 20}, 30: newest})
    assert re.search(rf"model_30\.pt: .*\b{named}\b", assert_falls_back(make_store(), LEARNER))
    assert checkpoint_path(run_dir, 30).with_name("model_30.pt.unreadable").is_file()


WRONG_ITERATIONS: dict[str, Any] = {
    "7": 7,
    "-1": -1,
    "1000000000000000000000000000000": 10**30,
    "30.0": 30.0,
    "True": True,
    r"'3\n0'": "3\n0",
    "a Tensor": torch.tensor(30),
}
"""Iterations of a checkpoint model_30.pt, by the words of the message."""


@pytest.mark.parametrize("shown", WRONG_ITERATIONS)
def test_a_checkpoint_of_another_iteration_than_its_name_is_refused(
    run_dir: Path, make_store: MakeStore, shown: str, tmp_path: Path
):
    write(make_store(), {20: {"iter": 20}, 30: {"iter": WRONG_ITERATIONS[shown]}})
    path, link = checkpoint_path(run_dir, 30), run_dir / CHECKPOINTS_DIR / LATEST_LINK
    says = rf"its iter is {re.escape(shown)}, (but its name says 30|not a number of iterations)\)"
    for file in (path, link):
        assert re.search(says, refusal_of(file))
    # Only the content of a file with another name is checked
    other = tmp_path / "other.pt"
    other.write_bytes(path.read_bytes())
    if shown == "7":
        assert checkpoint.load(other, "cpu") == {"iter": 7}
    else:
        assert re.search(says, refusal_of(other))
    # A resumed run uses the previous checkpoint
    warning = assert_falls_back(make_store())
    assert re.search(rf"^checkpoint {path}: .*{says}; using model_20.pt instead", warning)


@pytest.mark.parametrize(
    ("iteration", "name", "says"),
    [(30, "model_30", None), (7, "model_30", "iteration"), (30, "model_7", "checkpoint"), ("30", "best", "iteration")],
)
def test_a_pack_of_another_iteration_than_its_manifest_is_refused(
    tmp_path: Path, iteration: Any, name: str, says: str | None
):
    pack, file = tmp_path / "walk.zip", tmp_path / "content.pt"
    checkpoint.save(file, {"iter": 30})
    manifest = {"format": 1, "task": "walk", "checkpoint": name, "iteration": iteration}
    parts = {MANIFEST: json.dumps(manifest).encode(), "config.yaml": b"", CHECKPOINT: file.read_bytes()}
    write_pack(pack, parts)
    if says is None:
        assert checkpoint.load(pack, "cpu") == {"iter": 30}
    else:
        assert re.search(rf"its iter is 30, but {says} in pack.json says '?(7|30)'?\)", refusal_of(pack))


COUNTERS: dict[str, Any] = {"total_steps": 300, "elapsed_s": 30.5, "episodes": [[1.0, 2.5]]}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"elapsed_s": 31}, None),
        ({"episodes": [[float("nan"), 1.0]]}, None),
        ({"total_steps": -300}, "total_steps is -300, "),
        ({"total_steps": 300.0}, "total_steps is 300.0, "),
        ({"total_steps": 2**63}, "total_steps is 9223372036854775808, "),
        ({"total_steps": 290}, "total_steps is 290, but metrics.jsonl has 300 in iteration 30"),
        ({"total_steps": 310}, "total_steps is 310, but metrics.jsonl has 300 in iteration 30"),
        ({"elapsed_s": 29.0}, "elapsed_s is 29.0, but metrics.jsonl has 30.0 in iteration 30"),
        ({"elapsed_s": float("nan")}, "elapsed_s is nan, "),
        ({"elapsed_s": -1.0}, "elapsed_s is -1.0, "),
        ({"episodes": None}, "episodes is None, "),
        ({"episodes": [["a"]]}, "episodes is a list, "),
        ({"episodes": [[]]}, "episodes is a list, "),
    ],
)
def test_counters_that_are_wrong_or_contradict_the_metrics_are_refused(
    run_dir: Path, make_store: MakeStore, changed: dict[str, Any], says: str | None
):
    rows = [{"iteration": n, "total_steps": 10 * n, "elapsed_s": float(n)} for n in range(1, 35)]
    (run_dir / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Unmodified rsl_rl writes no counters
    write(make_store(), {20: {"iter": 20}, 30: {"iter": 30, "counters": COUNTERS | changed}})
    found, warnings = read_newest(make_store())
    assert found is not None
    assert found[0] == checkpoint_path(run_dir, 20 if says else 30)
    assert [f"its counter {says}" in text for text in warnings] == ([True] if says else [])


@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        ({"iteration": 29, "total_steps": 290, "elapsed_s": 29.0}, False),
        ({"iteration": 29, "total_steps": 310, "elapsed_s": 29.0}, True),
        ({"iteration": 29, "total_steps": 290, "elapsed_s": 40.0}, True),
        ({"iteration": 31, "total_steps": 20, "elapsed_s": 2.0}, False),
        ({"iteration": 30, "total_steps": None, "elapsed_s": "x"}, False),
        ({"iteration": 1e400}, False),
    ],
)
def test_counters_are_compared_with_the_rows_that_a_power_failure_left(
    run_dir: Path, make_store: MakeStore, row: dict[str, Any], is_refused: bool
):
    (run_dir / METRICS_FILE).write_text(json.dumps(row) + "\n" + "\0" * 40)
    write(make_store(), {20: {"iter": 20}, 30: {"iter": 30, "counters": COUNTERS}})
    found, warnings = read_newest(make_store())
    assert found is not None
    assert found[0] == checkpoint_path(run_dir, 20 if is_refused else 30)
    assert len(warnings) == is_refused


def test_the_next_writer_removes_checkpoints_that_a_killed_one_left(run_dir: Path, make_store: MakeStore):
    write_metrics(run_dir, RETURNS)
    fill(make_store(keep_last=0), RETURNS)
    store = make_store(keep_last=2)
    assert numbers(run_dir) == list(RETURNS), "checkpoints are removed only after the newest one was loaded"
    store.read_newest()
    assert numbers(run_dir) == [5, 6, 7]


def test_a_run_does_not_start_if_no_checkpoint_loads(run_dir: Path, make_store: MakeStore):
    fill(make_store(), {10: None, 20: None})
    for path in list_checkpoints(run_dir).values():
        damage(path, 0.5)
    with pytest.raises(UserError, match=rf"^--resume {run_dir}: .*\b2\b.*model_20\.pt") as caught:
        make_store().read_newest()
    assert "\n" not in str(caught.value)
    assert numbers(run_dir) == [10, 20], "without checkpoints, the next attempt would start at iteration 0"


KILL_WHILE_SAVING = """
import json
import sys
from pathlib import Path
from killed_saves import kill_while_saving

print(json.dumps(kill_while_saving(Path(sys.argv[1]), int(sys.argv[2]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [40, pytest.param(200, marks=pytest.mark.long)])
def test_the_newest_checkpoint_loads_whenever_saving_is_killed(run_dir: Path, times: int, command: Command):
    # Another process forks the processes to kill, because this process has threads, so a fork could deadlock. Forking
    # is faster than starting an interpreter for each kill, because an interpreter would have to import torch.
    script = command.script(KILL_WHILE_SAVING)
    done = command(script, str(run_dir), str(times), env={"PYTHONPATH": str(Path(killed_saves.__file__).parent)})
    assert done.code == 0, done.err
    seen = [Killed(*fields) for fields in json.loads(done.out)]
    assert len(seen) == times
    assert all(killed.tidy for killed in seen)
    assert [killed.newest for killed in seen] == sorted(killed.newest for killed in seen)
    assert seen[-1].newest > times / 40, "hardly any checkpoint was saved"
    assert sum(killed.unfinished for killed in seen) > times / 20, "hardly any kill came during saving"
