"""Stop a command at once."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.conftest import Command

GOES_ON = """
import signal, subprocess, sys, tempfile, threading
from mjlab_dist.control import Control
from mjlab_dist.launch.signals import stopping_on_signal

class Stopper:
    can_stop_gracefully = False

    def stopped(self, signum):
        ending.set()
        gone_on.wait(0.2)

ending, gone_on = threading.Event(), threading.Event()
with stopping_on_signal(Control(), Stopper()):
    signal.raise_signal(signal.SIGTERM)
    ending.wait()
    exec(sys.argv[1])
    gone_on.set()
"""
"""Program whose main thread goes on, with code from the command line, while another thread ends the program."""


MAKES_DIRECTORY = "tempfile.mkdtemp()"

STARTS_PROCESS = "subprocess.Popen(['sleep', '3600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"


@pytest.mark.parametrize("code", [MAKES_DIRECTORY, STARTS_PROCESS])
def test_nothing_is_left_that_begins_while_a_command_ends_at_once(command: Command, code: str):
    done = command(sys.executable, "-c", GOES_ON, code, env={"TMPDIR": str(command.cwd)})
    assert done.code == 128 + signal.SIGTERM, done.err
    assert not list(command.cwd.iterdir())
    # The fixture finds processes that are left
