"""Check whether the packages that this package requires are installed, always or for an extra."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement

from mjlab_dist.errors import UserError

# This distribution
PACKAGE = "mjlab-dist"


def require_extra(extra: str, user: str) -> None:
    """Raise unless the packages of an extra are installed, in versions that work.

    Args:
        extra: Name of the extra, as in pyproject.toml.
        user: What needs the extra, such as a flag with its value. The message starts with it.

    Raises:
        UserError: One line with the first package that is missing or has another version, and the commands to install
            it.
    """
    for wrong in unmet(each for each in requirements(extra) if each.marker):  # the others are checked before a launch
        raise UserError(f'{user}: {wrong}; uv sync --inexact --extra {extra}, or pip install "{PACKAGE}[{extra}]"')


def requirements(extra: str = "") -> list[Requirement]:
    """Return the requirements of this package on this machine, including those of an extra if one is named."""
    required = map(Requirement, metadata.requires(PACKAGE) or ())
    return [each for each in required if each.marker is None or each.marker.evaluate({"extra": extra})]


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
