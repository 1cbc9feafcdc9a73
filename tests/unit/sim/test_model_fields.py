"""Models that differ between envs. The envs move as in MuJoCo's C code with one model per env."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.config import ActuatorConfig, SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, build_model, copy_state, start_warp

NUM_ENVS = 5

NUM_STEPS = 60

TOL = 1e-4
"""Tolerance of float32 after NUM_STEPS steps, in m and rad. The largest measured difference from float64 is 3e-5."""

EXACT_TOL = 1e-6
"""Tolerance for the engine mujoco, compared with C code that also rounds the state: it differs only in constants of the
model, which are rounded. The largest measured difference is 2e-7."""

LAB = SimConfig(
    model=str(Path(__file__).parents[2] / "data" / "models" / "lab.xml"),
    njmax=48,
    nconmax=8,
    actuators={
        "motors": ActuatorConfig(joints=("elbow",), stiffness=5.0, damping=0.05, effort_limit=1.0, velocity_limit=4.0)
    },
)

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Function that computes the values of an env from the original model's values, (objects, ...)."""


def scaled(low: float, high: float) -> Change:
    return lambda own, rng: own * rng.uniform(low, high, own.shape)


def moved(by: float) -> Change:
    return lambda own, rng: own + rng.uniform(-by, by, own.shape)


def turned(by: float) -> Change:
    def change(own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        values = own + rng.uniform(-by, by, own.shape)
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    return change


def drawn(low: float, high: float) -> Change:
    return lambda own, rng: rng.uniform(low, high, own.shape)


def columns(change: Change, *which: int) -> Change:
    def of_those(own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        values = own.copy()
        values[..., list(which)] = change(own, rng)[..., list(which)]
        return values

    return of_those


CHANGES: dict[str, Change] = {
    "body_mass": scaled(0.5, 2.0),
    "body_inertia": scaled(0.5, 2.0),
    "body_ipos": moved(0.02),
    "body_iquat": turned(0.1),
    "body_pos": moved(0.05),
    "body_quat": turned(0.1),
    "body_gravcomp": drawn(0.0, 1.0),
    "jnt_stiffness": drawn(0.0, 3.0),
    "jnt_range": scaled(0.5, 1.2),
    "jnt_pos": moved(0.02),
    "jnt_axis": turned(0.1),
    "qpos0": moved(0.02),
    "dof_damping": drawn(0.0, 0.5),
    "dof_armature": drawn(0.0, 0.1),
    "dof_frictionloss": drawn(0.01, 0.5),
    "geom_size": scaled(0.7, 1.1),
    "geom_pos": moved(0.02),
    "geom_quat": turned(0.05),
    "geom_friction": scaled(0.1, 1.2),
    "geom_margin": drawn(0.0, 0.02),
    "geom_solref": columns(scaled(1.0, 3.0), 0),
    "geom_solimp": columns(scaled(0.9, 1.0), 0, 1),
    "site_pos": moved(0.05),
    "pair_friction": scaled(0.1, 1.2),
    "tendon_stiffness": drawn(0.0, 40.0),
    "tendon_damping": drawn(0.0, 1.0),
    "tendon_frictionloss": drawn(0.01, 0.5),
    "tendon_armature": drawn(0.0, 0.1),
    "tendon_range": scaled(0.2, 1.0),
    "tendon_lengthspring": scaled(0.5, 1.5),
    "eq_data": columns(moved(0.05), 0, 1, 2),
    "actuator_gainprm": columns(scaled(0.5, 1.5), 0, 4, 6),
    "actuator_biasprm": columns(scaled(0.5, 1.5), 1, 2),
    "actuator_forcerange": scaled(0.2, 1.0),
    "actuator_ctrlrange": scaled(0.2, 1.0),
    "actuator_gear": columns(scaled(0.5, 2.0), 0),
    "cam_pos": moved(0.5),
    "light_pos": moved(0.5),
    "light_dir": turned(0.2),
    "gravity": moved(3.0),
    "wind": moved(30.0),
    "density": drawn(0.0, 100.0),
    "viscosity": drawn(0.0, 1.0),
}

POSES = {"geom_xpos", "geom_xmat"}
"""Fields that differ between envs if static geoms may move. They depend on joint positions: they are not constants."""

NOT_OF_MOTION = {"cam_pos", "light_pos", "light_dir"}


@pytest.fixture(autouse=True, scope="module")
def _warp() -> None:
    start_warp("cpu")


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(LAB)


@pytest.fixture(scope="module", params=["warp", "mujoco"])
def config(request: pytest.FixtureRequest) -> SimConfig:
    return dataclasses.replace(LAB, engine=request.param)


@pytest.fixture(scope="module")
def lab(model: Any, config: SimConfig) -> Simulation:
    return Simulation(model, NUM_ENVS, "cpu", config, tuple(CHANGES))


def without_simple_bodies(model: Any, name: str, values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return `values`. For bodies whose inertial frame MuJoCo assumes to be at the body's origin, return `own`."""
    if name not in {"body_ipos", "body_iquat"}:
        return values
    return np.where((model.body_simple != 0)[:, None], own, values)


def own_value(model: Any, name: str) -> np.ndarray:
    return np.array(getattr(model, name) if hasattr(model, name) else getattr(model.opt, name), dtype=float)


def model_of_env(model: Any, values: dict[str, np.ndarray]) -> Any:
    """Return the model with different values, and with the constants that MuJoCo computes from these values."""
    own = copy.deepcopy(model)
    # Where frames coincide, the compiler lets MuJoCo skip computations. Undo this, because new values can move frames.
    own.body_sameframe[:] = own.geom_sameframe[:] = own.site_sameframe[:] = 0
    for name, value in values.items():
        if hasattr(own, name):
            getattr(own, name)[:] = value
        else:
            setattr(own.opt, name, value)
    mujoco.mj_setConst(own, mujoco.MjData(own))
    return own


def start_and_inputs(model: Any, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions, velocities and inputs of every env. The cube slides, the puck falls, and other bodies swing."""
    rng = np.random.default_rng(seed)
    qpos = np.tile(model.qpos0, (NUM_ENVS, 1))
    qvel = np.zeros((NUM_ENVS, model.nv))
    cube, puck, arm, bob = 0, 7, 9, 11
    qpos[:, cube + 2] -= 0.001  # touches the ground at all four corners in spite of rounding
    qpos[:, puck + 1] += 0.02
    qpos[:, arm : arm + 2] = rng.uniform(-0.2, 0.2, (NUM_ENVS, 2))
    qvel[:, :2] = rng.uniform(0.5, 1.0, (NUM_ENVS, 2))
    qvel[:, 6] = rng.uniform(0.5, 1.0, NUM_ENVS)
    qvel[:, 8:10] = rng.uniform(-3, 3, (NUM_ENVS, 2))
    qvel[:, bob + 2 : bob + 5] = rng.uniform(-2, 2, (NUM_ENVS, 3))
    ctrl = rng.uniform(-2, 2, (NUM_STEPS, NUM_ENVS, model.nu))
    return qpos.astype(np.float32), qvel.astype(np.float32), ctrl.astype(np.float32)


def round_state(data: Any) -> None:
    """Round a state to float32, as the engine mujoco does after each step. A landing cube can amplify the rounding."""
    for name in ("qpos", "qvel", "act", "qacc_warmstart"):
        getattr(data, name)[:] = getattr(data, name).astype(np.float32)


def oracle_trajectory(
    models: list[Any], qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray, *, is_rounded: bool = False
) -> np.ndarray:
    seen = np.empty((NUM_STEPS, NUM_ENVS, models[0].nq))
    for env, own in enumerate(models):
        data = mujoco.MjData(own)
        data.qpos, data.qvel = qpos[env], qvel[env]
        for i in range(NUM_STEPS):
            data.ctrl = ctrl[i, env]
            mujoco.mj_step(own, data)
            if is_rounded:
                round_state(data)
            seen[i, env] = data.qpos
    return seen


def trajectory(sim: Simulation, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:
    sim.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    sim.qpos.copy_(torch.from_numpy(qpos))
    sim.qvel.copy_(torch.from_numpy(qvel))
    seen = []
    for row in ctrl:
        sim.ctrl.copy_(torch.from_numpy(row))
        sim.step()
        seen.append(sim.qpos.numpy().copy())
    return np.array(seen)


def set_back(sim: Simulation) -> None:
    for name in CHANGES:
        own = torch.from_numpy(own_value(sim.model, name)).float()
        sim.field(name).copy_(own.reshape(sim.field(name).shape[1:]).expand_as(sim.field(name)))


@pytest.mark.parametrize("name", CHANGES)
def test_every_env_has_its_own_value_and_derived_constants_as_in_c(model: Any, lab: Simulation, name: str) -> None:
    rng = np.random.default_rng(3)
    set_back(lab)
    own = own_value(model, name)
    changed = [without_simple_bodies(model, name, CHANGES[name](own, rng), own) for _ in range(NUM_ENVS)]
    values = np.array(changed).astype(np.float32)
    lab.field(name).copy_(torch.from_numpy(values).reshape(lab.field(name).shape))
    lab.update_constants()

    models = [model_of_env(model, {name: value}) for value in values]
    for derived in lab.fields.keys() - set(CHANGES) - POSES | {name, "eq_data"}:
        oracle = np.array([own_value(m, derived) for m in models]).reshape(lab.field(derived).shape)
        np.testing.assert_allclose(lab.field(derived), oracle, rtol=2e-4, atol=2e-5, err_msg=derived)

    qpos, qvel, ctrl = start_and_inputs(model, 4)
    is_rounded = lab.engine == "mujoco"
    ours = trajectory(lab, qpos, qvel, ctrl)
    oracle = oracle_trajectory(models, qpos, qvel, ctrl, is_rounded=is_rounded)
    unchanged = oracle_trajectory([model] * NUM_ENVS, qpos, qvel, ctrl)
    np.testing.assert_allclose(ours, oracle, rtol=0, atol=EXACT_TOL if is_rounded else TOL)
    assert (np.abs(unchanged - oracle).max() > 20 * TOL) == (name not in NOT_OF_MOTION)


def change_everything(sim: Simulation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, change in CHANGES.items():
        own = own_value(sim.model, name)
        values = np.array([without_simple_bodies(sim.model, name, change(own, rng), own) for _ in range(NUM_ENVS)])
        sim.field(name).copy_(torch.from_numpy(values).float().reshape(sim.field(name).shape))
    sim.update_constants()


def test_captured_equals_eager_bit_for_bit_with_all_fields_per_env(model: Any, config: SimConfig, lab: Simulation):
    eager = Simulation(model, NUM_ENVS, "cpu", dataclasses.replace(config, capture="off"), tuple(CHANGES))
    assert lab.captured
    assert not eager.captured
    for sim in (lab, eager):
        change_everything(sim, 1)
    assert {name: field.tolist() for name, field in lab.fields.items() if name not in POSES} == {
        name: field.tolist() for name, field in eager.fields.items() if name not in POSES
    }
    start = start_and_inputs(model, 2)
    assert np.array_equal(trajectory(lab, *start), trajectory(eager, *start))
    assert not lab.overflow.any()


def test_a_new_simulation_continues_bit_for_bit_from_fields_and_state_of_another(
    model: Any, config: SimConfig, lab: Simulation
) -> None:
    change_everything(lab, 3)
    trajectory(lab, *start_and_inputs(model, 4))
    new = Simulation(model, NUM_ENVS, "cpu", config, tuple(CHANGES))
    for source, target in ((lab.fields, new.fields), (lab.state(), new.state())):
        copy_state({name: tensor.clone() for name, tensor in source.items()}, target)
    for _ in range(20):
        for sim in (lab, new):
            sim.step()
        assert torch.equal(lab.qpos, new.qpos)
        assert torch.equal(lab.view("geom_xpos"), new.view("geom_xpos"))


def test_computing_constants_does_not_change_the_state(model: Any, lab: Simulation) -> None:
    change_everything(lab, 5)
    trajectory(lab, *start_and_inputs(model, 6))
    before = {name: tensor.clone() for name, tensor in lab.state().items()}
    fields = {name: tensor.clone() for name, tensor in lab.fields.items() if name not in POSES}
    lab.step()
    after = {name: tensor.clone() for name, tensor in lab.state().items()}
    copy_state(before, lab.state())
    lab.update_constants()
    for name, tensor in before.items():
        assert torch.equal(lab.state()[name], tensor), name
    for name, tensor in fields.items():
        assert torch.equal(lab.fields[name], tensor), name
    lab.step()
    for name, tensor in after.items():
        assert torch.equal(lab.state()[name], tensor), name


def test_an_inertia_that_mujoco_assumes_constant_cannot_be_moved(lab: Simulation) -> None:
    set_back(lab)
    lab.field("body_ipos")[2, lab.model.body("puck").id, 0] = 0.01
    with pytest.raises(UserError, match=r'body puck.*simple="false"'):
        lab.update_constants()


def test_sensors_read_by_name_equal_those_of_c(model: Any, lab: Simulation) -> None:
    set_back(lab)
    lab.update_constants()
    sensors = {name: lab.sensor(name) for name in ("cube_pos", "elbow_speed", "cube_floor")}
    qpos, qvel, ctrl = start_and_inputs(model, 7)
    trajectory(lab, qpos, qvel, ctrl)
    data = mujoco.MjData(model)
    for env in range(NUM_ENVS):
        mujoco.mj_resetData(model, data)
        data.qpos, data.qvel = qpos[env], qvel[env]
        for i in range(NUM_STEPS):
            data.ctrl = ctrl[i, env]
            mujoco.mj_step(model, data)
            if lab.engine == "mujoco":
                round_state(data)
        for name, dim, tol in (("cube_pos", 3, 1e-4), ("elbow_speed", 1, 1e-3), ("cube_floor", 4, 2e-2)):
            assert sensors[name].shape == (NUM_ENVS, dim)
            np.testing.assert_allclose(sensors[name][env], data.sensor(name).data, rtol=1e-3, atol=tol)
    assert (sensors["cube_floor"][:, 0] > 0).sum() >= 3  # cube and floor touch in at least three envs
    with pytest.raises(UserError, match=r"^sensor nose: .*cube_pos, elbow_speed, cube_floor"):
        lab.sensor("nose")


def test_an_episode_starts_from_the_keyframe(model: Any, config: SimConfig) -> None:
    sim = Simulation(model, NUM_ENVS, "cpu", dataclasses.replace(config, keyframe="swung"))
    key = model.key("swung")
    for _ in range(2):
        assert np.array_equal(sim.qpos, np.tile(key.qpos, (NUM_ENVS, 1)).astype(np.float32))
        assert np.array_equal(sim.qvel, np.tile(key.qvel, (NUM_ENVS, 1)).astype(np.float32))
        assert np.array_equal(sim.ctrl, np.tile(key.ctrl, (NUM_ENVS, 1)).astype(np.float32))
        assert (sim.view("time") == 2.0).all()
        for _ in range(5):
            sim.step()
        before = sim.qpos.clone()
        sim.reset(torch.tensor([True, False, True, False, False]))
        assert torch.equal(sim.qpos[[1, 3, 4]], before[[1, 3, 4]])
        assert np.array_equal(sim.qpos[[0, 2]], np.tile(key.qpos, (2, 1)).astype(np.float32))
        sim.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    assert float(key.ctrl[model.actuator("elbow").id]) == pytest.approx(-0.2)  # the motor holds the keyframe's pose
    with pytest.raises(UserError, match=r"^--env\.sim\.keyframe upright: .*\bswung$"):
        Simulation(model, 1, "cpu", dataclasses.replace(LAB, keyframe="upright"))


def test_a_shared_field_can_be_read_but_not_written(model: Any, config: SimConfig) -> None:
    config = dataclasses.replace(config, keyframe="swung")
    shared = Simulation(model, NUM_ENVS, "cpu", config)
    own = Simulation(model, NUM_ENVS, "cpu", config, ("geom_friction", "gravity"))
    assert shared.fields == {}
    assert set(own.fields) == {"geom_friction", "gravity"}
    for sim in (shared, own):
        assert np.array_equal(
            sim.field("geom_friction"), np.tile(model.geom_friction, (NUM_ENVS, 1, 1)).astype(np.float32)
        )
        assert np.array_equal(sim.field("gravity"), np.tile(model.opt.gravity, (NUM_ENVS, 1)).astype(np.float32))
    with pytest.raises(RuntimeError):
        shared.field("geom_friction").mul_(2.0)
    # With per-env fields, each env has its own copy of friction (three numbers per geom) and gravity (three numbers).
    # The engine mujoco has copies in float64 of all envs, too.
    numbers = 3 * model.ngeom + 3
    expected = (NUM_ENVS - 1) * numbers * 4 + (NUM_ENVS * numbers * 8 if config.engine == "mujoco" else 0)
    assert own.num_bytes() - shared.num_bytes() == expected


@pytest.mark.parametrize("name", CHANGES)
def test_derived_fields_are_known(model: Any, lab: Simulation, name: str) -> None:
    """`derived` lists all constants that MuJoCo's C code recomputes if the field has other values."""
    rng = np.random.default_rng(8)
    own = own_value(model, name)
    before = model_of_env(model, {})
    after = model_of_env(model, {name: without_simple_bodies(model, name, CHANGES[name](own, rng), own)})
    constants = lab.fields.keys() - set(CHANGES) - POSES | {"eq_data"} - {name}
    follows = {
        c for c in constants if not np.allclose(own_value(before, c), own_value(after, c), rtol=1e-9, atol=1e-12)
    }
    assert follows <= set(lab.derived(name))
    if name in {"geom_friction", "dof_damping", "gravity", "actuator_gainprm"}:
        assert lab.derived(name) == []  # so these fields can be sampled again for every episode


@pytest.mark.parametrize("name", ["geom_frictoin", "body_subtreemass", "geom_type", "timestep", "hfield_size"])
def test_a_field_that_cannot_differ_between_envs_is_refused(model: Any, name: str) -> None:
    with pytest.raises(UserError) as caught:
        Simulation(model, 1, "cpu", LAB, (name,))
    assert f"field {name}: " in str(caught.value)
    assert "geom_friction" in str(caught.value)
    assert "\n" not in str(caught.value)
