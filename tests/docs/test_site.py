"""The documentation site builds without warnings, structures its pages as GitHub does, and loads no foreign files."""

from __future__ import annotations

import functools
import http.server
import importlib
import json
import posixpath
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from conftest import HANG_S
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page

from mjlab_dist.cli.main import SUMMARIES
from mjlab_dist.cli.run_flags import general_config, run_fields

ROOT = Path(__file__).parents[2]

BLOCKS = ("ul", "ol", "li", "table", "tr", "th", "td", "pre", "img", "blockquote", "h1", "h2", "h3", "h4")
"""HTML elements. A page of the site must have as many elements of each name as the same page on GitHub."""

RESOURCES = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""HTML elements that load a file, and the attribute with the file's address."""

SOURCES = {
    **{page.relative_to(ROOT / "docs").as_posix(): page for page in sorted((ROOT / "docs").rglob("*.md"))},
    **{f"tasks/{page.parent.name}.md": page for page in sorted((ROOT / "tasks").glob("*/*/README.md"))},
    "examples/tasks.md": ROOT / "examples/tasks/README.md",
    "index.md": ROOT / "README.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}
"""Dict from the path of a page on the site to the page's source file."""


SEARCHED = {
    "commands.html": "--max-restarts INT",
    "terms.html": "FrameAngularVelocities",
    "tasks/arm.html": "Franka",
    "decisions/0005": "renderer",
    "index.html": "torchrunx",
}
"""Pages, each with a text that the search must find on it."""

SEARCHED_FIRST = {
    "num-envs": "first-run.html",
    "out of memory": "troubleshooting.html",
    "reward does not grow": "not-learning.html",
    "terrain": "task-reference.html",
    "install": "first-run.html",
}
"""Words that a user may type, and the page that the search must show first."""


@dataclass
class Html(HTMLParser):
    """Collects the HTML elements of a page."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @property
    def blocks(self) -> dict[str, int]:
        counts = Counter(tag for tag, _ in self.elements)
        return {tag: counts[tag] for tag in BLOCKS}

    @property
    def anchors(self) -> set[str | None]:
        return {attrs.get("id") for _, attrs in self.elements}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Html]:
    return {page.relative_to(site).as_posix(): Html(page.read_text()) for page in sorted(site.rglob("*.html"))}


@pytest.fixture
def markdown(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("github_markdown")


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Address of a server that serves the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_every_page_is_on_the_site_and_in_the_navigation(pages: dict[str, Html]) -> None:
    expected = {uri.replace(".md", ".html") for uri in SOURCES} | {"commands.html", "decisions/index.html"}
    assert expected | {"404.html"} == pages.keys()
    links = {posixpath.normpath(attrs.get("href") or "") for tag, attrs in pages["index.html"].elements if tag == "a"}
    assert expected - {"index.html"} <= links


def test_pages_have_the_same_blocks_as_on_github(site: Path) -> None:
    renderer = MarkdownIt("gfm-like", {"linkify": False})
    others: list[str] = []
    for uri, source in SOURCES.items():
        (article,) = re.findall("<article.*?</article>", (site / uri.replace(".md", ".html")).read_text(), re.DOTALL)
        here, there = Html(article).blocks, Html(renderer.render(source.read_text())).blocks
        others += [f"{uri}: {here[tag]} {tag} instead of {there[tag]}" for tag in BLOCKS if here[tag] != there[tag]]
    assert others == []


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[str, Html]) -> None:
    loaded = {attrs.get(RESOURCES[tag]) or "" for p in pages.values() for tag, attrs in p.elements if tag in RESOURCES}
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    loaded |= set(re.findall(r"""(?:url\(|@import )["']?([^"')]+)""", styles))
    assert len(loaded) > 20
    assert [one for one in loaded if urlsplit(one).netloc] == []


def test_links_within_the_site_lead_to_files_and_headings(site: Path, pages: dict[str, Html]) -> None:
    broken: list[str] = []
    for name, page in pages.items():
        if name == "404.html":  # links in this page start at the server's root
            continue
        for address in [attrs.get(key) or "" for _, attrs in page.elements for key in ("href", "src")]:
            parts = urlsplit(address)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            target = target if parts.path else name
            if parts.scheme or not address:
                continue
            is_there = (site / target).exists()
            if not is_there or (parts.fragment and target in pages and parts.fragment not in pages[target].anchors):
                broken.append(f"{name}: {address}")
    assert broken == []


def test_the_search_has_the_text_of_guides_terms_and_flags(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    text = {name: " ".join(one["text"] for one in found if one["location"].startswith(name)) for name in SEARCHED}
    assert [name for name, word in SEARCHED.items() if word not in text[name]] == []


def test_the_page_of_flags_has_all_commands_and_all_flags_of_a_run(site: Path, pages: dict[str, Html]) -> None:
    assert {f"mjlab-dist-{name}" for name in SUMMARIES} <= pages["commands.html"].anchors
    text = (site / "commands.html").read_text()
    shown = set(re.findall(r"--[\w.-]+", text))
    flags = {f"--{name.replace('_', '-')}" for name in run_fields(general_config())}
    assert len(flags) > 50
    assert flags - shown == set()


@pytest.fixture
def tab(address: str, browser: Browser) -> Iterator[Page]:
    """A tab of a browser in dark mode with the first page. Nothing may be loaded from another host."""
    requests: list[str] = []
    with browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark", base_url=address) as context:
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.goto("/index.html")
        yield page
    assert [one for one in requests if not one.startswith((address, "data:", "blob:"))] == []


@pytest.mark.slow
def test_pages_fit_a_phone_in_dark_mode(tab: Page) -> None:
    for page in ("performance", "terms", "tasks", "commands", "architecture", "index"):
        tab.goto(f"/{page}.html")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390, page
    assert tab.evaluate("document.body.dataset.mdColorScheme") == "slate"


@pytest.mark.slow
def test_the_search_shows_guides_first_and_finds_flags_with_their_dashes(tab: Page) -> None:
    tab.set_viewport_size({"width": 1280, "height": 1000})
    # The page ignores input until its scripts and search worker have started, so type repeatedly
    tab.locator(".md-search__input").focus()
    tab.wait_for_function(
        """() => {
            const input = document.querySelector(".md-search__input");
            input.value = input.value == "randomization" ? "domain randomization" : "randomization";
            for (const kind of ["input", "keyup"]) input.dispatchEvent(new Event(kind, {bubbles: true}));
            return document.querySelector(".md-search-result__item");
        }""",
        polling=500,
        timeout=HANG_S * 1000,
    )
    for typed, page in SEARCHED_FIRST.items():
        tab.locator(".md-search__input").fill("")
        tab.locator(".md-search__input").press_sequentially(typed)
        # Results change while the words are typed, so wait for this page
        first = tab.locator(".md-search-result__item").first.locator(f"a[href*='/{page}']").first
        first.wait_for(timeout=HANG_S * 1000)
    # A dash excludes words in the syntax of the search, but not at the start of a flag
    tab.locator(".md-search__input").fill("")
    tab.locator(".md-search__input").press_sequentially("--min-return")
    found = tab.locator(".md-search-result__item").filter(has_text="--min-return")
    found.first.wait_for(timeout=HANG_S * 1000)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text\n- a\n- b\n", "text\n\n- a\n- b\n"),
        ("- a\n  - b\n    c\n- d\n", "- a\n    - b\n        c\n- d\n"),
        ("1. a\n   - b\n\n   c\n", "1. a\n    - b\n\n    c\n"),
        ("- a\n  ```\n    b\n  ```\n", "- a\n\n    ```\n      b\n    ```\n"),
        ("```\n- a\n  - b\n```\n- c\n", "```\n- a\n  - b\n```\n\n- c\n"),
        ("```\na\n```\ntext\n", "```\na\n```\n\ntext\n"),
        ("text\n| a |\n|---|\n| b |\n", "text\n\n| a |\n|---|\n| b |\n"),
        ("| a |\n|---|\n| `b \\| c` |\n", "| a |\n|---|\n| `b | c` |\n"),
        ("the sum is\n4. text\n", "the sum is\n4\\. text\n"),
        ("- a\nlazy\n\ntext\n", "- a\n    lazy\n\ntext\n"),
    ],
)
def test_lists_get_the_indentation_of_python_markdown(markdown: ModuleType, written: str, read: str) -> None:
    assert markdown.reindented(written) == read


def test_a_link_to_a_file_without_a_page_leads_to_the_repository_if_it_has_an_address(markdown: ModuleType) -> None:
    text = "[registry](../src/mjlab_dist/config/registry.py), [tasks.md](tasks.md#gym), [none](none.md), [out](https://localhost)"
    at = markdown.Links("docs/a.md", "a.md", {"docs/tasks.md": "tasks.md"}, "")
    assert markdown.relinked(text, at) == "`registry`, [Tasks](tasks.md#gym), [none](none.md), [out](https://localhost)"
    at = markdown.Links("docs/a.md", "a.md", {}, "https://localhost/us/")
    in_repository = "[registry](https://localhost/us/blob/main/src/mjlab_dist/config/registry.py)"
    assert markdown.relinked(text, at).startswith(in_repository)
    code = "```\n[registry](../src/mjlab_dist/config/registry.py)\n```\n"
    assert markdown.relinked(code, at) == code
