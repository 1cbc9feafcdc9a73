"""Import the ranks' libraries in the process that ranks are forked from. Never import this module elsewhere.

The process must stay safe to fork: do not start threads, open connections, initialize Warp or use a device here.
"""

from __future__ import annotations

import contextlib

from mjlab_dist.imports import import_learner, start_up
from mjlab_dist.machine.processes import die_with_parent

die_with_parent()
with start_up(), contextlib.suppress(Exception):  # a rank repeats the import and reports the error
    import_learner()

    import mjlab_dist.distributed.group
    import mjlab_dist.env
    import mjlab_dist.launch.rank_entry
    import mjlab_dist.launch.torchrunx
    import mjlab_dist.learn.runner  # noqa: F401
