"""Prepare a launch (start of ranks) for the next restart while ranks train, to avoid waiting for imports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from mjlab_dist.config import TrainConfig
from mjlab_dist.launch.hosts import end_on_hosts, in_thread
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.preparation import Launch, end_processes, prepared
from mjlab_dist.machine.findings import GB
from mjlab_dist.machine.memory import free_cpu_bytes
from mjlab_dist.messages import Listener

NEEDED_BYTES = 4 * GB
"""Minimum free memory to prepare a spare launch, in bytes. A spare launch uses about a fifth of this memory. If memory
is short, ranks may be killed, and a spare launch would make that more likely."""


class Spare:
    """Prepares the next launch of a run: its agents (one process per machine) start and import their libraries."""

    def __init__(self, config: TrainConfig, plan: RunPlan, listen: Listener) -> None:
        """Store the arguments; :meth:`prepare` starts the preparation.

        Args:
            config: The run's config.
            plan: Devices, hosts and run directory.
            listen: Receives lines that only ``--verbose`` shows.
        """
        self._config = config
        self._plan = plan
        self._listen = listen
        self._leftovers: dict[str, list[str]] = {}
        self._preparing: threading.Thread | None = None
        self._waiting: contextlib.ExitStack | None = None
        self._launch: Launch | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End the prepared launch."""
        self._discard()

    def prepare(self, attempt: int) -> None:
        """Prepare a launch in a separate thread, unless one is ready or being prepared.

        Args:
            attempt: As in :func:`prepared`.
        """
        if self._preparing is None:
            self._preparing = threading.Thread(target=self._prepare, args=(attempt,), name="spare", daemon=True)
            self._preparing.start()

    def _prepare(self, attempt: int) -> None:
        if free_cpu_bytes() < NEEDED_BYTES:
            return
        # If this fails, for example because no port is free, the restart prepares its launch itself
        with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
            self._launch = stack.enter_context(prepared(self._config, self._plan, attempt, self._listen))
            self._waiting = stack.pop_all()

    @contextlib.contextmanager
    def launch(self, attempt: int) -> Iterator[Launch]:
        """Return the prepared launch. If there is none, or if an agent of it has ended, return a new launch.

        Args:
            attempt: As in :func:`prepared`.
        """
        with contextlib.ExitStack() as stack:
            if self._is_usable():
                assert self._waiting is not None
                assert self._launch is not None
                stack.enter_context(self._waiting)
                launch = self._launch
                self._preparing = self._waiting = self._launch = None
            else:
                self._discard()
                launch = stack.enter_context(prepared(self._config, self._plan, attempt, self._listen))
            yield launch

    def answering(self) -> set[str]:
        """Wait for the preparation, and return the machines whose agents answer; none if there is no spare launch."""
        if self._preparing is not None:
            self._preparing.join()
        if self._launch is None:
            return set()
        checks = {agent.host: in_thread(f"agent on {agent.host}", agent.answers) for agent in self._launch.agents}
        return {host for host, check in checks.items() if check.result()}

    def keep_if_answering(self) -> None:
        """Discard the prepared launch if any of its agents does not answer."""
        if self.answering() != set(self._plan.host_names):
            self._discard()

    def replan(self, plan: RunPlan) -> None:
        """Discard the prepared launch, and use a different plan for the next launches.

        Args:
            plan: The run's plan on the machines that answer.
        """
        self._discard(set(plan.host_names))
        self._plan = plan

    def end(self, launch: str, hosts: Sequence[str]) -> None:
        """Kill all processes of a launch, and record the machines that do not answer.

        Args:
            launch: Name of the launch.
            hosts: Machines; the first is this machine.
        """
        for host in end_processes(self._config, hosts, launch, self._listen):
            self._leftovers.setdefault(host, []).append(launch)

    def end_leftovers(self, hosts: Sequence[str]) -> None:
        """Kill processes of earlier launches on machines that did not answer when these launches ended.

        These processes would use memory that the next ranks need.

        Args:
            hosts: Machines that answer now; the first is this machine.
        """
        for host in set(self._leftovers).intersection(hosts):
            for launch in self._leftovers.pop(host):
                end_on_hosts((hosts[0], host), self._config.ssh_config, launch)

    def _is_usable(self) -> bool:
        if self._preparing is not None:
            self._preparing.join()
        return self._launch is not None and not any(agent.ended() for agent in self._launch.agents)

    def _discard(self, answering: set[str] | None = None) -> None:
        """End the prepared launch.

        Args:
            answering: Machines that answer; None if all may answer. The launcher does not wait for other machines.
        """
        if self._preparing is not None:
            self._preparing.join()
        if self._waiting is not None and self._launch is not None:
            here, *others = self._plan.host_names
            reached = [host for host in others if answering is None or host in answering]
            self.end(self._launch.name, [here, *reached])
            for host in set(others).difference(reached):
                self._leftovers.setdefault(host, []).append(self._launch.name)
            self._waiting.close()
        self._preparing = self._waiting = self._launch = None
