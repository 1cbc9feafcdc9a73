"""Start ranks, and restart them from the newest checkpoint after a failure."""

from __future__ import annotations

from mjlab_dist import worker
from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.errors import Exit, RankError
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.messages import Event, Listener
from mjlab_dist.worker import RunResult


def run_with_restarts(config: TrainConfig, plan: RunPlan, listen: Listener, control: Control) -> RunResult:
    """Start ranks, and restart them up to ``max_restarts`` times as long as each attempt gets further than the last.

    Args:
        config: The run's config.
        plan: Plan of the run; ranks resume from the newest checkpoint in its run directory.
        listen: Receives progress.
        control: A stop request also prevents restarts.

    Returns:
        The result of rank 0.

    Raises:
        RankError: If a rank ended early and the run is not restarted.
    """
    from mjlab_dist.launch.ranks import run_ranks  # noqa: PLC0415 (torchrunx imports torch)

    # The furthest iteration of all attempts
    reached = 0

    def listen_for_progress(event: Event) -> None:
        nonlocal reached
        if event["kind"] == "iteration":
            reached = max(reached, event["row"]["iteration"])
        listen(event)

    for attempt in range(config.max_restarts + 1):
        before = reached
        try:
            results = run_ranks(
                worker.run, RunResult, config, plan, listen=listen_for_progress, control=control, attempt=attempt
            )
            return _raise_if_stopped_by_others(results[0], control)
        except RankError as error:
            # Non-finite numbers and ranks that differ would recur
            if config.max_restarts == 0 or error.exit_code is Exit.NUMERICS or control.stop_requested:
                raise
            if attempt == config.max_restarts:
                raise _with_reason(error, f"Giving up after {attempt} restart{'s' if attempt > 1 else ''}") from None
            if reached == before:
                raise _with_reason(error, "Not restarting: this attempt completed no new iteration") from None
            # Restart
            listen({"kind": "status", "text": error.report.rstrip()})
            listen({"kind": "warning", "text": f"{error}. Restarting ({attempt + 1} of {config.max_restarts})."})
    raise AssertionError("the last attempt returns or raises")


def _raise_if_stopped_by_others(result: RunResult, control: Control) -> RunResult:
    """Return the result; raise if the ranks stopped without a request of the launcher.

    When torchrunx loses an agent, it sends SIGTERM to the ranks, which then stop as if the user had requested it.
    """
    if result.stopped and not control.stop_requested:
        raise RankError(
            "a rank received SIGTERM, but not from its launcher: another program sent it, or torchrunx did after it "
            f"lost a machine or an agent. The run stopped and saved {result.checkpoint}",
            exit_code=Exit.INFRASTRUCTURE,
        )
    return result


def _with_reason(error: RankError, reason: str) -> RankError:
    return RankError(f"{error}. {reason}", error.rank, error.report, error.exit_code)
