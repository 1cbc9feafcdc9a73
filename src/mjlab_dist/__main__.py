"""``python -m mjlab_dist COMMAND ...`` runs the command ``mjlab-dist`` with this Python, such as that of a notebook."""

from __future__ import annotations

from mjlab_dist.cli.main import umbrella

if __name__ == "__main__":
    umbrella()
