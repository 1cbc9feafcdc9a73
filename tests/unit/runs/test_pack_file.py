"""Files that are not valid packs: each is refused in one line, and nothing is written."""

from __future__ import annotations

import io
import json
import random
import stat
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mjlab_dist.errors import UserError
from mjlab_dist.runs.pack_file import (
    CHECKPOINT,
    MANIFEST,
    MAX_BYTES,
    check_pack,
    has_part,
    is_pack,
    read_part,
    write_pack,
)
from mjlab_dist.runs.run_dir import find_any_run, find_run, find_run_to_resume, read_config_file

GOOD: dict[str, bytes] = {
    MANIFEST: json.dumps({"format": 1, "task": "walk", "checkpoint": "model_3"}).encode(),
    "config.yaml": b"task: walk\n",
    CHECKPOINT: bytes(range(256)) * 40,
    "metrics.jsonl": b'{"iteration": 1}\n' * 500,
}

Change = Callable[[zipfile.ZipFile], None]
"""Function that adds entries to a zip file."""


def zipped(path: Path, contents: Mapping[str, bytes], change: Change = lambda _: None, kind: int = 0) -> Path:
    """Write a zip file with any contents."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
        change(archive)
    return path


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "walk.zip"
    write_pack(path, GOOD)
    return path


def test_a_pack_gives_its_files_back(pack: Path):
    check_pack(pack, "--run")
    assert is_pack(pack)
    assert {name: read_part(pack, name) for name in GOOD} == GOOD
    assert [has_part(pack, name) for name in ("metrics.jsonl", "policy.onnx")] == [True, False]
    with pytest.raises(FileNotFoundError, match=r"policy\.onnx"):
        read_part(pack, "policy.onnx")
    # Texts are compressed, and weights are not
    assert pack.stat().st_size < len(GOOD[CHECKPOINT]) + 2000


def test_the_same_contents_give_the_same_bytes(pack: Path, tmp_path: Path):
    write_pack(tmp_path / "again.zip", dict(reversed(GOOD.items())))
    assert (tmp_path / "again.zip").read_bytes() == pack.read_bytes()


def test_unzip_gets_plain_files_that_others_can_read(pack: Path):
    with zipfile.ZipFile(pack) as archive:
        assert archive.namelist() == [name for name in MAX_BYTES if name in GOOD]
        assert {info.external_attr >> 16 for info in archive.infolist()} == {stat.S_IFREG | 0o644}


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def without(*names: str, **changed: bytes) -> dict[str, bytes]:
    return {name: data for name, data in GOOD.items() if name not in names} | changed


FOREIGN: dict[str, Callable[[Path], Path]] = {
    "another zip file": lambda path: zipped(path, {"a": b""}),
    "a path that leads out of a directory": lambda path: zipped(path, {**GOOD, "../../evil": b""}),
    "an absolute path": lambda path: zipped(path, {**GOOD, "/etc/evil": b""}),
    "code": lambda path: zipped(path, {**GOOD, "mjlab_dist.py": b""}),
    "control characters": lambda path: zipped(path, {**GOOD, "\x1b[2J\n": b""}),
    "a link": lambda path: zipped(path, without("metrics.jsonl"), lambda z: z.writestr(link("metrics.jsonl"), "/etc")),
    "no manifest": lambda path: zipped(path, without(MANIFEST)),
    "no checkpoint": lambda path: zipped(path, without(CHECKPOINT)),
    "no config": lambda path: zipped(path, without("config.yaml")),
    "a compressed checkpoint": lambda path: zipped(path, GOOD, kind=zipfile.ZIP_DEFLATED),
    "an unusual compression": lambda path: zipped(path, without(CHECKPOINT), kind=zipfile.ZIP_LZMA),
    "a zip bomb": lambda path: zipped(path, GOOD | {"config.yaml": bytes(5 << 20)}),
    "a manifest that is not JSON": lambda path: zipped(path, GOOD | {MANIFEST: b"{"}),
    "a manifest that is nested deeply": lambda path: zipped(path, GOOD | {MANIFEST: b"[" * 60_000}),
    "a manifest that is a list": lambda path: zipped(path, GOOD | {MANIFEST: b"[]"}),
    "a manifest without a task": lambda path: zipped(path, GOOD | {MANIFEST: b'{"format": 1}'}),
    "a newer format": lambda path: zipped(path, GOOD | {MANIFEST: b'{"format": 2, "task": "a", "checkpoint": "b"}'}),
}


def twice(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about duplicate names
        return zipped(path, GOOD, lambda z: z.writestr("config.yaml", "task: other\n"))


@pytest.mark.parametrize("make", [*FOREIGN.values(), twice], ids=[*FOREIGN, "a file twice"])
def test_foreign_files_are_refused_in_one_line(tmp_path: Path, make: Callable[[Path], Path]):
    path = make(tmp_path / "foreign.zip")
    for find in (
        lambda: find_run(str(tmp_path), "walk", str(path)),
        lambda: find_any_run(str(tmp_path), str(path)),
    ):
        with pytest.raises(UserError, match=r"foreign\.zip: ") as caught:
            find()
        assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_cut_file_is_refused(pack: Path):
    data = pack.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        pack.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"walk\.zip: "):
            check_pack(pack, "--run")


def test_flipped_bits_never_give_other_contents(pack: Path):
    data, rng = pack.read_bytes(), random.Random(1)
    num_refused = 0
    for _ in range(300):
        at = rng.randrange(len(data))
        pack.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            check_pack(pack, "--run")
            found = {name: read_part(pack, name) for name in GOOD}
        except (UserError, OSError):
            num_refused += 1
        else:
            assert found == GOOD  # the bit is outside the content, for example in a timestamp
    assert num_refused > 200


def test_a_file_with_a_wrong_size_does_not_fill_the_memory(tmp_path: Path):
    path = zipped(tmp_path / "bomb.zip", GOOD | {"metrics.jsonl": bytes(100 << 20)}, kind=0)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in GOOD.items():
            kind = zipfile.ZIP_STORED if name == CHECKPOINT else zipfile.ZIP_DEFLATED
            archive.writestr(name, bytes(100 << 20) if name == "metrics.jsonl" else data, kind)
    # Let the headers in the zip file state a size of 1000 bytes
    written, real = path.read_bytes(), struct.pack("<L", 100 << 20)
    assert written.count(real) == 2
    path.write_bytes(written.replace(real, struct.pack("<L", 1000)))
    check_pack(path, "--run")
    tracemalloc.start()
    with pytest.raises(UserError, match=r"metrics\.jsonl in it is damaged"):
        read_part(path, "metrics.jsonl")
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_other_files_are_no_packs(tmp_path: Path):
    for name, data in (("empty", b""), ("text", b"hello"), ("half", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(data)
        assert not is_pack(tmp_path / name)
        with pytest.raises(UserError, match=name):
            find_run(str(tmp_path), "walk", str(tmp_path / name))
    assert not is_pack(tmp_path)
    assert not is_pack(tmp_path / "missing")


def test_a_pack_is_read_where_it_is_and_cannot_be_resumed(pack: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"config\.yaml|line 1|walk"):
        read_config_file(pack)  # its config has no env
    with pytest.raises(UserError, match="--init-from"):
        find_run_to_resume(str(tmp_path), "walk", str(pack))


def test_interrupted_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_pack(tmp_path / "walk.zip", GOOD)
    assert not list(tmp_path.iterdir())


def test_the_umask_decides_who_can_read(tmp_path: Path):
    import os

    before = os.umask(0o027)
    try:
        write_pack(tmp_path / "walk.zip", GOOD)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "walk.zip").stat().st_mode) == 0o640


def test_a_checkpoint_that_is_compressed_is_refused(tmp_path: Path):
    import torch

    from mjlab_dist.learn import checkpoint

    buffer = io.BytesIO()
    torch.save({"actor_state_dict": {"weight": torch.zeros(1 << 18)}}, buffer)
    bomb = tmp_path / "model_1.pt"
    with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for info in plain.infolist():
            packed.writestr(info.filename, plain.read(info))
    assert bomb.stat().st_size < 1 << 14
    with pytest.raises(UserError, match="larger than the file"):
        checkpoint.load(bomb, "cpu")
