"""Files of metrics are read while a run writes them."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path

import pytest

from mjlab_dist.policies.view import runs
from mjlab_dist.policies.view.runs import MAX_POINTS, History, RowReader
from mjlab_dist.runs.run_dir import cut_metrics


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def _append(file: Path, *iterations: int, end: str = "") -> None:
    with file.open("a") as opened:
        opened.writelines(json.dumps({"iteration": n, "mean_return": float(n)}) + "\n" for n in iterations)
        opened.write(end)


def _read(reader: RowReader) -> list[int]:
    return [row["iteration"] for row in reader.read().rows]


def test_only_new_rows_are_returned(file: Path) -> None:
    reader = RowReader(file)
    assert reader.read() == ([], False, True)  # there is no file yet
    _append(file, 1, 2)
    assert _read(reader) == [1, 2]
    assert _read(reader) == []
    _append(file, 3)
    assert _read(reader) == [3]


def test_a_partial_row_is_returned_when_it_is_complete(file: Path) -> None:
    reader = RowReader(file)
    _append(file, 1, end='{"iteration": 2, "mean')
    assert _read(reader) == [1]
    assert _read(reader) == []
    with file.open("a") as opened:
        opened.write('_return": 2.0}\n')
    assert _read(reader) == [2]


def test_damaged_rows_are_skipped(file: Path) -> None:
    reader = RowReader(file)
    _append(file, 1)
    with file.open("ab") as opened:
        opened.write(b'\0\0\0\n[1]\n{"iteration": "x"}\nnonsense \xff\n')
    _append(file, 2)
    assert _read(reader) == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b'{"iteration": 2, "x": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
        *(b'{"iteration": %s}' % number for number in (b"0", b"-1", b"1.5", b"true", b"[2]", b"1e999", b"9" * 400)),
        b'{"iteration": ' + b"9" * 5000 + b"}",
    ],
)
def test_rows_that_no_run_writes_are_skipped(file: Path, line: bytes) -> None:
    _append(file, 1, end=line.decode() + "\n")
    _append(file, 3)
    assert _read(RowReader(file)) == [1, 3]


def test_values_that_are_no_finite_numbers_are_none(file: Path) -> None:
    values = ("null", "NaN", "-Infinity", "1e999", "1e200")
    for n, value in enumerate(values, start=1):
        with file.open("a") as opened:
            opened.write(f'{{"iteration": {n}, "mean_return": {value}, "reward/\\ud800": 2.5}}\n')
    history = History()
    for row in RowReader(file).read().rows:
        history.add(row)
    assert len(history.rows) == len(values)
    assert all(math.isnan(value) for value in history.column("mean_return"))
    assert history.column("reward/\\ud800") == [2.5] * len(values), "texts on a page must be Unicode"


def test_a_fifo_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    assert RowReader(file).read() == ([], False, True)


@pytest.mark.parametrize("grown", [(3,), (3, 4, 5, 6, 7)])
def test_a_file_that_a_resume_truncates_is_read_again(file: Path, grown: tuple[int, ...]) -> None:
    reader = RowReader(file)
    _append(file, 1, 2, 3, 4)
    assert _read(reader) == [1, 2, 3, 4]
    cut_metrics(file.parent, 2)
    # The run writes fewer or more new rows than were removed
    with file.open("a") as opened:
        opened.writelines(json.dumps({"iteration": n, "mean_return": -n}) + "\n" for n in grown)
    new = reader.read()
    assert new.is_cut
    assert [row["iteration"] for row in new.rows] == [1, 2, *grown]


def test_a_replaced_file_and_one_that_is_gone(file: Path) -> None:
    reader = RowReader(file)
    _append(file, 1, 2)
    assert _read(reader) == [1, 2]
    file.rename(file.with_suffix(".old"))
    assert reader.read() == ([], False, True)
    _append(file, 1)
    assert reader.read().is_cut


def test_long_files_are_read_in_parts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHUNK", 300)
    _append(file, *range(1, 101))
    reader, found = RowReader(file), list[int]()
    while not (new := reader.read()).is_complete:
        assert 0 < len(new.rows) < 10
        found += [row["iteration"] for row in new.rows]
    assert [*found, *(row["iteration"] for row in new.rows)] == list(range(1, 101))


@pytest.mark.parametrize("num_rows", [1, 2, MAX_POINTS - 1, MAX_POINTS, MAX_POINTS + 1, 7 * MAX_POINTS + 13])
def test_long_curves_are_thinned_and_end_with_the_newest_row(num_rows: int) -> None:
    history = History()
    for n in range(1, num_rows + 1):
        history.add({"iteration": n})
        assert len(history.rows) <= MAX_POINTS
        assert history.rows[-1]["iteration"] == n
    iterations = [row["iteration"] for row in history.rows]
    assert iterations[0] == 1
    assert len(iterations) >= min(num_rows, MAX_POINTS // 2)
    assert len({after - before for before, after in itertools.pairwise(iterations[:-1])}) <= 1


def test_repeated_iterations_replace_earlier_ones() -> None:
    history = History()
    for n, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, -2.0), (3, None)):
        history.add({"iteration": n, "mean_return": value})
    assert history.column("iteration") == [1, 2, 3]
    assert history.column("mean_return")[:2] == [1.0, -2.0]
    assert math.isnan(history.column("mean_return")[2])
