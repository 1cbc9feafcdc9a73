"""Start ranks, and start them again from the newest checkpoint where that can help."""

from __future__ import annotations

from mjlab_dist import worker
from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.errors import Exit, RankError
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.messages import Event, Listener
from mjlab_dist.worker import RunResult


def run_with_restarts(config: TrainConfig, plan: RunPlan, listen: Listener, control: Control) -> RunResult:
    """Start ranks, and start them again up to ``max_restarts`` times as long as each attempt gets further than the one before.

    Args:
        config: The run's config.
        plan: What was settled; ranks continue from the newest checkpoint of its run directory.
        listen: Takes progress.
        control: A request to stop ends restarts too.

    Returns:
        The result of rank 0.

    Raises:
        RankError: If a rank ended early and another start cannot help.
    """
    from mjlab_dist.launch.ranks import run_ranks  # noqa: PLC0415 (torchrunx imports torch)

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
            return _as_asked(results[0], control)
        except RankError as error:
            if config.max_restarts == 0 or error.exit_code is Exit.NUMERICS or control.stop_requested:
                raise
            if attempt == config.max_restarts:
                raise _with_reason(error, f"given up after {attempt} restarts") from None
            if reached == before:
                raise _with_reason(error, "not started again, since it got no further than before") from None
            listen({"kind": "status", "text": error.report.rstrip()})
            listen({"kind": "warning", "text": f"{error}. Starting again ({attempt + 1} of {config.max_restarts})."})
    raise AssertionError("the last attempt returns or raises")


def _as_asked(result: RunResult, control: Control) -> RunResult:
    """The result of ranks that have stopped only if they were asked to: torchrunx sends them SIGTERM too, when it loses an agent."""
    if result.stopped and not control.stop_requested:
        raise RankError(
            "a rank was asked to stop (SIGTERM), and not by its launcher: by somebody else, or by torchrunx, which has lost a "
            f"machine or an agent. The run stopped in order, with {result.checkpoint}",
            exit_code=Exit.INFRASTRUCTURE,
        )
    return result


def _with_reason(error: RankError, reason: str) -> RankError:
    return RankError(f"{error}. The run is {reason}", error.rank, error.report, error.exit_code)
