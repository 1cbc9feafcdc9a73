"""The directory of exported files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjlab_dist.config import ExportConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.policies.export import export
from mjlab_dist.runs.run_dir import CONFIG_FILE, checkpoint_path


@pytest.mark.parametrize(("name", "target"), [("exported", "own"), ("checkpoints", "own/checkpoints")])
def test_files_are_not_written_through_links(tmp_path: Path, name: str, target: str):
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    for run in (own, foreign):
        run.mkdir()
        (run / CONFIG_FILE).touch()
    (own / "checkpoints").mkdir()
    checkpoint_path(own, 1).touch()
    (foreign / name).symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=rf"^--run {foreign}: {foreign / name} is a link "):
        export(registry.task_config("cartpole-balance"), checkpoint_path(foreign, 1), ExportConfig())
    assert not (own / "exported").exists()
