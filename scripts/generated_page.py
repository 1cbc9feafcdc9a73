"""Command line of scripts that generate a page from the source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> None:
    """Write a generated page. With ``--check``, write nothing, and exit with 1 if the file has another text.

    Args:
        page: The file.
        text: The generated text.
    """
    parser = argparse.ArgumentParser(description=f"Write {page.name} from the source.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    if not parser.parse_args().check:
        page.write_text(text)
        print(page)
    elif page.read_text() != text:
        sys.exit(f"{page.name} is out of date; update it with: uv run python scripts/{Path(sys.argv[0]).name}")
