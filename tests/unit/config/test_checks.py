"""Values of configs that are refused, and values at their limits, which are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from configs import LEGGED, changed

from mjlab_dist.config import (
    ObservationConfig,
    RandomizationConfig,
    TermConfig,
    TerminationConfig,
    TrainConfig,
    registry,
)
from mjlab_dist.config.checks import validate
from mjlab_dist.errors import UserError

TASKS = registry.task_names()

INF, NAN = float("inf"), float("nan")


def refusal_of(config: TrainConfig) -> str:
    with pytest.raises(UserError) as caught:
        validate(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_valid(task: str):
    validate(registry.task_config(task))


POSITIVE = (
    *("num_envs", "gpu_num_envs", "total_num_envs", "max_iterations", "total_timesteps", "env.sim.decimation"),
    *("cpu_ranks", "evaluate_interval", "evaluate_episodes"),
    *("fsdp_devices", "sync.period", "sync.check_interval", "agent.rnn_hidden_dim", "agent.rnn_num_layers"),
    *("agent.num_steps_per_env", "agent.num_learning_epochs", "agent.num_mini_batches"),
)
"""Whole numbers that must be at least 1."""


def flag_of(path: str) -> str:
    return f"--{path.replace('_', '-')}"


@pytest.mark.parametrize(
    ("path", "value", "fix"),
    [
        *((path, 0, "1") for path in POSITIVE),
        *((path, -1, "0") for path in ("checkpoint.keep_last", "checkpoint.keep_best", "max_restarts")),
        ("sync.fsdp_min_size_mb", -0.5, "0"),
        ("sync.fsdp_min_size_mb", NAN, "0"),
        ("sync.compression", "gzip", "bf16"),
        ("checkpoint.interval", 0, "600s"),
        ("checkpoint.interval", "ten minutes", "600s"),
        ("hang_timeout", 0.0, ""),
        ("env.episode_length_s", INF, ""),
        ("agent.learning_rate", -0.5, ""),
        ("agent.init_std", 0.0, ""),
        ("agent.min_std", 1e-9, "1e-06"),
        ("agent.init_std", 1e-4, "--agent.min-std"),
        ("agent.max_grad_norm", INF, ""),
        ("agent.gamma", 1.5, "1"),
        ("agent.gamma", NAN, "1"),
        ("agent.obs_clip", 0.0, "None"),
        ("agent.obs_clip", 10.0, "--agent.obs-normalization"),
        ("agent.lam", -0.1, "1"),
        ("agent.rnd.weight", -0.5, "0"),
        ("agent.symmetry.mirror_loss_coef", -0.5, "0"),
        ("run_name", "a/b", "/"),
        ("run_name", ".hidden", ""),
        ("env.rewards.smooth.weight", NAN, "finite"),
        ("env.actions.force.scale", INF, "finite"),
        ("env.sim.options.timestep_s", NAN, "finite"),
    ],
)
def test_a_bad_value_is_refused(config: TrainConfig, path: str, value: Any, fix: str):
    start, _, rest = refusal_of(changed(config, path, value)).partition(":")
    assert start == f"{flag_of(path)} {value}"
    assert fix in rest


def test_symmetry_needs_a_function_and_no_recurrent_policy(config: TrainConfig) -> None:
    recurrent = changed(changed(config, "agent.symmetry.use_data_augmentation", True), "agent.rnn", "lstm")
    assert refusal_of(recurrent).startswith("--agent.rnn lstm: ")
    without = changed(changed(config, "agent.symmetry.mirror_loss_coef", 0.5), "agent.symmetry.func", None)
    assert "--agent.symmetry.func" in refusal_of(without)
    validate(changed(config, "agent.symmetry.func", None))


@pytest.mark.parametrize(
    "name", ["two\nlines", "bell\a", "\x1b[31mred", "tab\tstop", "line\u2028separator", "not utf-8 \udcff"]
)
def test_control_characters_in_a_run_name_are_refused(config: TrainConfig, name: str):
    message = refusal_of(changed(config, "run_name", name))
    assert message.startswith(f"--run-name {name!r}: ")
    assert message.isprintable()


@pytest.mark.parametrize("path", ["log_root", "torchrunx_log_dir", "wandb_project", "env.sim.model"])
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud94c"])
def test_a_text_that_no_path_can_contain_is_refused(config: TrainConfig, path: str, text: str):
    assert refusal_of(changed(config, path, text)).startswith(f"{flag_of(path)} {text!r}: ")
    validate(changed(config, "log_root", "not utf-8 \udcff"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("num_envs", 1),
        ("num_envs", "auto"),
        ("total_num_envs", 1),
        ("total_timesteps", 1),
        ("sync.fsdp_min_size_mb", 0.0),
        ("sync.check_interval", 1),
        ("agent.gamma", 0.0),
        ("agent.gamma", 1.0),
        ("agent.lam", 1.0),
        ("run_name", "a.b"),
        ("logger", ()),
        ("logger", ("trackio", "wandb", "tensorboard", "package.module:Class", "package.module:Other")),
    ],
)
def test_a_value_at_its_limit_is_accepted(config: TrainConfig, path: str, value: Any):
    validate(changed(config, path, value))


@pytest.mark.parametrize(
    ("path", "value", "fix"),
    [
        ("env.observations", {}, "actor"),
        ("env.observations", {"critic": {"x": ObservationConfig(func="a:b")}}, "actor"),
        ("env.observations", {"actor": {}}, "actor"),
        ("env.actions", {}, ""),
        ("env.rewards", {}, ""),
    ],
)
def test_an_incomplete_env_is_refused(config: TrainConfig, path: str, value: Any, fix: str):
    start, _, rest = refusal_of(changed(config, path, value)).partition(":")
    assert start == path
    assert fix in rest


@pytest.mark.parametrize("path", ["agent.actor_hidden_dims", "agent.critic_hidden_dims"])
def test_networks_without_hidden_layers_are_refused(config: TrainConfig, path: str):
    assert refusal_of(changed(config, path, ())).startswith(f"{flag_of(path)}: ")


OWN = "package.module:Class"


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"fsdp_devices": 2, "sync.period": 4}, ("--fsdp-devices 2", "--sync.period 4")),
        ({"fsdp_devices": 2, "env.sim.capture": "step"}, ("--fsdp-devices 2", "--env.sim.capture step")),
        ({"fsdp_devices": 2, "sync.synchronizer": OWN}, ("--fsdp-devices 2", f"--sync.synchronizer {OWN}")),
        ({"sync.period": 4, "sync.compression": "bf16"}, ("--sync.compression bf16", "--sync.period 4")),
        ({"sync.period": 4, "sync.synchronizer": OWN}, (f"--sync.synchronizer {OWN}", "--sync.period 4")),
        ({"sync.compression": "fp16", "sync.synchronizer": OWN}, (f"--sync.synchronizer {OWN}", "compression fp16")),
    ],
)
def test_mutually_exclusive_fields_are_refused_only_together(
    config: TrainConfig, changes: dict[str, Any], flags: tuple[str, str]
):
    both = config
    for path, value in changes.items():
        validate(changed(config, path, value))
        both = changed(both, path, value)
    message = refusal_of(both)
    assert message.startswith(f"{flags[0]}: ")
    assert flags[1] in message


@pytest.mark.parametrize("ports", [(1023, 2000), (29500, 29500), (29501, 29500), (65535, 65536)])
def test_a_range_of_ports_has_at_least_two(config: TrainConfig, ports: tuple[int, int]):
    assert refusal_of(changed(config, "port_range", ports)).startswith(f"--port-range {ports[0]} {ports[1]}: ")
    validate(changed(config, "port_range", (29500, 29501)))


@pytest.mark.parametrize(
    ("hosts", "fix"),
    [
        (("node7", "node8", "node7"), "node7 "),
        (("",), "'' "),
        (("-oProxyCommand",), "'-oProxyCommand' "),
        (("localhost", "-F.ssh:2"), "'-F.ssh:2' "),
        (("node7:0",), "node7:0 "),
        (("fd00::7:",), "'fd00::7:' "),
        (("[node7]:4",), "'[node7]:4' "),
        (("[fd00::7]4",), "'[fd00::7]4' "),
        (("node7:4", "node7:2"), "node7 "),
        (("node7", "[fd00::7]:4", "fd00::7"), "fd00::7 "),
    ],
)
def test_bad_hosts_are_refused(config: TrainConfig, hosts: tuple[str, ...], fix: str):
    message = refusal_of(changed(config, "hosts", hosts))
    assert message.startswith(f"--hosts {' '.join(hosts)}: {fix}")


def test_a_minimum_number_of_hosts_needs_hosts_and_restarts(config: TrainConfig):
    several = changed(changed(config, "hosts", ("localhost", "node7")), "max_restarts", 1)
    validate(changed(several, "min_hosts", 2))
    for wrong in (
        changed(several, "min_hosts", 0),
        changed(changed(several, "min_hosts", 1), "max_restarts", 0),
        changed(changed(several, "min_hosts", 1), "hosts", ()),
    ):
        assert refusal_of(wrong).startswith(f"--min-hosts {wrong.min_hosts}: ")


@pytest.mark.parametrize("group", ["env.terminations", "env.metrics", "env.events", "env.observations.actor"])
def test_a_term_of_another_kind_is_refused(config: TrainConfig, group: str):
    wrong = TermConfig(func="mjlab_dist.mdp.terminations:tilted", params={"max_rad": 1.0})
    assert refusal_of(changed(config, group, {"tilted": wrong})).startswith(f"{group}.tilted: ")


@pytest.mark.parametrize(
    ("path", "value", "shown", "fix"),
    [
        ("env.actions.rear.latency", (2, 1), "2 1", ""),
        ("env.actions.rear.latency", (-1, 1), "-1 1", "0"),
        ("env.actions.front.latency_jitter", 1.5, "1.5", "at most 1"),
        ("env.actions.rear.latency_jitter", 0.5, "0.5", "latency is 1 1"),
        ("env.actions.front.clip", (1.0, -1.0), "1.0 -1.0", ""),
        ("env.actions.front.clip", (NAN, 1.0), "nan 1.0", ""),
        ("env.observations.actor.joints.delay", (3, 1), "3 1", ""),
        ("env.observations.actor.joints.delay", (-2, 1), "-2 1", "0"),
        ("env.observations.actor.joints.delay_jitter", -0.1, "-0.1", "0"),
        ("env.observations.actor.joints.clip", (1.0, 0.0), "1.0 0.0", ""),
        ("env.observations.actor.joints.history", 0, "0", "1"),
        ("env.observations.critic.linear.uniform_noise", -0.1, "-0.1", "0"),
        ("env.observations.critic.linear.uniform_noise", (0.1, -0.2, 0.1), "-0.2", "0"),
        ("env.observations.critic.linear.gaussian_noise", INF, "inf", ""),
        ("env.observations.actor.joints.scale", INF, "inf", "finite"),
        ("env.events.push.interval_s", (2.0, 1.0), "2.0 1.0", ""),
        ("env.events.push.interval_s", (-1.0, 1.0), "-1.0 1.0", "0"),
        ("env.events.push.interval_s", (1.0, INF), "1.0 inf", "finite"),
        ("env.events.push.params.ranges", ((0.0, 1.0), (0.0, NAN)), "[0.0, 1.0] [0.0, nan]", "finite"),
        ("env.events.push.params.by_joint", INF, "inf", "finite"),
        ("env.terminations.fallen.params.max_m", NAN, "nan", "finite"),
    ],
)
def test_a_bad_value_of_a_term_is_refused(path: str, value: Any, shown: str, fix: str):
    start, _, rest = refusal_of(changed(LEGGED, path, value)).partition(":")
    assert start == f"{flag_of(path)} {shown}"
    assert fix in rest


@pytest.mark.parametrize(
    ("path", "value", "takes"),
    [
        ("env.events.push.when", "start", "startup, reset, or interval"),
        ("env.nan_policy", "ignore", "stop, or reset"),
        ("env.sim.capture", True, "off, physics, or step"),
        ("agent.rnn", "LSTM", "none, lstm, or gru"),
        ("logger", "wandb", "a list of tensorboard, wandb, trackio, or a text"),
        ("env.actions.rear.offset", "default", "a number, home"),
        ("env.actions.rear.actuators", ".*", "texts; write ('.*',)"),
        ("env.actions.rear.clip", 1.0, "2 numbers"),
        ("env.actions.rear.latency", (1, 2, 3), "2 whole numbers"),
        ("env.actions.rear.latency", (0.5, 1), "2 whole numbers"),
        ("env.observations.critic.linear.scale", "1", "a number"),
        ("agent.num_mini_batches", 4.0, "a whole number"),
        ("env.sim.njmax", None, "a whole number"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_although_python_accepts_it(path: str, value: Any, takes: str):
    assert refusal_of(changed(LEGGED, path, value)).startswith(f"{path} {value!r}: takes {takes}")


def test_the_type_of_each_of_several_terms_is_checked():
    terms = {name: RandomizationConfig(field="body_mass") for name in ("first", "second")}
    config = changed(LEGGED, "env.randomizations", terms)
    validate(config)
    message = refusal_of(changed(config, "env.randomizations.second.when", "episode"))
    assert message == "env.randomizations.second.when 'episode': takes startup, reset, or interval"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env.actions.rear.latency", (0, 0)),
        ("env.actions.front.clip", (0.0, 0.0)),
        ("env.observations.actor.joints.clip", (0.0, float("inf"))),
        ("env.observations.actor.joints.history", 1),
        ("env.events.push.interval_s", (0.0, 0.0)),
        ("env.terminations.fallen.params", {"max_m": INF}),
        ("env.terminations.fallen.params", {"low": (0.0, -INF), "high": INF}),
        ("env.terminations.fallen", TerminationConfig(func="env_terms_for_test:beyond", params={"limit_m": INF})),
    ],
)
def test_a_value_of_a_term_at_its_limit_is_accepted(path: str, value: Any):
    validate(changed(LEGGED, path, value))


@pytest.mark.parametrize(
    ("names", "start", "fix"),
    [
        (("paper",), "--logger paper: ", "tensorboard, wandb or trackio, or package.module:Class"),
        (("wandb", "tensorbord"), "--logger tensorbord: ", "did you mean tensorboard?"),
        (("tensorboard,wandb",), "--logger tensorboard,wandb: ", "separate several loggers by spaces"),
        (("",), "--logger : ", "package.module:Class"),
        (("wandb", "a:B", "wandb"), "--logger wandb a:B wandb: ", "wandb is repeated; name each logger once"),
        (("a:B", "a:B"), "--logger a:B a:B: ", "a:B is repeated; name each logger once"),
    ],
)
def test_unknown_and_repeated_loggers_are_refused(config: TrainConfig, names: tuple[str, ...], start: str, fix: str):
    message = refusal_of(changed(config, "logger", names))
    assert message.startswith(start)
    assert fix in message
