"""Hooks that MkDocs calls: they add pages from outside docs/ and generated pages, and adapt Markdown for GitHub.

mkdocs.yml names this file under `hooks`.

uv run --group docs mkdocs build --strict
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands_page import commands_page
from github_markdown import Links, anchor, reindented, relinked
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

MORE_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Path in the repository of each page outside of docs/, and its path on the site."""

SCRIPTS = {"scripts/site_search.js": "javascripts/site_search.js"}
"""Path in the repository of each script of the pages, and its path on the site, which mkdocs.yml lists in
extra_javascript."""

FOLDERS = {"docs/decisions": "decisions/index.md"}
"""Folders of docs/ for which a page is generated, and the path of this page."""

BACKGROUND = ("decisions/", "architecture.", "changelog.", "contributing.", "lab.", "performance.")
"""Starts of the paths of pages that the search shows below all others."""

DECISIONS_HEAD = """# Decisions

Each page describes one decision about the design of mjlab_dist, with the measurement behind it.
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the same anchors as GitHub does, because links in the pages contain these anchors."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages, pictures and scripts from outside of docs/, and generated pages; fill in the navigation."""
    for source, target in (_outside() | SCRIPTS).items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "decisions/index.md", content=decisions_page()))
    config.nav = fill_in(config.nav or [], sorted(file.src_uri for file in files.documentation_pages()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert the links and lists of a page written for GitHub to the form that MkDocs needs."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if uri.startswith(BACKGROUND):
        page.meta["search"] = {"boost": 1e-3}
    sources = {target: source for source, target in _outside().items()}
    pages = {f"docs/{file.src_uri}": file.src_uri for file in files} | _outside() | FOLDERS
    pages |= {posixpath.dirname(one): to for one, to in _outside().items() if posixpath.basename(one) == "README.md"}
    links = Links(sources.get(uri, f"docs/{uri}"), uri, pages, config.repo_url or "")
    return reindented(relinked(markdown, links))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Mark the first page and its head for docs/stylesheets/site.css."""
    if page.file.src_uri != "index.md":
        return html
    head, heading, rest = html.partition("<h2")
    return f'<div class="home"><div class="hero">{head}</div>{heading}{rest}</div>'


def fill_in(nav: list[Any], pages: list[str]) -> list[Any]:
    """Replace each entry ``folder/*`` with those pages of the folder that no other entry names."""
    named = set(_named(nav))

    def filled(entries: list[Any]) -> Iterator[Any]:
        for entry in entries:
            if isinstance(entry, dict):
                yield {title: list(filled(e)) if isinstance(e, list) else e for title, e in entry.items()}
            elif entry.endswith("/*"):
                yield from (one for one in pages if posixpath.dirname(one) == entry[:-2] and one not in named)
            else:
                yield entry

    return list(filled(nav))


def _named(nav: Any) -> Iterator[str]:
    """Yield all paths of a navigation."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _named(entry)


@functools.cache
def _outside() -> dict[str, str]:
    """Return the path in the repository of each page or picture outside of docs/, with its path on the site."""
    found = dict(MORE_PAGES)
    for folder, at in (("tasks/mjlab_dist_tasks", "tasks"), ("examples", "examples")):
        for readme in sorted((ROOT / folder).glob("*/README.md")):
            target, source = f"{at}/{readme.parent.name}", readme.parent.relative_to(ROOT).as_posix()
            found[f"{source}/README.md"] = f"{target}.md"
            found |= {f"{source}/{one.name}": f"{target}/{one.name}" for one in sorted(readme.parent.glob("*.png"))}
    return found


def decisions_page() -> str:
    """Return a list of all decisions, as Markdown."""
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]
    links = [f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True)]
    return "\n".join([DECISIONS_HEAD, *links, ""])
