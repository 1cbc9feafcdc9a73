"""Log records of the agent."""

from __future__ import annotations

from conftest import Command

REPORT = """
import logging
import sys

from torch.distributed.elastic.multiprocessing import api

from mjlab_dist.launch import agent

assert api.logger.name == agent.REPORTS_FAILURES
api.logger.addFilter(agent.format_error)
try:
    1 / 0
except ZeroDivisionError:
    api.logger.exception("a rank failed")
print("torch._dynamo" in sys.modules)
"""


def test_a_failed_rank_is_reported_with_its_error_without_the_compiler_of_torch(command: Command) -> None:
    done = command(command.script(REPORT))
    assert done.out == "False\n", done.err
    first, *_, last = (line.partition("] ")[2] for line in done.err.splitlines())
    assert first == "a rank failed"
    assert last.startswith("ZeroDivisionError: ")
