"""Logger for Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.imports import patched
from mjlab_dist.learn.loggers import Logger
from mjlab_dist.messages import emit
from mjlab_dist.runs.provenance import masked
from mjlab_dist.runs.run_dir import (
    BEST_LINK,
    CHECKPOINTS_DIR,
    WANDB_FILE,
    WandbRun,
    follow_link,
    read_wandb_run,
    write_wandb_run,
)

# Maximum seconds for the server to answer at the start; after that, rows are stored offline
INIT_S = 15.0

# Maximum seconds that the end of a run waits for W&B to start: its import, INIT_S, and a start offline
START_S = 60.0

# Maximum seconds that the end of a run waits for uploads, and with `--checkpoint.wandb` for those of checkpoints
FINISH_S = 4.5
FINISH_FILES_S = 60.0

# Additional seconds in which wandb must react to the end of FINISH_S
GRACE_S = 5.0

# Maximum number of waiting rows, of about 4 kB each
MAX_WAITING = 10_000


class WandbLogger(Logger):
    """Logger for Weights & Biases.

    It is offline if W&B's environment variables request this, or if W&B cannot start online. A thread calls wandb,
    because wandb.init waits for the server, and run.log waits for wandb's service process. Only :meth:`close` waits.

    Raises:
        Exception: Any error of wandb, in the next call after it.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:  # noqa: ARG002
        """Start a W&B run, or continue it if the run is resumed."""
        self._run_dir = run_dir
        self._config = config
        found = read_wandb_run(run_dir)
        if found is None and (run_dir / WANDB_FILE).exists():
            _warn(f"gets a new run, because {run_dir / WANDB_FILE} cannot be read")
        self._run = found or WandbRun(project=config.wandb_project)
        write_wandb_run(run_dir, self._run)
        self._finish_s = FINISH_FILES_S if config.checkpoint.wandb else FINISH_S
        self._step = 0
        self._wandb: Any = None
        self._calls: queue.Queue[Callable[[Any], object] | None] = queue.Queue(MAX_WAITING)
        self._error: BaseException | None = None
        self._started = threading.Event()
        # Users' scripts may have a service process of wandb, whose runs go on
        self._owns_service = "WANDB_SERVICE" not in os.environ
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def log(self, row: Mapping[str, float], step: int) -> None:
        # In a resumed run, wandb drops steps that it already has
        self._step, values = step, dict(row)
        self._put(lambda run: run.log(values, step=step))

    def video(self, file: Path, iteration: int) -> None:
        """Log a video at the step of the last row, because Weights & Biases refuses earlier steps."""
        step, caption = self._step, f"iteration {iteration}"
        self._put(lambda run: run.log({"video": self._wandb.Video(str(file), caption=caption)}, step=step))

    def checkpoint(self, file: Path, iteration: int) -> None:
        """With ``--checkpoint.wandb``, log a hard link, which wandb can still read after the file was pruned."""
        if not self._config.checkpoint.wandb:
            return
        copy = self._run_dir / "wandb" / f".{file.name}"
        try:
            copy.parent.mkdir(exist_ok=True)
            copy.unlink(missing_ok=True)
            copy.hardlink_to(file)
        except OSError as error:
            _warn(f"does not get the checkpoint of iteration {iteration} ({error.strerror})")
            return
        best = self._run_dir / CHECKPOINTS_DIR / BEST_LINK
        is_best = best.is_symlink() and follow_link(best).name == file.name
        aliases = ["latest", f"iteration-{iteration}", *(["best"] if is_best else [])]

        def log(run: Any) -> None:
            artifact = self._wandb.Artifact(f"checkpoint-{run.id}", type="model", metadata={"iteration": iteration})
            artifact.add_file(str(copy), name=file.name)  # copies the file
            copy.unlink()
            run.log_artifact(artifact, aliases=aliases)

        self._put(log)

    def close(self) -> None:
        """Send the remaining rows, and end wandb's service process."""
        self._put(None)
        if self._started.wait(START_S):
            self._thread.join(self._finish_s + GRACE_S)
        if self._thread.is_alive():
            self._error = TimeoutError(f"it did not end within {self._finish_s:g} s")
        self._raise()

    def _put(self, call: Callable[[Any], object] | None) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._error = TimeoutError(f"it has accepted no rows for {MAX_WAITING} iterations")
        self._raise()

    def _raise(self) -> None:
        """If the thread has failed, end the service process, and raise the error."""
        if self._error is None:
            return
        for copy in (self._run_dir / "wandb").glob(".model_*.pt"):
            copy.unlink(missing_ok=True)
        if self._owns_service:
            import psutil

            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name().startswith("wandb-"):
                        process.kill()
            with contextlib.suppress(Exception):
                self._teardown()  # otherwise, it fails when Python exits, with a traceback
        raise self._error

    # Called in the thread

    def _work(self) -> None:
        try:
            run = self._start()
            self._started.set()
            while (call := self._calls.get()) is not None:
                call(run)
            try:
                run.finish()
            except TimeoutError:
                _warn(f"did not accept all rows in time; {self._where(run.offline)}")
            self._teardown()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (wandb raises anything)
            self._error = error
        finally:
            self._started.set()

    def _start(self) -> Any:
        import wandb

        self._wandb = wandb
        wandb.setup(wandb.Settings(silent=True))  # otherwise, it prints where the API key is from, or asks for one
        try:
            run = self._init(None)
        except Exception as error:
            if os.environ.get("WANDB_MODE") in {"offline", "dryrun", "disabled"}:
                raise
            reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
            _warn(f"cannot be reached ({reason}); {self._where(is_offline=True)}")
            self._teardown()  # otherwise, the id would be in use
            run = self._init("offline")
        # Without a network, the account is unknown
        entity = None if run.offline or run.disabled else run.entity
        self._run = WandbRun(entity=entity, project=run.project, id=run.id)
        write_wandb_run(self._run_dir, self._run)
        return run

    def _init(self, mode: str | None) -> Any:
        settings = self._wandb.Settings(
            silent=True,
            console="off",
            program=sys.argv[0],
            init_timeout=INIT_S,
            finish_timeout=self._finish_s,
            finish_timeout_raises=True,
            x_transaction_log_flush_interval=1.0,  # in s: if wandb is killed, rows of the last second may be lost
        )
        with patched(sys, "argv", masked(sys.argv)):  # wandb.init records the command line
            return self._wandb.init(
                entity=self._run.entity,
                project=self._run.project,
                id=self._run.id,
                name=self._run_dir.name,
                dir=str(self._run_dir),
                config=to_plain(self._config),
                resume="allow",
                reinit="create_new",  # beside a run of the user's script
                mode=mode,
                settings=settings,
            )

    def _teardown(self) -> None:
        """End the service process, after it has written all rows to disk."""
        if self._owns_service:
            self._wandb.teardown()

    def _where(self, is_offline: bool) -> str:
        # The pattern itself stays without quotes
        files = f"{shlex.quote(str(self._run_dir))}/wandb/{'offline-' if is_offline else ''}run-*"
        return f"rows are kept in this run's directory, and `uv run wandb sync {files}` uploads them"


def _warn(text: str) -> None:
    emit("warning", text=f"Weights & Biases {text}")
