"""Text of the files of a new task."""

from mjlab_dist.authoring.new_task.source.config import config_source
from mjlab_dist.authoring.new_task.source.model import model_source
from mjlab_dist.authoring.new_task.source.package import (
    STUB_SOURCE,
    Names,
    entry_point,
    function_name,
    package_source,
    project_source,
)
from mjlab_dist.authoring.new_task.source.terms import terms_source

__all__ = [
    "STUB_SOURCE",
    "Names",
    "config_source",
    "entry_point",
    "function_name",
    "model_source",
    "package_source",
    "project_source",
    "terms_source",
]
