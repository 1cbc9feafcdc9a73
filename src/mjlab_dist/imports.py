"""Import the libraries of a rank quickly, and say which optional packages are missing.

This module itself imports only the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

T = TypeVar("T")

# Packages that rsl_rl imports for its own writers of metrics. No rank uses these writers.
UNUSED = ("wandb", "neptune")

# Values of MUJOCO_GL that MuJoCo knows, and names of the library without which it cannot be imported, if any
OPENGL_LIBRARIES = {
    "egl": ("libEGL.so.1",),
    "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"),
    **dict.fromkeys(("", "enable", "enabled", "on", "true", "1", "glfw", "glx", "cgl"), ()),
    **dict.fromkeys(("disable", "disabled", "off", "false", "0"), ()),
}

# This distribution
PACKAGE = "mjlab-dist"


@contextlib.contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module, a class or an object, and restore it on exit."""
    getattr(owner, name)
    # Read the original from vars: getattr unwraps static methods, binds other methods, and finds inherited attributes.
    own = vars(owner)
    is_own, original = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def no_gc(*, promotes: bool = False) -> Iterator[None]:
    """Pause the garbage collector; on exit, resume it if it was enabled."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # Objects that the user has frozen must stay frozen.
            if promotes and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()  # moves all objects into the oldest generation
            gc.enable()


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Make garbage collections inside the context faster: they do not visit objects that exist on entry.

    A collection that visits all objects of torch, Warp and MuJoCo Warp takes a third of a second.
    """
    if gc.get_freeze_count() > 0:  # objects that the user has frozen must stay frozen
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def start_up() -> contextlib.AbstractContextManager[None]:
    """Pause the garbage collector while many modules are imported, because it would take a third of the import time.

    Afterwards the modules' objects count as old, so that the frequent collections of young objects do not visit them.
    """
    return no_gc(promotes=True)


def import_learner() -> None:
    """Import torch, tensordict and rsl_rl without their unused parts; for a process that only trains.

    tensordict imports all of torch's compiler only to mark a few functions for the compiler, and rsl_rl imports Weights
    & Biases. These two imports take a third of the time of all imports. torch.compile still works without the marks: it
    compiles those functions like any other. Do not call this in a user's own process, such as a notebook: other code
    there may need the skipped parts.
    """
    with start_up():
        import torch

        with (
            patched(torch.compiler, "allow_in_graph", _unmarked),
            patched(torch.compiler, "assume_constant_result", _unmarked),
            _absent(UNUSED),
        ):
            import rsl_rl.algorithms  # noqa: F401 (imports tensordict)


def import_triton() -> None:
    """Import Triton, if torch has it. Call this before MuJoCo renders or opens a window.

    Mesa's OpenGL makes the symbols of its LLVM visible to all libraries that are loaded later. Triton, which
    torch.optim imports, has an LLVM of its own: if it is loaded after Mesa, it calls the wrong one and crashes.
    """
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401


def prepare_opengl(environ: MutableMapping[str, str]) -> str:
    """Make imports of MuJoCo independent of MUJOCO_GL. Call this before the first of them.

    MuJoCo cannot be imported if it does not know the variable's value, or if the value needs a library that is missing.
    Such a value is removed, so that rendering uses the default. MuJoCo loads OSMesa when it is imported, so Triton must
    be imported first (see :func:`import_triton`).

    Returns:
        A warning about a removed value, in one line; empty if nothing was removed.
    """
    chosen = environ.get("MUJOCO_GL", "")
    name = chosen.lower().strip()
    libraries = OPENGL_LIBRARIES.get(name)
    problem = ""
    if libraries is None:
        problem = "MuJoCo does not know this value"
    elif libraries and not any(map(is_loadable, libraries)):
        problem = f"{libraries[0]} cannot be loaded"
    if problem:
        del environ["MUJOCO_GL"]
        return f"MUJOCO_GL {chosen}: {problem}; the variable is ignored"
    if name == "osmesa":
        import_triton()
    return ""


def is_loadable(library: str) -> bool:
    """Return whether a shared library can be loaded."""
    import ctypes  # commands that do not render start faster without it

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _unmarked(function: T) -> T:
    return function


@contextlib.contextmanager
def _absent(names: Sequence[str]) -> Iterator[None]:
    """Make imports of packages fail, as if they were not installed. Packages imported earlier stay imported."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] (Python documents None as "not importable")
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def require_extra(extra: str, user: str) -> None:
    """Raise unless the packages of an extra are installed, in versions that work.

    Args:
        extra: Name of the extra, as in pyproject.toml.
        user: What needs the extra, such as a flag with its value. The message starts with it.

    Raises:
        UserError: One line with the packages that are missing or have another version, and the command to install
            them.
    """
    if wrong := unmet(requirements(extra)):
        raise UserError(f'{user}: {", ".join(wrong)}; uv pip install "{PACKAGE}[{extra}]", or the same with pip')


def requirements(extra: str = "") -> list[Requirement]:
    """Return the requirements of an extra, or of the package itself, on this machine."""
    from importlib import metadata  # slow to import, as the next one

    from packaging.requirements import Requirement

    def holds(each: Requirement, extra: str) -> bool:
        return each.marker is None or each.marker.evaluate({"extra": extra})

    required = map(Requirement, metadata.requires(PACKAGE) or ())
    return [each for each in required if holds(each, extra) and not (extra and holds(each, ""))]


def unmet(required: Iterable[Requirement]) -> list[str]:
    """Return a text per package that is missing or has another version than is required."""
    from importlib import metadata

    wrong: list[str] = []
    for each in required:
        try:
            installed = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            installed = "is missing"
        if installed == "is missing" or not each.specifier.contains(installed, prereleases=True):
            wrong.append(f"{each.name} {installed} ({each.specifier} is needed)")
    return wrong
