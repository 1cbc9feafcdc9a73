"""Convert the lists and links of Markdown written for GitHub, so that Python-Markdown shows them in the same way."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(r" *(```+|~~~+)")

_ITEM = re.compile(r"( *)([-*+]|\d+[.)])( +)(?=\S)")

_STARTS = re.compile(r" *(#+ |>|\|)")
"""Matches a heading, a quotation or a table, which end the paragraph above."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


@dataclass(frozen=True)
class Links:
    """Converts the links of one page: they contain paths in the repository, and then contain paths on the site."""

    source: str
    """Path of the page in the repository."""
    uri: str
    """Path of the page's Markdown on the site."""
    pages: dict[str, str]
    """Pages and pictures of the site: the keys are paths in the repository, the values are paths on the site."""
    repository: str
    """Address of the repository; empty if it has none."""

    def __call__(self, match: re.Match[str]) -> str:
        """Return a link of the site.

        A link to a file that is not on the site becomes a link to the repository or, if the repository has no address,
        the text of the link as code.
        """
        picture, label, link = match.groups()
        path, hash_sign, heading = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(self.source), path))
        if target in self.pages:
            to = posixpath.relpath(self.pages[target], posixpath.dirname(self.uri) or ".")
            return f"{picture}[{self._title(label, target)}]({to}{hash_sign}{heading})"
        if not (ROOT / target).exists():
            return match[0]  # keep the link as it is, so that MkDocs reports it as broken
        if self.repository:
            return f"{picture}[{label}]({self.repository.rstrip('/')}/blob/main/{target})"
        return label if "`" in label else f"`{label}`"

    def _title(self, label: str, target: str) -> str:
        """Return the text for a link: the title of the linked page if the text is its file name, else the same text."""
        if not label.endswith(".md") or posixpath.basename(target) != posixpath.basename(label):
            return label
        return (ROOT / target).read_text().partition("\n")[0].removeprefix("# ")


def relinked(markdown: str, links: Links) -> str:
    """Convert the links of a page with ``links``, except those in blocks of code."""
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else _LINK.sub(links, part) for i, part in enumerate(parts))


def reindented(markdown: str) -> str:
    """Indent contents of lists by four spaces per level, and put empty lines before lists and tables, and around code.

    Python-Markdown needs this indentation and these empty lines. GitHub does not: there, the contents of an item can
    have any indentation that matches its first line.
    """
    lines: list[str] = []
    levels: list[int] = []  # indentation of the contents of each open list
    fence = ""  # line that ends the open block of code
    above, is_text = "", False  # the line above, and whether it is text of a paragraph or item
    ends_code = False  # whether the line above ends a block of code
    for line in markdown.splitlines():
        if fence:
            lines.append(_moved(line, levels))
            ends_code = line.strip() == fence
            fence = "" if ends_code else fence
            continue
        indent, block = len(line) - len(line.lstrip()), _FENCE.match(line)
        item = _item(line, is_text and not (levels and indent < levels[-1]))
        # Close the lists that end before this line. Text directly below an item still belongs to the item.
        was_list = bool(levels)
        if line.strip() and (item or block or not is_text or _STARTS.match(line)):
            while levels and indent < levels[-1]:
                levels.pop()
        starts_list, starts_table = item and not was_list, line.startswith("|") and not above.startswith("|")
        if above and (block or starts_list or starts_table or (ends_code and line.strip())):
            lines.append("")
        if item:
            lines.append(f"{'    ' * len(levels)}{item[2].replace(')', '.')} {line[len(item[0]) :]}")
            levels.append(len(item[0]))
        elif line.startswith("|"):  # in code in tables, GitHub needs a backslash before |; Python-Markdown shows it
            lines.append(re.sub("`[^`]*`", lambda code: code[0].replace("\\|", "|"), line))
        else:  # escape a number that starts a list in Python-Markdown, but not on GitHub
            lines.append(re.sub(r"^( *\d+)\. ", r"\1\. ", _moved(line, levels)))
        fence = block[1] if block else ""
        above, is_text, ends_code = line.strip(), bool(line.strip()) and not block, False
    return "\n".join(lines) + "\n"


def _item(line: str, is_in_paragraph: bool) -> re.Match[str] | None:
    """Return the list marker at the start of a line; None if the line does not start a list item.

    Inside a paragraph, a number starts a list only if it is 1.
    """
    item = _ITEM.match(line)
    return None if item and is_in_paragraph and item[2][:-1].isdigit() and item[2][:-1] != "1" else item


def _moved(line: str, levels: list[int]) -> str:
    """Indent a line of the innermost open list by four spaces per level."""
    indent = len(line) - len(line.lstrip())
    return f"{'    ' * len(levels)}{line[min(indent, levels[-1] if levels else 0) :]}" if line.strip() else ""
