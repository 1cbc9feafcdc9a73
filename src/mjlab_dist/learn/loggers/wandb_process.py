"""The process that runs Weights & Biases, so that its delays and errors do not affect training.

:class:`~mjlab_dist.learn.loggers.wandb_logger.WandbLogger` runs this file as a script. Both communicate over the
socket that is the script's standard input, with one JSON object per line:

- To the script: first the arguments of ``wandb.init``, then ``{"step": int, "values": {name: float}}`` per row,
  ``{"step": int, "video": {"file", "caption"}}`` per video, and ``{"checkpoint": {"file", "name", "iteration",
  "is_best"}}`` per checkpoint. The last message is ``{"close": true}``.
- From the script: ``{"started": {"entity", "project", "id"}}``, ``{"finished": bool}`` and ``{"failed": reason}``.
  ``finished`` is true if everything is uploaded. After ``finished`` or ``failed``, the script waits until it is killed,
  together with wandb's service process.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil

# Why not call wandb in rank 0 and rely on its own service process, wandb-core? Measured with wandb 0.31:
# - run.log blocks while wandb-core is stopped (SIGSTOP), and raises after wandb-core has been killed.
# - wandb.init waits for a network until init_timeout, and raises without an API key. It does not go offline by itself.
# - After a SIGKILL of the caller, wandb-core ends by itself unless SIGSTOP has stopped it. wandb-symon ends 4 s after
#   wandb-core has been killed. Both leave sockets and directories in TMPDIR.
# wandb itself does the rest: files of offline runs, uploads, the timeout of finish, and resuming a run by its id.

PR_SET_PDEATHSIG = 1
"""Operation of prctl(2) that sets the signal that a process receives when its parent ends."""

PR_SET_CHILD_SUBREAPER = 36
"""Operation of prctl(2): descendants whose parent ends become children of this process."""


def main(temporary: str) -> None:
    """Serve one run."""
    end = functools.partial(_end, temporary)
    _call_with_parents_end(end)
    link = socket.socket(fileno=os.dup(0))
    # Replace standard input. Otherwise, wandb's service process would inherit it and keep the link open.
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    with link.makefile("rb") as lines:
        messages = map(json.loads, lines)
        try:
            _serve(link, messages)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (wandb raises anything)
            _answer(link, failed=_first_line(error))
        for _ in messages:
            pass  # wait until the parent kills this process or ends
    end()


def _call_with_parents_end(end: Callable[..., NoReturn]) -> None:
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # so that _end finds all of wandb's processes


def _end(temporary: str, *_: object) -> NoReturn:
    """Kill wandb's processes, which would need seconds to end by themselves, and end this process."""
    for process in psutil.Process().children(recursive=True):
        process.kill()
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(0)


def _serve(link: socket.socket, messages: Iterator[dict[str, Any]]) -> None:
    first = next(messages)
    sys.argv = first["argv"]  # wandb records the command line
    import wandb  # it reads sys.argv

    run = wandb.init(**first["init"], settings=wandb.Settings(**first["settings"]))
    # Without a network, the account is unknown.
    entity = None if run.offline or run.disabled else run.entity
    _answer(link, started={"entity": entity, "project": run.project, "id": run.id})
    for message in messages:
        if "close" in message:
            try:
                run.finish()
                wandb.teardown()  # waits until the service process has written all rows to disk
            except TimeoutError:
                _answer(link, finished=False)
            else:
                _answer(link, finished=True)
            return
        if "checkpoint" in message:
            _log_checkpoint(run, message["checkpoint"])
            continue
        # In a resumed run, wandb drops steps that it already has, with a warning.
        video = message.get("video")
        values = message["values"] if video is None else {"video": wandb.Video(video["file"], caption=video["caption"])}
        run.log(values, step=message["step"])


def _log_checkpoint(run: Any, sent: dict[str, Any]) -> None:
    """Log a checkpoint as a version of the run's artifact. wandb copies the file, and uploads it in the background."""
    import wandb

    artifact = wandb.Artifact(f"checkpoint-{run.id}", type="model", metadata={"iteration": sent["iteration"]})
    artifact.add_file(sent["file"], name=sent["name"])
    Path(sent["file"]).unlink()
    best = ["best"] if sent["is_best"] else []
    run.log_artifact(artifact, aliases=["latest", f"iteration-{sent['iteration']}", *best])


def _answer(link: socket.socket, **message: Any) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


if __name__ == "__main__":
    main(sys.argv[1])
