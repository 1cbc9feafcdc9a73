"""Check whether the packages that this package or one of its extras requires are installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# This distribution
PACKAGE = "mjlab-dist"


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
    from packaging.requirements import Requirement  # slow to import

    def holds(each: Requirement, extra: str) -> bool:
        return each.marker is None or each.marker.evaluate({"extra": extra})

    required = map(Requirement, metadata.requires(PACKAGE) or ())
    return [each for each in required if holds(each, extra) and not (extra and holds(each, ""))]


def unmet(required: Iterable[Requirement]) -> list[str]:
    """Return a text per package that is missing or has another version than is required."""
    wrong: list[str] = []
    for each in required:
        try:
            installed = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            installed = "is missing"
        if installed == "is missing" or not each.specifier.contains(installed, prereleases=True):
            wrong.append(f"{each.name} {installed} ({each.specifier} is needed)")
    return wrong
