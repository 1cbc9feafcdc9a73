"""YAML of config files, and small files whose values are too large, too many, nested too deeply or repeated."""

from __future__ import annotations

import pytest
import yaml

from mjlab_dist.config.serialization import dump_yaml, load_yaml
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import read_config_file


def test_aliases_are_values_like_others():
    text = "a: &x [1, 2]\nb: *x\n<<: &y {c: 1}\n"
    assert load_yaml(text) == yaml.safe_load(text)
    assert load_yaml("") is None


def test_none_is_null_unless_it_has_quotes():
    plain = {"gpu_ids": None, "run_name": "None", "logger": ["None", None, "Nonesuch"]}
    assert load_yaml("gpu_ids: None\nrun_name: 'None'\nlogger: ['None', None, Nonesuch]") == plain
    assert load_yaml(dump_yaml(plain)) == plain


@pytest.mark.parametrize(("text", "problem"), [
    ("task: walk\na0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 12)), "many"),
    ("task: &a [*a]\n", "many"),
    ("task: " + "{a: " * 2000, "deeply"),
    ("task: walk\nseed: " + "9" * 5000, "line 2: .*wrong value"),
    ("task: walk\nseed: 0x" + "f" * 5000, "line 2: .*too large"),
    ("task: walk\nseed: [1, 36893488147419103232]", "line 2: .*too large"),
    ("task: walk\n\nseed: 2026-99-99", "line 3: .*wrong value"),
    ("task: walk\nseed: 0b_", "line 2: .*wrong value"),
    ('task: walk\nrun_name: "\\ud800"', "line 2: .*wrong value"),
    ("task: walk\nseed: 1\nagent:\n  seed: 3\nseed: 2\n", "line 5: .*seed is already in line 2"),
    ("task: walk\nagent: {gamma: 1, lam: 1, gamma: 2}\n", "line 2: .*gamma is already in line 2"),
])  # fmt: skip
def test_a_file_with_such_values_is_refused(tmp_path, text: str, problem: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=problem) as caught:
        read_config_file(file)
    assert str(caught.value).startswith(f"--config {file}: line ")
