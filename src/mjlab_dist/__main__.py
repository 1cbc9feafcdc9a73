"""``python -m mjlab_dist COMMAND ...`` runs ``mjlab-dist COMMAND ...`` with this ``python``."""

from __future__ import annotations

from mjlab_dist.cli.entry import umbrella

if __name__ == "__main__":
    umbrella()
