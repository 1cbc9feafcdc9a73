"""``python -m mjlab_dist COMMAND ...`` is ``mjlab-dist COMMAND ...``, run by a certain Python."""

from __future__ import annotations

from mjlab_dist.cli.entry import umbrella

if __name__ == "__main__":
    umbrella()
