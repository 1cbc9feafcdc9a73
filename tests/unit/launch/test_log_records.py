"""What torchrunx's log process takes from its port."""

from __future__ import annotations

import logging
import os
import pickle
from logging.handlers import SocketHandler
from pathlib import Path

import pytest

from mjlab_dist.launch.log_records import plain_record


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_log_record_of_a_rank_arrives_unchanged():
    record = logging.makeLogRecord(
        {"name": "mjlab_dist", "levelno": logging.INFO, "msg": "%s is %d", "args": ("x", 3), "hostname": "node7"}
    )
    record.local_rank = 1
    record.event = {"kind": "iteration", "row": {"iteration": 3, "kl": 0.5, "mean_return": None}}
    data = SocketHandler("nowhere", 0).makePickle(record)[4:]
    fields = plain_record(data)
    assert fields["msg"] == "x is 3"
    assert fields["local_rank"] == 1
    assert fields["event"]["row"] == {"iteration": 3, "kl": 0.5, "mean_return": None}


@pytest.mark.parametrize("nested", [False, True])
def test_a_record_that_would_run_code_becomes_a_warning(tmp_path: Path, nested: bool):
    target = tmp_path / "executed"
    fields = plain_record(pickle.dumps({"event": Touch(target)} if nested else Touch(target)))
    assert not target.exists()
    record = logging.makeLogRecord(fields)
    assert record.levelno == logging.WARNING
    assert "mkdir" in record.getMessage()


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps([1, 2]), pickle.dumps({"name": "x"})])
def test_data_that_is_not_a_record_becomes_a_warning(data: bytes):
    record = logging.makeLogRecord(plain_record(data))
    assert record.levelno == logging.WARNING
    assert record.name == "root"
