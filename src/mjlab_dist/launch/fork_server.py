"""Runs once, in the process that ranks are forked from: imports what they need. Not imported anywhere else.

It must stay safe to fork: nothing here starts a thread, opens a connection, initializes Warp or touches a device.
"""

from __future__ import annotations

import contextlib

from mjlab_dist.imports import import_learner, start_up
from mjlab_dist.worker import die_with_parent

die_with_parent()
with start_up(), contextlib.suppress(Exception):  # a rank imports it again, and reports what is wrong
    import_learner()
    import torchrunx.worker  # noqa: F401

    import mjlab_dist.distributed.group
    import mjlab_dist.env
    import mjlab_dist.learn  # noqa: F401
