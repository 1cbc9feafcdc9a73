"""Configs are written to a file and read back. Files without a config are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from configs import LEGGED, changed, value_at, with_flags

from mjlab_dist.config import ActionConfig, EventConfig, ParamValue, TrainConfig, registry
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import read_config_file

TASKS = registry.task_names()


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


def with_param(config: TrainConfig, value: ParamValue) -> TrainConfig:
    """Return a copy of a config with one more event, which has one parameter."""
    events = {**config.env.events, "extra": EventConfig(func="package.module:name", params={"value": value})}
    return changed(config, "env.events", events)


def write_and_read(config: TrainConfig, directory: Path) -> TrainConfig:
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config), sort_keys=False))
    return read_config_file(file, trust=True)


def file_refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_config_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"--config {path}")
    return message


@pytest.mark.parametrize("task", TASKS)
def test_a_file_reads_back_as_the_same_config(task: str, tmp_path: Path):
    config = registry.task_config(task)
    assert write_and_read(config, tmp_path) == config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpu_ids", None),
        ("gpu_ids", (1, 0, 3)),
        ("run_name", "null"),
        ("logger", ()),
        ("agent.max_grad_norm", 2),
        ("env.terminations", {}),
        ("env.sim.capture", "off"),
        ("env.actions", {"two": ActionConfig(actuators=("a", "b"), scale=2.0)}),
        ("env.actions.force.scale", {"a.*": 0.5, "b": -1.0}),
        ("env.actions.force.params", {"alpha": 0.5, "site": None, "history": (0, 2), "opened": {"a": 1.0}}),
    ],
)
def test_a_changed_field_is_read_back_from_the_file(config: TrainConfig, tmp_path: Path, path: str, value: Any):
    config = changed(config, path, value)
    assert write_and_read(config, tmp_path) == config


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, 1, 0, -2.5, 1.0, 1e-5, float("inf"), "hinge", "", "true", "null", "1", "1e3", "nan", None),
        *((), (0.1,), (0.1, -2.0), (1, 2), (1, 0.5), (False,), (True, 1), ("1", "2"), ("1", 2), ((1, 0.5), None)),
        *({}, {"a": 1}, {"a": (False, 1)}),
    ],
)
def test_a_parameter_keeps_its_type_in_the_file(config: TrainConfig, tmp_path: Path, value: ParamValue):
    read = write_and_read(with_param(config, value), tmp_path).env.events["extra"].params["value"]
    assert repr(read) == repr(value), "a value has another type, such as True instead of 1"


def test_the_file_keeps_the_order_of_terms(config: TrainConfig, tmp_path: Path):
    events = {name: EventConfig(func="a:b") for name in ("zeta", "alpha", "mid")}
    read = write_and_read(changed(config, "env.events", events), tmp_path)
    assert list(read.env.events) == ["zeta", "alpha", "mid"]


def test_plain_data_contains_no_tuples_or_dataclasses(config: TrainConfig):
    plain = to_plain(with_param(changed(config, "gpu_ids", (0, 1)), (1.0, 2.0)))
    assert plain["gpu_ids"] == [0, 1]
    assert plain["env"]["events"]["extra"] == {
        "func": "package.module:name",
        "params": {"value": [1.0, 2.0]},
        "when": "reset",
        "interval_s": [5.0, 10.0],
        "model_fields": [],
    }


def test_a_file_that_is_missing_or_not_regular_is_refused(tmp_path: Path):
    assert os.strerror(errno.ENOENT) in file_refusal(tmp_path / "config.yaml")
    with pytest.raises(UserError, match=rf"--config .*config\.yaml: {os.strerror(errno.ENOENT)}"):
        read_config_file(tmp_path)
    os.mkfifo(tmp_path / "config.yaml")
    for path in (tmp_path, tmp_path / "config.yaml"):
        assert "is not a regular file" in file_refusal(path)


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\tx", "!!python/object:os.system x", "\x00"])
def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert "YAML" in file_refusal(file)
    file.write_bytes(b"\xff\xfe\x00\x01")
    file_refusal(file)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "hello", "3"])
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert "config.yaml" in file_refusal(file).removeprefix(f"--config {file}")


def edited(config: TrainConfig, directory: Path, path: str, value: Any) -> Path:
    """Write a config file in which one entry, named by a dotted path, has a new value."""
    plain = to_plain(config)
    *parents, name = path.split(".")
    entry = plain
    for parent in parents:
        entry = entry[parent]
    entry[name] = value
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(plain))
    return file


@pytest.mark.parametrize("path", ["bogus", "agent.bogus", "env.sim.bogus", "env.rewards.smooth.bogus"])
def test_an_unknown_key_is_refused_by_name(config: TrainConfig, tmp_path: Path, path: str):
    assert "bogus" in file_refusal(edited(config, tmp_path, path, 1))


def test_a_key_that_is_no_text_is_refused(config: TrainConfig, tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config) | {"env": {0: None, "bogus": 1}}, sort_keys=False))
    assert "0, bogus: unknown field" in file_refusal(file)
    # Also if the whole file is searched for the name of another field
    plain = to_plain(config)
    plain["checkpoint"]["interval"] = {0: None}
    plain["env"]["observations"]["actor"]["cart_velocity"]["delay"] = [None, False, None]
    file.write_text(yaml.safe_dump(plain))
    assert "delay" in file_refusal(file)


def test_a_missing_key_is_refused_by_name(config: TrainConfig, tmp_path: Path):
    file = tmp_path / "config.yaml"
    plain = to_plain(config)
    del plain["env"]["sim"]["njmax"]
    file.write_text(yaml.safe_dump(plain))
    assert "njmax" in file_refusal(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("num_envs", "many"),
        ("num_envs", 1.5),
        ("gpu_ids", 0),
        ("gpu_ids", ["a"]),
        ("hosts", "node7"),
        ("logger", [3]),
        ("agent", [1]),
        ("agent.schedule", "sometimes"),
        ("agent.learning_rate", "fast"),
        ("agent.learning_rate", None),
        ("agent.learning_rate", True),
        ("agent.num_learning_epochs", True),
        ("agent.actor_hidden_dims", 64),
        ("env.rewards", [1]),
        ("env.rewards.smooth.weight", "heavy"),
        ("env.actions.force.scale", {"a": "wide"}),
        ("env.events.pole.params.low", {"a": {"b": 1}}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_name(config: TrainConfig, tmp_path: Path, path: str, value: Any):
    message = file_refusal(edited(config, tmp_path, path, value))
    # The message leaves out keys of dicts: it names env.rewards.weight instead of env.rewards.smooth.weight.
    field = path.replace("params.low", "params").rpartition(".")[2]
    assert field in message.removeprefix(f"--config {tmp_path}")


def test_a_task_with_every_kind_of_term_is_valid_and_is_read_back_from_the_file(tmp_path: Path):
    validate(LEGGED)
    assert write_and_read(LEGGED, tmp_path) == LEGGED


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("--env.actions.rear.actuators .L_leg RR_leg", "env.actions.rear.actuators", (".L_leg", "RR_leg")),
        ("--env.actions.rear.offset 0.5", "env.actions.rear.offset", 0.5),
        ("--env.actions.tail.offset home", "env.actions.tail.offset", "home"),
        ("--env.actions.rear.scale RL.* 0.5 .* 1", "env.actions.rear.scale", {"RL.*": 0.5, ".*": 1.0}),
        ("--env.actions.front.clip None", "env.actions.front.clip", None),
        ("--env.observations.actor.joints.delay 1 2", "env.observations.actor.joints.delay", (1, 2)),
        ("--env.observations.actor.joints.clip -0.5 inf", "env.observations.actor.joints.clip", (-0.5, float("inf"))),
        ("--env.events.push.params.linear-m-s -1 1", "env.events.push.params.linear_m_s", (-1.0, 1.0)),
        ("--env.events.push.when startup", "env.events.push.when", "startup"),
        ("--env.events.some.params.joints tail", "env.events.some.params.joints", ("tail",)),
        ("--env.commands.velocity.params.standing-share 0", "env.commands.velocity.params.standing_share", 0.0),
        ("--env.sensors.feet.params.sensors FL_touch", "env.sensors.feet.params.sensors", ("FL_touch",)),
        ("--env.terminations.tilted.params.max-rad 1", "env.terminations.tilted.params.max_rad", 1.0),
        ("--env.randomizations.friction.columns", "env.randomizations.friction.columns", ()),
        ("--env.randomizations.friction.no-shared", "env.randomizations.friction.shared", False),
    ],
)  # fmt: skip
def test_a_flag_changes_a_field_of_a_term_and_the_file_keeps_the_change(
    tmp_path: Path, line: str, path: str, value: Any
):
    config = with_flags(LEGGED, line.split())
    assert config == changed(LEGGED, path, value)
    assert value_at(config, path) == value
    assert type(value_at(config, path)) is type(value)
    assert config != LEGGED
    read = write_and_read(config, tmp_path)
    assert read == config
    assert type(value_at(read, path)) is type(value)


def test_yaml_reads_off_as_false(config: TrainConfig, tmp_path: Path):
    assert read_config_file(edited(config, tmp_path, "env.sim.capture", False)).env.sim.capture == "off"
    assert "capture True" in file_refusal(edited(config, tmp_path, "env.sim.capture", True))
