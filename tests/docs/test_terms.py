"""Generated pages match their source, guides start in the same way, and links lead to existing files and headings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from conftest import Command

from mjlab_dist import mdp

ROOT = Path(__file__).parents[2]

GUIDES = sorted((ROOT / "docs").glob("*.md"))

PAGES = (
    *(ROOT / page for page in ("README.md", "CHANGELOG.md", "examples/tasks/README.md")),
    *GUIDES,
    *sorted((ROOT / "tasks").glob("*/*/README.md")),
)

NO_TERMS = {"action_kernels", "data_files", "kernels", "mirror", "motor_kernels", "rotation"}
"""Modules of ``mjlab_dist.mdp`` that have no terms."""


@pytest.mark.slow
def test_the_page_of_all_terms_is_up_to_date(command: Command) -> None:
    program = str(ROOT / "scripts" / "terms_table.py")
    script = command.script(f"import runpy\nrunpy.run_path({program!r}, run_name='__main__')")
    done = command(script, "--check", env={"PYTHONPATH": str(ROOT / "scripts")})
    assert done.code == 0, done.err


@pytest.mark.parametrize("module", sorted({each.name for each in pkgutil.iter_modules(mdp.__path__)} - NO_TERMS))
def test_the_page_has_every_term_with_a_description(module: str) -> None:
    page = " ".join((ROOT / "docs" / "terms.md").read_text().split())
    found = importlib.import_module(f"mjlab_dist.mdp.{module}")
    names = [
        name
        for name, value in vars(found).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == found.__name__
        and not name.startswith("_")
    ]
    assert names
    assert not [name for name in names if not re.search(rf"\| \*\*`{name}`\*\* \| \w", page)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_starts_with_what_the_reader_can_do_after_it(page: Path) -> None:
    title, _, rest = page.read_text().partition("\n\n")
    assert title.startswith("# ")
    assert rest.startswith("After reading this page, you ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)) if not link.startswith("http")]
    broken: list[str] = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken


def _prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
