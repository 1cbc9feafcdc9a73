"""Stop a command at once."""

from __future__ import annotations

import signal
import sys

import pytest
from conftest import Command

GOES_ON = """
import os, signal, subprocess, sys, tempfile, threading
import psutil
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch.signals import stopping_on_signal

class Stopper:
    can_stop_gracefully = False

    def stopped(self, signum):
        gone_on.wait(0.2)

def note(event, _):
    if event == "sys.addaudithook":
        ending.set()

def end():
    signal.raise_signal(signal.SIGTERM)
    ending.wait()

class EndsWhileRead(dict):
    def items(self):
        end()
        return super().items()

ending, gone_on = threading.Event(), threading.Event()
sleep, quiet = ["sleep", "3600"], {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
sys.addaudithook(note)
with stopping_on_signal(Control(), Stopper()):
    exec(sys.argv[1])
    gone_on.set()
"""
"""Program whose main thread goes on, with code from the command line, while another thread ends the program."""


@pytest.mark.parametrize(
    "code",
    [
        "end(); tempfile.mkdtemp()",
        "end(); subprocess.Popen(sleep, **quiet)",
        "subprocess.Popen(sleep, **quiet, env=EndsWhileRead(os.environ))",
    ],
    ids=["directory", "process", "process in the middle of its start"],
)
def test_nothing_is_left_that_begins_while_a_command_ends_at_once(command: Command, code: str):
    done = command(sys.executable, "-c", GOES_ON, code, env={"TMPDIR": str(command.cwd)})
    assert done.code == 128 + signal.SIGTERM, done.err
    assert not list(command.cwd.iterdir())
    # The fixture finds processes that are left
