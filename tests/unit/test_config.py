"""Configs: what validation refuses, and the way to a file and back."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from legged import EVERYTHING

from mjlab_dist import registry
from mjlab_dist.cli.parsing import parse
from mjlab_dist.config import ActionConfig, EventConfig, ObservationConfig, ParamValue, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import from_plain, to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.run_dir import read_config_file

TASKS = registry.task_names()


def changed(config: Any, path: str, value: Any) -> Any:
    """A copy of a config with one field or dict's entry, named by a dotted path, set to a value."""
    name, _, rest = path.partition(".")
    new = changed(config[name] if isinstance(config, dict) else getattr(config, name), rest, value) if rest else value
    return {**config, name: new} if isinstance(config, dict) else dataclasses.replace(config, **{name: new})


def value_at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def with_param(config: TrainConfig, value: ParamValue) -> TrainConfig:
    """A copy of a config whose env has one event more, with one parameter."""
    events = {**config.env.events, "extra": EventConfig(func="package.module:name", params={"value": value})}
    return changed(config, "env.events", events)


def refusal_of(config: TrainConfig) -> str:
    with pytest.raises(UserError) as caught:
        validate(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


def through_file(config: TrainConfig, directory: Path) -> TrainConfig:
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config), sort_keys=False))
    return read_config_file(file)


def file_refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_config_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"--config {path}")
    return message


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_valid(task: str):
    validate(registry.task_config(task))


@pytest.mark.parametrize(
    ("path", "flag", "value", "fix"),
    [
        ("num_envs", "--num-envs", 0, "at least 1"),
        ("total_num_envs", "--total-num-envs", 0, "at least 1"),
        ("max_iterations", "--max-iterations", -3, "at least 1"),
        ("total_timesteps", "--total-timesteps", 0, "at least 1"),
        ("fsdp_devices", "--fsdp-devices", 0, "at least 1"),
        ("fsdp_min_size_mb", "--fsdp-min-size-mb", -0.5, "0 or more, and finite"),
        ("fsdp_min_size_mb", "--fsdp-min-size-mb", float("inf"), "0 or more, and finite"),
        ("fsdp_min_size_mb", "--fsdp-min-size-mb", float("nan"), "0 or more, and finite"),
        ("sync.period", "--sync.period", 0, "at least 1"),
        ("sync.check_interval", "--sync.check-interval", 0, "at least 1"),
        ("sync.compression", "--sync.compression", "gzip", "use none, bf16 or fp16; an all-reduce adds numbers"),
        ("sync.compression", "--sync.compression", "", "use none, bf16 or fp16"),
        ("agent.rnn_hidden_dim", "--agent.rnn-hidden-dim", 0, "at least 1"),
        ("agent.rnn_num_layers", "--agent.rnn-num-layers", -1, "at least 1"),
        ("checkpoint.interval", "--checkpoint.interval", 0, "at least 1"),
        ("checkpoint.interval", "--checkpoint.interval", "0s", "such as 600s"),
        ("checkpoint.interval", "--checkpoint.interval", "ten minutes", "such as 600s"),
        ("checkpoint.interval", "--checkpoint.interval", "-5s", "such as 600s"),
        ("checkpoint.keep_last", "--checkpoint.keep-last", -1, "at least 0"),
        ("checkpoint.keep_best", "--checkpoint.keep-best", -1, "at least 0"),
        ("max_restarts", "--max-restarts", -1, "at least 0"),
        ("hang_timeout", "--hang-timeout", 0.0, "positive and finite"),
        ("seed", "--seed", -1, "at least 0"),
        ("env.sim.decimation", "--env.sim.decimation", 0, "at least 1"),
        ("agent.num_steps_per_env", "--agent.num-steps-per-env", 0, "at least 1"),
        ("agent.num_learning_epochs", "--agent.num-learning-epochs", 0, "at least 1"),
        ("agent.num_mini_batches", "--agent.num-mini-batches", 0, "at least 1"),
        ("env.episode_length_s", "--env.episode-length-s", 0.0, "positive and finite"),
        ("env.episode_length_s", "--env.episode-length-s", float("inf"), "positive and finite"),
        ("agent.learning_rate", "--agent.learning-rate", -0.5, "positive and finite"),
        ("agent.learning_rate", "--agent.learning-rate", float("nan"), "positive and finite"),
        ("agent.init_std", "--agent.init-std", 0.0, "positive and finite"),
        ("agent.min_std", "--agent.min-std", 0.0, "positive and finite"),
        ("agent.min_std", "--agent.min-std", 1e-9, "at least"),
        ("agent.init_std", "--agent.init-std", 1e-4, "--agent.min-std"),
        ("agent.max_grad_norm", "--agent.max-grad-norm", float("inf"), "positive and finite"),
        ("agent.gamma", "--agent.gamma", 1.5, "between 0 and 1"),
        ("agent.gamma", "--agent.gamma", float("nan"), "between 0 and 1"),
        ("agent.obs_clip", "--agent.obs-clip", 0.0, "positive and finite, or None"),
        ("agent.obs_clip", "--agent.obs-clip", 10.0, "add --agent.obs-normalization"),
        ("agent.lam", "--agent.lam", -0.1, "between 0 and 1"),
        ("run_name", "--run-name", "a/b", "without /"),
        ("run_name", "--run-name", ".hidden", "not starting with a dot"),
    ],
)
def test_a_bad_value_is_refused(config: TrainConfig, path: str, flag: str, value: Any, fix: str):
    message = refusal_of(changed(config, path, value))
    assert message.startswith(f"{flag} {value}:")
    assert fix in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("num_envs", 1),
        ("num_envs", "auto"),
        ("total_num_envs", 1),
        ("total_timesteps", 1),
        ("fsdp_devices", 2),
        ("fsdp_min_size_mb", 0.0),
        ("sync.period", 2),
        ("sync.check_interval", 1),
        ("sync.compression", "bf16"),
        ("sync.compression", "fp16"),
        ("sync.synchronizer", "package.module:Class"),
        ("seed", 0),
        ("agent.gamma", 0.0),
        ("agent.gamma", 1.0),
        ("agent.lam", 1.0),
        ("run_name", "a.b"),
        ("hosts", ("localhost",)),
        ("hosts", ("node-7", "node8.example.org", "192.0.2.7", "2001:db8::7")),
    ],
)
def test_a_value_at_its_limit_is_accepted(config: TrainConfig, path: str, value: Any):
    validate(changed(config, path, value))


@pytest.mark.parametrize(
    ("path", "value", "fix"),
    [
        ("env.observations", {}, "no group actor"),
        ("env.observations", {"critic": {"x": ObservationConfig(func="a:b")}}, "no group actor"),
        ("env.observations", {"actor": {}}, "no group actor"),
        ("env.actions", {}, "name the actuators"),
        ("env.rewards", {}, "at least one term"),
    ],
)
def test_an_incomplete_env_is_refused(config: TrainConfig, path: str, value: Any, fix: str):
    message = refusal_of(changed(config, path, value))
    assert message.startswith(f"{path}:")
    assert fix in message


@pytest.mark.parametrize(
    ("num_envs", "steps", "mini_batches"), [(3, 5, 4), (1, 1, 4), (7, 1, 3), (1024, 32, 5), (100, 10, 999)]
)
def test_mini_batches_that_do_not_divide_the_rollout_are_refused_with_a_number_that_does(
    config: TrainConfig, num_envs: int, steps: int, mini_batches: int
):
    config = changed(changed(config, "num_envs", num_envs), "agent.num_steps_per_env", steps)
    message = refusal_of(changed(config, "agent.num_mini_batches", mini_batches))
    assert message.startswith(f"--agent.num-mini-batches {mini_batches}:")
    assert f"--num-envs {num_envs}" in message
    assert f"--agent.num-steps-per-env {steps}" in message
    use = re.search(r"use (\d+)$", message)
    assert use
    validate(changed(config, "agent.num_mini_batches", int(use[1])))


OWN = "package.module:Class"


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"num_envs": "auto", "total_num_envs": 64}, ("--num-envs auto", "--total-num-envs 64")),
        ({"fsdp_devices": 2, "sync.period": 4}, ("--fsdp-devices 2", "--sync.period 4")),
        ({"fsdp_devices": 2, "sync.synchronizer": OWN}, ("--fsdp-devices 2", f"--sync.synchronizer {OWN}")),
        ({"sync.period": 4, "sync.synchronizer": OWN}, (f"--sync.synchronizer {OWN}", "--sync.period 4")),
        (
            {"sync.compression": "fp16", "sync.synchronizer": OWN},
            (f"--sync.synchronizer {OWN}", "--sync.compression fp16"),
        ),
    ],
)
def test_fields_that_exclude_each_other_are_refused_together_only(
    config: TrainConfig, changes: dict[str, Any], flags: tuple[str, str]
):
    both = config
    for path, value in changes.items():
        validate(changed(config, path, value))
        both = changed(both, path, value)
    message = refusal_of(both)
    assert message.startswith(f"{flags[0]}: excludes {flags[1]}")
    assert message.endswith("drop one of the two")


@pytest.mark.parametrize(
    ("hosts", "fix"),
    [
        (("node7", "node8", "node7"), "node7 is repeated; name each host once"),
        (("",), "'' is not the name or address of a machine"),
        (("node7", " "), "' ' is not the name or address of a machine"),
        (("node7,node8",), "separate hosts by spaces"),
        (("root@node7",), "set users and ports in SSH's config file"),
        (("node7:2222",), "set users and ports in SSH's config file"),
    ],
)
def test_bad_hosts_are_refused(config: TrainConfig, hosts: tuple[str, ...], fix: str):
    message = refusal_of(changed(config, "hosts", hosts))
    assert message.startswith(f"--hosts {' '.join(hosts)}:")
    assert fix in message


@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_mini_batches_of_recurrent_networks_are_of_whole_envs(config: TrainConfig, rnn: str):
    config = changed(changed(config, "num_envs", 6), "agent.num_steps_per_env", 32)
    validate(changed(config, "agent.num_mini_batches", 4))
    config = changed(config, "agent.rnn", rnn)
    message = refusal_of(changed(config, "agent.num_mini_batches", 4))
    assert message.startswith("--agent.num-mini-batches 4: ")
    assert "--num-envs 6" in message
    assert f"--agent.rnn {rnn}" in message
    assert message.endswith("use 3")
    validate(changed(config, "agent.num_mini_batches", 3))


@pytest.mark.parametrize("task", TASKS)
def test_a_file_reads_back_as_the_same_config(task: str, tmp_path: Path):
    config = registry.task_config(task)
    assert through_file(config, tmp_path) == config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("num_envs", "auto"),
        ("num_envs", 3),
        ("total_num_envs", 12),
        ("total_timesteps", 10**10),
        ("require_same_devices", True),
        ("fsdp_devices", 2),
        ("fsdp_min_size_mb", 0.5),
        ("sync.period", 8),
        ("sync.compression", "bf16"),
        ("sync.synchronizer", "package.module:Class"),
        ("agent.rnn", "gru"),
        ("agent.advantage_normalization", "rank"),
        ("agent.precision", "bf16"),
        ("gpu_ids", "all"),
        ("gpu_ids", None),
        ("gpu_ids", (0,)),
        ("gpu_ids", (1, 0, 3)),
        ("cpu_ranks", 4),
        ("hosts", ("node7",)),
        ("hosts", ("192.0.2.7", "node8")),
        ("ssh_config", "cluster/ssh_config"),
        ("run_name", "123"),
        ("run_name", "null"),
        ("run_name", "größer: #1"),
        ("torchrunx_log_dir", ""),
        ("torchrunx_log_dir", "elsewhere"),
        ("logger", "wandb"),
        ("agent.learning_rate", 1e-5),
        ("agent.learning_rate", 1e22),
        ("agent.max_grad_norm", 2),
        ("agent.schedule", "fixed"),
        ("agent.actor_hidden_dims", (256, 128, 64)),
        ("agent.critic_hidden_dims", ()),
        ("env.terminations", {}),
        ("env.sim.capture", "off"),
        ("env.actions", {"two": ActionConfig(actuators=("a", "b"), scale=2.0)}),
    ],
)
def test_a_changed_field_survives_the_file(config: TrainConfig, tmp_path: Path, path: str, value: Any):
    config = changed(config, path, value)
    assert through_file(config, tmp_path) == config


@pytest.mark.parametrize(
    "value", [True, False, 1, 0, -2.5, 1.0, 1e-5, float("inf"), "hinge", "", "true", "null", (), (0.1,), (0.1, -2.0)]
)
def test_a_parameter_survives_the_file_with_its_type(config: TrainConfig, tmp_path: Path, value: ParamValue):
    config = with_param(config, value)
    read = through_file(config, tmp_path)
    assert read == config
    assert type(read.env.events["extra"].params["value"]) is type(value)


@pytest.mark.parametrize("value", ["1", "1e3", "nan", "inf", "-0.5"])
def test_a_parameter_of_text_that_looks_like_a_number_stays_text(config: TrainConfig, tmp_path: Path, value: str):
    assert through_file(with_param(config, value), tmp_path).env.events["extra"].params == {"value": value}


def test_order_of_terms_survives_the_file(config: TrainConfig, tmp_path: Path):
    events = {name: EventConfig(func="a:b") for name in ("zeta", "alpha", "mid")}
    read = through_file(changed(config, "env.events", events), tmp_path)
    assert list(read.env.events) == ["zeta", "alpha", "mid"]


def test_plain_data_holds_no_tuples_nor_dataclasses(config: TrainConfig):
    plain = to_plain(with_param(changed(config, "gpu_ids", (0, 1)), (1.0, 2.0)))
    assert plain["gpu_ids"] == [0, 1]
    assert plain["env"]["events"]["extra"] == {
        "func": "package.module:name",
        "params": {"value": [1.0, 2.0]},
        "when": "reset",
        "interval_s": [5.0, 10.0],
    }


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "No such file" in file_refusal(tmp_path / "config.yaml")


def test_a_run_directory_without_a_config_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"--config .*config\.yaml: No such file"):
        read_config_file(tmp_path)


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\tx", "!!python/object:os.system x", "\x00"])
def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert "not YAML" in file_refusal(file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    file_refusal(file)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "hello", "3"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert "contains no config" in file_refusal(file)


def edited(config: TrainConfig, directory: Path, path: str, value: Any) -> Path:
    """A config file with one entry, named by a dotted path, set to a value."""
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
        ("num_envs", None),
        ("total_num_envs", "auto"),
        ("total_timesteps", "1e6"),
        ("gpu_ids", "some"),
        ("gpu_ids", 0),
        ("gpu_ids", ["a"]),
        ("hosts", "node7"),
        ("hosts", [7]),
        ("logger", "paper"),
        ("agent", [1]),
        ("agent.schedule", "sometimes"),
        ("agent.activation", "none"),
        ("agent.learning_rate", "fast"),
        ("agent.learning_rate", [1.0]),
        ("agent.learning_rate", None),
        ("agent.actor_hidden_dims", 64),
        ("agent.actor_hidden_dims", ["wide"]),
        ("env.rewards", [1]),
        ("env.rewards.smooth.weight", "heavy"),
        ("env.actions.force.actuators", "force"),
        ("env.events.pole.params.low", {"a": 1}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_name(config: TrainConfig, tmp_path: Path, path: str, value: Any):
    message = file_refusal(edited(config, tmp_path, path, value))
    # A dict's entries are named by the dict: env.rewards for the weight of one of its terms.
    field = path.replace("params.low", "params").rpartition(".")[2]
    assert field in message.removeprefix(f"--config {tmp_path}")


# A task with every kind of term


LEGGED = TrainConfig(task="legged", env=EVERYTHING)


def test_a_task_with_every_kind_of_term_is_valid_and_survives_the_file(tmp_path: Path):
    validate(LEGGED)
    assert through_file(LEGGED, tmp_path) == LEGGED


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("--env.actions.rear.actuators .L_leg RR_leg", "env.actions.rear.actuators", (".L_leg", "RR_leg")),
        ("--env.actions.rear.offset 0.5", "env.actions.rear.offset", 0.5),
        ("--env.actions.tail.offset home", "env.actions.tail.offset", "home"),
        ("--env.actions.rear.clip -1 1", "env.actions.rear.clip", (-1.0, 1.0)),
        ("--env.actions.front.clip None", "env.actions.front.clip", None),
        ("--env.actions.rear.latency 0 3", "env.actions.rear.latency", (0, 3)),
        ("--env.observations.actor.joints.history 5", "env.observations.actor.joints.history", 5),
        ("--env.observations.actor.joints.delay 1 2", "env.observations.actor.joints.delay", (1, 2)),
        ("--env.observations.actor.joints.clip -0.5 inf", "env.observations.actor.joints.clip", (-0.5, float("inf"))),
        ("--env.observations.actor.velocities.clip None", "env.observations.actor.velocities.clip", None),
        ("--env.observations.actor.joints.scale 2", "env.observations.actor.joints.scale", 2.0),
        ("--env.observations.actor.joints.uniform-noise 0", "env.observations.actor.joints.uniform_noise", 0.0),
        ("--env.observations.actor.joints.gaussian-noise 0.2", "env.observations.actor.joints.gaussian_noise", 0.2),
        ("--env.events.push.params.linear-m-s -1 1", "env.events.push.params.linear_m_s", (-1.0, 1.0)),
        ("--env.events.push.interval-s 1 2.5", "env.events.push.interval_s", (1.0, 2.5)),
        ("--env.events.push.when startup", "env.events.push.when", "startup"),
        ("--env.events.some.params.joints .*_hip tail", "env.events.some.params.joints", (".*_hip", "tail")),
        ("--env.events.some.params.joints tail", "env.events.some.params.joints", ("tail",)),
        ("--env.commands.velocity.params.forward-m-s 0.5 1", "env.commands.velocity.params.forward_m_s", (0.5, 1.0)),
        ("--env.commands.velocity.params.standing-share 0", "env.commands.velocity.params.standing_share", 0.0),
        ("--env.sensors.feet.params.sensors FL_touch", "env.sensors.feet.params.sensors", ("FL_touch",)),
        ("--env.terminations.tilted.params.max-rad 1", "env.terminations.tilted.params.max_rad", 1.0),
        ("--env.randomizations.friction.field geom_size", "env.randomizations.friction.field", "geom_size"),
        (
            "--env.randomizations.friction.names .*_foot floor",
            "env.randomizations.friction.names",
            (".*_foot", "floor"),
        ),
        ("--env.randomizations.friction.columns 0 1", "env.randomizations.friction.columns", (0, 1)),
        ("--env.randomizations.friction.columns", "env.randomizations.friction.columns", ()),
        ("--env.randomizations.friction.high 2", "env.randomizations.friction.high", 2.0),
        ("--env.randomizations.friction.operation scale", "env.randomizations.friction.operation", "scale"),
        (
            "--env.randomizations.friction.distribution log-uniform",
            "env.randomizations.friction.distribution",
            "log-uniform",
        ),
        ("--env.randomizations.friction.no-shared", "env.randomizations.friction.shared", False),
        ("--env.randomizations.friction.when startup", "env.randomizations.friction.when", "startup"),
    ],
)  # fmt: skip
def test_a_flag_changes_a_field_of_a_term_and_the_change_survives_the_file(
    tmp_path: Path, line: str, path: str, value: Any
):
    config = parse(TrainConfig, LEGGED, line.split(), "train legged")
    assert config == changed(LEGGED, path, value)
    assert value_at(config, path) == value
    assert type(value_at(config, path)) is type(value)
    assert config != LEGGED
    read = through_file(config, tmp_path)
    assert read == config
    assert type(value_at(read, path)) is type(value)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("--env.actions.rear.latency 1", "--env.actions.rear.latency"),
        ("--env.actions.rear.latency 0.5 1", "--env.actions.rear.latency"),
        ("--env.actions.rear.clip 1", "--env.actions.rear.clip"),
        ("--env.observations.actor.joints.delay late 1", "--env.observations.actor.joints.delay"),
        ("--env.events.push.interval-s 1", "--env.events.push.interval-s"),
        ("--env.events.push.when sometimes", "--env.events.push.when"),
        ("--env.events.push.params.angular-rad-s far 1", "--env.events.push.params.angular-rad-s"),
        ("--env.events.push.params.spin 1", "--env.events.push.params.spin"),
        ("--env.randomizations.mass.operation double", "--env.randomizations.mass.operation"),
    ],
)
def test_a_mistake_in_a_flag_of_a_term_is_one_line_that_names_it(line: str, flag: str):
    with pytest.raises(UserError) as caught:
        parse(TrainConfig, LEGGED, line.split(), "train legged")
    message = str(caught.value)
    assert "\n" not in message
    assert flag in message


@pytest.mark.parametrize(
    ("path", "value", "flag", "fix"),
    [
        ("env.actions.rear.latency", (2, 1), "--env.actions.rear.latency 2 1", "swap the two"),
        ("env.actions.rear.latency", (-1, 1), "--env.actions.rear.latency -1 1", "at least 0"),
        ("env.actions.front.clip", (1.0, -1.0), "--env.actions.front.clip 1.0 -1.0", "swap the two"),
        ("env.actions.front.clip", (float("nan"), 1.0), "--env.actions.front.clip nan 1.0", ""),
        ("env.observations.actor.joints.delay", (3, 1), "--env.observations.actor.joints.delay 3 1", "swap the two"),
        ("env.observations.actor.joints.delay", (-2, 1), "--env.observations.actor.joints.delay -2 1", "at least 0"),
        (
            "env.observations.actor.joints.clip",
            (1.0, 0.0),
            "--env.observations.actor.joints.clip 1.0 0.0",
            "swap the two",
        ),
        ("env.observations.actor.joints.history", 0, "--env.observations.actor.joints.history 0", "at least 1"),
        (
            "env.observations.critic.linear.uniform_noise",
            -0.1,
            "--env.observations.critic.linear.uniform-noise -0.1",
            "0 or more",
        ),
        (
            "env.observations.critic.linear.gaussian_noise",
            float("inf"),
            "--env.observations.critic.linear.gaussian-noise inf",
            "finite",
        ),
        ("env.events.push.interval_s", (2.0, 1.0), "--env.events.push.interval-s 2.0 1.0", "swap the two"),
        ("env.events.push.interval_s", (-1.0, 1.0), "--env.events.push.interval-s -1.0 1.0", "at least 0"),
    ],
)  # fmt: skip
def test_a_bad_value_of_a_term_is_refused(path: str, value: Any, flag: str, fix: str):
    message = refusal_of(changed(LEGGED, path, value))
    assert message.startswith(f"{flag}:")
    assert fix in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env.actions.rear.latency", (0, 0)),
        ("env.actions.front.clip", (0.0, 0.0)),
        ("env.observations.actor.joints.clip", (0.0, float("inf"))),
        ("env.observations.actor.joints.history", 1),
        ("env.events.push.interval_s", (0.0, 0.0)),
    ],
)
def test_a_value_of_a_term_at_its_limit_is_accepted(path: str, value: Any):
    validate(changed(LEGGED, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env.actions.rear.latency", [1]),
        ("env.actions.rear.latency", [1, 2, 3]),
        ("env.actions.rear.latency", [0.5, 1]),
        ("env.actions.rear.clip", [1.0]),
        ("env.actions.rear.clip", 1.0),
        ("env.actions.rear.offset", "house"),
        ("env.observations.actor.joints.delay", ["a", "b"]),
        ("env.observations.actor.joints.history", 1.5),
        ("env.events.push.interval_s", [1.0]),
        ("env.events.push.when", "sometimes"),
        ("env.randomizations.mass.names", "trunk"),
        ("env.randomizations.mass.columns", [0.5]),
        ("env.randomizations.mass.low", "low"),
        ("env.randomizations.mass.operation", "double"),
    ],
)
def test_a_value_of_a_term_of_the_wrong_type_is_refused(tmp_path: Path, path: str, value: Any):
    file_refusal(edited(LEGGED, tmp_path, path, value))


@pytest.mark.parametrize(("old", "new"), [(True, "physics"), (False, "off"), ("step", "step")])
def test_a_config_from_before_the_modes_of_capture_is_read(old: object, new: str):
    plain = to_plain(registry.task_config("cartpole-balance"))
    plain["env"]["sim"]["capture"] = old
    assert from_plain(plain).env.sim.capture == new
