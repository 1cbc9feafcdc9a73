"""Start Warp without its output, and turn warnings of MuJoCo and MuJoCo Warp into events.

Otherwise, warnings would be lines on stderr and in a file MUJOCO_LOG.TXT.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco

import mjlab_dist
from mjlab_dist.errors import PreflightError
from mjlab_dist.messages import emit

# Folder of this package. The package issues no Python warnings, so warnings that name its files are from MuJoCo.
_PACKAGE = Path(mjlab_dist.__file__).parent


@contextlib.contextmanager
def warnings_to(handle: Callable[[str], object]) -> Iterator[None]:
    """Pass warnings of MuJoCo's C code to a function until the context ends, instead of writing them to a file."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(handle)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Turn warnings of MuJoCo into events of the kind ``debug`` until the context ends. ``--verbose`` prints them.

    Otherwise, MuJoCo's C code would print the warnings and append them to the file MUJOCO_LOG.TXT in the current
    directory, and MuJoCo's bindings and MuJoCo Warp would issue Python warnings. Python warnings of other code are
    issued as usual.
    """
    texts: dict[str, None] = {}

    caught: list[warnings.WarningMessage] = []
    try:
        with warnings_to(lambda text: texts.update({text: None})), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        for warning in caught:
            # Warnings of MuJoCo's bindings name the file of the code that called them, such as a file of this package
            text, file = str(warning.message), Path(warning.filename)
            is_repeated = bool(texts) and text.startswith(tuple(texts))
            is_of_call = file.is_relative_to(_PACKAGE) or "is deprecated" in text
            if is_repeated or is_of_call or "mujoco_warp" in file.parts:
                texts[text] = None
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        for text in texts:
            emit("debug", text=f"MuJoCo: {' '.join(text.split())}")


def start_warp(device: str) -> None:
    """Initialize Warp. On the CPU, hide Warp's warning about a missing NVIDIA driver, which no setting disables.

    Args:
        device: ``cpu`` or ``cuda:<index>``.

    Raises:
        PreflightError: If the directory for compiled kernels cannot be created or written to.
    """
    import warp as wp  # not needed on the way to MuJoCo's models

    wp.config.log_level = wp.LOG_WARNING
    wp.config.cuda_output = "cubin"  # machine code; the driver of each rank would compile PTX again at every start
    try:
        with _native_stderr_closed() if device == "cpu" else contextlib.nullcontext():
            wp.init()
    except OSError as error:
        if error.filename is None:
            raise  # one of Warp's libraries cannot be loaded
        raise _unwritable(error.filename, error.strerror) from error
    assert wp.config.kernel_cache_dir is not None
    if not os.access(wp.config.kernel_cache_dir, os.W_OK | os.X_OK):
        raise _unwritable(wp.config.kernel_cache_dir, "cannot be written")


def _unwritable(directory: str, why: str | None) -> PreflightError:
    setting = "WARP_CACHE_PATH"
    return PreflightError(f"{setting} {directory}: {why}; set {setting} to a directory that you can write to")


@contextlib.contextmanager
def _native_stderr_closed() -> Iterator[None]:
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
