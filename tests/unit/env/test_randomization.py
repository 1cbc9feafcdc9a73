"""Models that differ between envs. Expected values come from the original model and MuJoCo's C library."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import (
    CONFIG,
    DT_S,
    assert_independent,
    assert_replays,
    assert_resumes,
    assert_uniform,
    end_episodes,
    float64,
    make,
    refused,
    step,
)

from mjlab_dist.config import EventConfig, RandomizationConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError

NUM_ENVS = 24
MANY = 2000
"""Number of envs in tests of distributions."""


def draw(field: str, low: float, high: float, **other: Any) -> RandomizationConfig:
    return RandomizationConfig(field=field, low=low, high=high, **other)


def own(env: Env, field: str) -> np.ndarray:
    """Return the values of a field of the original model, which is an mjModel of MuJoCo's C library."""
    return np.asarray(env.sim.model.opt.gravity if field == "gravity" else getattr(env.sim.model, field))


# Sampled values

FIELDS: list[tuple[str, dict[str, Any], tuple[int | tuple[int, int], ...]]] = [
    ("body_mass", {"names": ("trunk", ".R")}, (1, 3, 5)),
    ("body_ipos", {"names": ("trunk",), "columns": (0, 2)}, ((1, 0), (1, 2))),
    ("geom_friction", {"names": (".*_foot",), "columns": (0,)}, ((3, 0), (5, 0), (7, 0), (9, 0))),
    ("jnt_range", {"names": ("FL_hip",)}, ((1, 0), (1, 1))),
    ("dof_damping", {"names": ("root",)}, (0, 1, 2, 3, 4, 5)),
    ("qpos0", {"names": (".L_hip",)}, (7, 9)),
    ("qpos_spring", {"names": ("tail",)}, (11,)),
    ("actuator_biasprm", {"names": ("FR_leg",), "columns": (1, 2)}, ((1, 1), (1, 2))),
    ("site_pos", {"names": ("RR_foot",), "columns": (2,)}, ((4, 2),)),
    ("gravity", {}, (0, 1, 2)),
    ("gravity", {"columns": (2,)}, (2,)),
    ("density", {}, ()),
]


@pytest.mark.parametrize(("field", "chosen", "where"), FIELDS, ids=[f"{f}-{'-'.join(c)}" for f, c, _ in FIELDS])
def test_only_the_named_fields_are_randomized(field: str, chosen: dict[str, Any], where: tuple[Any, ...]) -> None:
    env = make(NUM_ENVS, randomizations={"it": draw(field, 0.25, 0.75, operation="add", **chosen)})
    values = float64(env.sim.field(field))
    before = np.asarray(env.sim.model.opt.density if field == "density" else own(env, field), dtype=float)
    change = values - before.astype(np.float32)
    if field != "density":
        expected = np.zeros(before.shape, dtype=bool)
        for place in where:
            expected[place] = True
        assert np.array_equal((change != 0).all(axis=0), expected)
        assert np.array_equal((change != 0).any(axis=0), expected)
        change = change[:, expected]
    assert change.min() >= 0.25 - 1e-5
    assert change.max() <= 0.75 + 1e-5
    assert len(np.unique(change)) == change.size  # no two values are equal


@pytest.mark.parametrize("shared", [False, True])
def test_factors_are_uniform_and_a_shared_factor_is_equal_for_all_selected_elements(shared: bool) -> None:
    env = make(MANY, randomizations={"it": draw("geom_friction", 0.5, 1.5, names=(".*_foot",), shared=shared)})
    factors = float64(env.sim.field("geom_friction"))[:, 3::2][:, :4] / own(env, "geom_friction")[3::2][:4]
    assert factors.shape == (MANY, 4, 3)
    for foot in range(4):
        for column in range(3):
            assert_uniform(factors[:, foot, column], 0.5, 1.5)
    flat = factors.reshape(MANY, -1)
    if shared:
        assert np.ptp(flat, axis=1).max() < 1e-6
    else:
        assert_independent(*flat.T)


def test_values_are_drawn_log_uniformly() -> None:
    env = make(
        MANY,
        randomizations={
            "damping": draw("dof_damping", 0.01, 10.0, names=(".*_hip",), operation="set", distribution="log-uniform"),
            "armature": draw("dof_armature", 0.1, 10.0, names=("tail",), operation="scale", distribution="log-uniform"),
            "loss": draw("dof_frictionloss", 0.2, 0.4, operation="set"),
        },
    )
    damping = float64(env.sim.field("dof_damping"))
    for dof in range(6, 10):
        assert_uniform(np.log(damping[:, dof]), np.log(0.01), np.log(10.0))
    assert (damping[:, 10] == np.float32(0.01)).all()
    assert not float64(env.sim.field("dof_armature"))[:, 10].any()  # the original value 0 stays 0 after multiplication
    for dof in range(11):
        assert_uniform(float64(env.sim.field("dof_frictionloss"))[:, dof], 0.2, 0.4)


def test_several_randomizations_of_one_field_apply_in_order() -> None:
    mass = {
        "load": draw("body_mass", 1.0, 2.0, names=("trunk",), operation="add"),
        "all": draw("body_mass", 2.0, 2.0, names=(".*",)),
    }
    env = make(NUM_ENVS, randomizations=mass)
    values, before = float64(env.sim.field("body_mass")), own(env, "body_mass")
    assert ((values[:, 1] >= 2 * 5.0) & (values[:, 1] <= 2 * 6.0)).all()
    np.testing.assert_allclose(values[:, 2:], np.tile(2 * before[2:], (NUM_ENVS, 1)), rtol=1e-6)


# Effects of randomized values


DERIVED = ("body_subtreemass", "dof_invweight0", "body_invweight0", "actuator_acc0", "geom_rbound")


def assert_constants_match(env: Env, *changed: str) -> None:
    """Compare derived constants of every env with those that MuJoCo's C library computes."""
    model = mujoco.MjModel.from_xml_path(CONFIG.sim.model)
    for i in range(env.num_envs):
        for field in changed:
            getattr(model, field)[:] = float64(env.sim.field(field))[i]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        for field in DERIVED:
            ours = float64(env.sim.field(field))[i]
            np.testing.assert_allclose(ours, getattr(model, field), rtol=1e-3, atol=1e-6, err_msg=field)


def test_constants_derived_from_masses_match_mujoco() -> None:
    armature = draw("dof_armature", 0.01, 0.1, operation="set", names=(".*_hip",))
    env = make(4, randomizations={"mass": draw("body_mass", 0.5, 2.0), "armature": armature})
    assert_constants_match(env, "body_mass", "dof_armature")


def test_randomization_does_not_change_the_start_of_an_episode() -> None:
    env = make(
        4,
        randomizations={
            "mass": draw("body_mass", 0.5, 2.0),
            "qpos0": draw("qpos0", 0.1, 0.2, operation="add", names=(".*_hip",)),
        },
    )
    assert torch.equal(env.sim.qpos, make(4).sim.qpos)
    assert torch.equal(env.reference.qpos, env.sim.qpos)


def test_every_env_steps_with_its_own_masses_gains_damping_and_gravity() -> None:
    draws = {
        "mass": draw("body_mass", 0.7, 1.5),
        "com": draw("body_ipos", -0.02, 0.02, operation="add", names=("trunk",)),
        "damping": draw("dof_damping", 0.5, 2.0, names=(".*_hip", "tail")),
        "armature": draw("dof_armature", 0.5, 2.0, names=(".*_hip",)),
        "gain": draw("actuator_gainprm", 0.8, 1.2, names=(".*_leg",), columns=(0,)),
        "friction": draw("geom_friction", 0.3, 1.2, shared=True),
        "size": draw("geom_size", 0.8, 1.2, names=(".*_foot",)),
        "gravity": draw("gravity", 0.8, 1.2, columns=(2,)),
    }
    env = make(6, randomizations=draws)
    model = mujoco.MjModel.from_xml_path(CONFIG.sim.model)
    actions = torch.randn(30, 6, 4, generator=torch.Generator().manual_seed(0))
    models = []
    for i in range(6):
        for field in {one.field for one in draws.values()}:
            values = model.opt.gravity if field == "gravity" else getattr(model, field)
            values[:] = float64(env.sim.field(field))[i].reshape(values.shape)
        mujoco.mj_setConst(model, mujoco.MjData(model))
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        for row in actions:
            data.ctrl = [*(np.array([0.2, 0.2, -0.2, -0.2]) + 0.5 * float64(row[i])), 0, 0]
            for _ in range(2):
                mujoco.mj_step(model, data)
        models.append((data.qpos.copy(), data.qvel.copy()))
    for row in actions:
        env.step(row)
    found = float64(env.sim.qpos)
    np.testing.assert_allclose(found, [qpos for qpos, _ in models], rtol=0, atol=1e-3)
    np.testing.assert_allclose(float64(env.sim.qvel), [qvel for _, qvel in models], rtol=0, atol=3e-2)
    assert np.ptp(found[:, 2]) > 0.005


def test_values_are_drawn_normally_and_clipped() -> None:
    normal: dict[str, Any] = {"operation": "set", "distribution": "normal", "names": (".*_hip",)}
    env = make(
        MANY,
        randomizations={
            "damping": RandomizationConfig(field="dof_damping", mean=3.0, std=0.5, **normal),
            "loss": RandomizationConfig(field="dof_frictionloss", mean=0.1, std=0.1, low=0.0, high=0.2, **normal),
        },
    )
    damping, loss = (float64(env.sim.field(name))[:, 6:10] for name in ("dof_damping", "dof_frictionloss"))
    share = torch.special.ndtr(torch.from_numpy((damping - 3.0) / 0.5)).numpy()
    for dof in range(4):
        assert_uniform(share[:, dof], 0.0, 1.0)
    assert_independent(*damping.T)
    assert loss.min() == 0.0
    assert loss.max() == np.float32(0.2)
    assert (loss == 0.0).mean() == pytest.approx(0.1587, abs=0.02)  # low is 1 standard deviation below the mean


# At reset


def test_a_randomization_at_reset_lasts_one_episode_and_changes_only_its_env() -> None:
    friction = draw("geom_friction", 0.5, 1.5, names=(".*_foot",), columns=(0,), when="reset")
    env = make(NUM_ENVS, randomizations={"it": friction})
    field = env.sim.field("geom_friction")
    before = field.clone()
    assert len(before[:, 3, 0].unique()) == NUM_ENVS
    step(env, 3)
    assert torch.equal(field, before)
    ends = torch.arange(NUM_ENVS) % 3 == 0
    end_episodes(env, ends)
    step(env)
    changed = field != before
    expected = torch.zeros_like(changed)
    expected[ends.unsqueeze(1) & torch.tensor([False, False, False, True] + [False, True] * 3 + [False]), 0] = True
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("operation", ["scale", "add"])
def test_randomizations_at_reset_start_from_the_startup_values_and_do_not_accumulate(operation: Any) -> None:
    env = make(
        NUM_ENVS,
        randomizations={
            "startup": draw("dof_damping", 2.0, 4.0, names=("tail",)),
            "first": draw("dof_damping", 0.9, 1.1, names=("tail",), operation=operation, when="reset"),
            "second": draw("dof_damping", 0.9, 1.1, names=("tail",), operation=operation, when="reset"),
        },
    )
    field = env.sim.field("dof_damping")
    drawn = []
    for _ in range(40):
        end_episodes(env, torch.ones(NUM_ENVS, dtype=torch.bool))
        step(env)
        drawn.append(float64(field)[:, 10])
    values = np.stack(drawn)
    base = float64(env.state()["randomized.dof_damping"])[:, 10]
    assert (base >= 0.02 - 1e-6).all()
    assert (base <= 0.04 + 1e-6).all()
    assert len(np.unique(base)) == NUM_ENVS
    change = values / base if operation == "scale" else values - base
    low, high = (0.81, 1.21) if operation == "scale" else (1.8, 2.2)
    assert change.min() >= low - 1e-3
    assert change.max() <= high + 1e-3
    assert np.ptp(change) > 0.6 * (high - low)
    assert (np.abs(np.diff(values, axis=0)) > 0).all()


PAYLOAD = {"payload": draw("body_mass", 0.0, 5.0, names=("trunk",), operation="add", when="reset")}


def test_a_payload_per_episode_changes_only_its_env_and_constants_that_depend_on_the_mass() -> None:
    env = make(6, randomizations=PAYLOAD)
    mass, trunk = env.sim.field("body_mass"), env.sim.model.body("trunk").id
    assert_constants_match(env, "body_mass")
    for ends in ([True, False, True, False, False, False], [True] * 6):
        before, qpos = mass.clone(), env.sim.qpos.clone()
        end_episodes(env, torch.tensor(ends))
        step(env)
        changed = mass != before
        assert changed[:, trunk].tolist() == ends
        assert changed.sum() == sum(ends)
        assert_constants_match(env, "body_mass")
        assert (env.sim.qpos != qpos).any()
    added = float64(mass)[:, trunk] - own(env, "body_mass")[trunk]
    assert ((added >= 0) & (added <= 5)).all()


def test_computing_constants_at_resets_does_not_change_the_state() -> None:
    """Scale masses by 1 at every reset. This recomputes poses and derived constants, but changes no state."""
    env, plain = (make(4, randomizations=given) for given in ({"it": draw("body_mass", 1.0, 1.0, when="reset")}, {}))
    for i in range(20):
        actions = torch.full((4, 4), 0.1 * i)
        for one in (env, plain):
            one.step(actions)
        torch.testing.assert_close(env.sim.qpos, plain.sim.qpos, atol=1e-4, rtol=0)


# At intervals


def test_a_randomization_at_intervals_changes_the_startup_value_until_the_episode_ends() -> None:
    num_envs, interval_s = 60, (0.05, 0.15)
    every = draw("dof_damping", 2.0, 3.0, names=("tail",), when="interval", interval_s=interval_s)
    env = make(num_envs, randomizations={"it": every}, episode_length_s=100.0)
    field, own_value = env.sim.field("dof_damping"), float(np.float32(own(env, "dof_damping")[10]))
    assert (field[:, 10] == own_value).all()
    since, gaps = np.zeros(num_envs), []
    rng = np.random.default_rng(0)
    for _ in range(100):
        before, ends = field.clone(), rng.random(num_envs) < 0.02
        end_episodes(env, torch.from_numpy(ends))
        step(env)
        since += DT_S
        now = float64(field)[:, 10]
        assert (now[ends] == own_value).all()
        changed = (field != before).any(dim=1).numpy() & ~ends
        assert not (field != before)[:, :10].any()
        assert ((now[changed] >= 2 * own_value - 1e-6) & (now[changed] <= 3 * own_value + 1e-6)).all()
        gaps += list(since[changed])
        since[changed | ends] = 0
    assert len(gaps) > 500
    assert min(gaps) > interval_s[0] - 0.5 * DT_S - 1e-9
    assert max(gaps) < interval_s[1] + 0.5 * DT_S + 1e-9


# Events that write to the model

ADD = {"func": "env_terms_for_test:add_mass", "params": {"body": "trunk", "kg": 2.0}}


def test_derived_constants_match_a_field_that_a_startup_event_writes() -> None:
    heavier = EventConfig(func="env_terms_for_test:add_mass_by_env", params={"body": "trunk"})
    env = make(4, events={"heavier": heavier.at_startup().writing("body_mass")}, randomizations={})
    trunk = env.sim.model.body("trunk").id
    added = float64(env.sim.field("body_mass"))[:, trunk] - own(env, "body_mass")[trunk]
    np.testing.assert_allclose(added, [0, 1, 2, 3], atol=1e-5)
    assert_constants_match(env, "body_mass")


@pytest.mark.parametrize("when", ["reset", "interval"])
def test_a_field_that_an_event_writes_starts_each_episode_from_its_startup_value(when: Any) -> None:
    event = EventConfig(**ADD, when=when, interval_s=(0.03, 0.03), model_fields=("body_mass",))
    env = make(4, events={"add": event}, episode_length_s=0.1, terminations={})
    trunk = env.sim.model.body("trunk").id
    start = own(env, "body_mass")[trunk]
    seen = []
    for _ in range(25):
        step(env)
        seen.append(float(env.sim.field("body_mass")[0, trunk]) - start)
        assert_constants_match(env, "body_mass")
    assert len({round(value, 3) for value in seen}) == (1 if when == "reset" else 4)
    assert max(seen) == pytest.approx(2.0 if when == "reset" else 6.0, abs=1e-4)


@pytest.mark.parametrize("when", ["startup", "reset", "interval"])
def test_an_event_that_writes_to_a_field_that_it_does_not_declare_is_refused(when: Any) -> None:
    with pytest.raises(UserError, match=r'^--env\.events\.add: writes to body_mass, .*\.writing\("body_mass"\)'):
        step(make(1, events={"add": EventConfig(**ADD, when=when)}))


def test_a_field_that_does_not_exist_cannot_be_declared() -> None:
    assert refused(events={"add": EventConfig(**ADD, model_fields=("mass",))}).startswith("field mass: ")


CHANGING: dict[str, Any] = {
    "randomizations": {
        **PAYLOAD,
        "damping": draw("dof_damping", 0.5, 2.0, when="interval", interval_s=(0.02, 0.05)),
    },
    "events": {"add": EventConfig(**ADD, when="interval", interval_s=(0.02, 0.05), model_fields=("body_mass",))},
    "episode_length_s": 0.1,
}


@pytest.mark.usefixtures("engine_of_gpus")
def test_a_step_that_changes_the_model_is_a_replay() -> None:
    env = make(4, **CHANGING)
    assert_replays(env)


def test_a_changed_model_is_resumed() -> None:
    assert_resumes(lambda seed: make(4, seed, **CHANGING), 7, 30)


def test_without_randomizations_all_envs_share_one_model() -> None:
    env = make(3)
    assert env.sim.fields == {}
    assert env.sim.field("geom_friction").stride(0) == 0


# Wrong randomizations are refused


@pytest.mark.parametrize(
    ("config", "start", "fix"),
    [
        (draw("friction", 0, 1), "field friction: ", "geom_friction"),
        (draw("body_subtreemass", 0, 1), "field body_subtreemass: ", "body_mass"),
        (draw("body_mass", 0, 1, names=("x",)), "--env.randomizations.it.names x: ", "trunk, FL, FR, RL, RR, tail"),
        (draw("geom_friction", 0, 1, columns=(0, 3)), "--env.randomizations.it.columns 3: ", " 0 to 2"),
        (draw("geom_friction", 0, 1, columns=(-1,)), "--env.randomizations.it.columns -1: ", " 0 to 2"),
        (draw("body_mass", 0, 1, columns=(0,)), "--env.randomizations.it.columns 0: ", "columns"),
        (draw("gravity", 0, 1, names=("trunk",)), "--env.randomizations.it.names trunk: ", "names"),
        (draw("body_mass", 2, 1), "--env.randomizations.it.low 2: ", "high 1"),
        (draw("body_mass", float("nan"), 1), "--env.randomizations.it.low nan: ", ""),
        (RandomizationConfig(field="body_mass", low=0), "--env.randomizations.it: ", "high"),
        (draw("body_mass", 0, 1, mean=0.5), "--env.randomizations.it.mean 0.5: ", "normal"),
        (draw("body_mass", 0, 1, distribution="normal", mean=1), "--env.randomizations.it.std None: ", "mean"),
        (draw("body_mass", 0, 1, distribution="normal", std=1), "--env.randomizations.it.mean None: ", "mean"),
        (draw("body_mass", 0, 1, distribution="log-uniform"), "--env.randomizations.it.low 0: ", "log-uniform"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(config: RandomizationConfig, start: str, fix: str) -> None:
    message = refused(randomizations={"it": config})
    assert message.startswith(start)
    assert fix in message.removeprefix(start)
