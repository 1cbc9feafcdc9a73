"""Text of the ``terms.py`` of a new task. Each module of this package is the code of one kind of task."""

from __future__ import annotations

from importlib.resources import files

from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.source import Names

_HEAD = '''"""Terms of the task {task}. Each term computes one tensor for all envs, with one row per env.

Terms must not wait for the device: do not use .item(), .cpu(), print or if with the values of a tensor. Instead of
indexing a tensor with a mask, use torch.where.
"""
'''


def terms_source(names: Names, robot: Robot) -> str:
    """Return the text of ``terms.py``."""
    module = "balance" if robot.goal == "swing-up" else robot.goal
    if robot.goal == "hold":
        module = "hold_fixed" if robot.base is None else "hold_moving"
    if robot.gait is not None:
        module = "none"
    elif robot.goal == "walk":
        assert robot.base is not None
        module = "walk_floating" if robot.base.is_free else "walk_planar"
    _, _, code = files(__name__).joinpath(f"{module}.py").read_text("utf-8").partition("\n")
    if "." not in names.module:  # only in a checkout, the import sorter puts this project's packages after a blank line
        code = code.replace("import torch\n\n", "import torch\n", 1)
    return _HEAD.format(task=names.task) + code
