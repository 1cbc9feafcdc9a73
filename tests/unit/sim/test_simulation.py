"""The simulation is compared with MuJoCo's C code in float64, and a captured simulation with an eager one."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any
from unittest import mock

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import torch
import warp as wp
from conftest import Command

from mjlab_dist.config import CaptureMode, SimConfig
from mjlab_dist.config.task import EngineName
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, copy_state, load_model, start_warp
from mjlab_dist.sim.warp_engine import WarpEngine

CARTPOLE = "mjlab_dist_tasks.cartpole:cartpole.xml"

BOX = str(Path(__file__).parents[2] / "data" / "models" / "box.xml")

LEGGED = str(Path(__file__).parents[2] / "data" / "models" / "legged.xml")

DRAGGED = str(Path(__file__).parents[2] / "data" / "models" / "dragged_box.xml")

NUM_ENVS = 16

Trajectory = tuple[np.ndarray, np.ndarray]
"""Positions and velocities after every step, (steps, envs, ...)."""

# Tolerances of float32 after 200 steps, for qpos in m and rad, and for qvel in m/s and rad/s.
FREE_TOL = (1e-4, 3e-4)
"""For cartpoles that do not reach an end of the rail. With 40 seeds, differences are up to 4.1e-5 and 9.6e-5."""
RAIL_TOL = (5e-4, 2e-3)
"""For cartpoles that reach an end of the rail. With the seeds of the test, differences are up to 9.1e-5 and 3.2e-4.

With 40 seeds, differences are up to 2.4e-3 and 6.7e-2, because some cartpoles reach the end one substep later than in
MuJoCo's C code.
"""
FLIGHT_TOL = (5e-5, 1e-4)
"""For a free body in the air. With 40 seeds, differences are up to 1.5e-5 and 4.1e-5."""
LANDING_TOL = (1e-5, 1e-4)
"""For a box that lands flat. Differences are up to 8.1e-8 and 1.5e-6."""


@pytest.fixture(autouse=True, scope="module")
def _warp() -> None:
    start_warp("cpu")


@pytest.fixture(params=["warp", "mujoco"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    return request.param


@pytest.fixture(scope="module")
def cartpole() -> Any:
    return load_model(CARTPOLE)


@pytest.fixture(scope="module")
def box() -> Any:
    return load_model(BOX)


@pytest.fixture(scope="module")
def legged() -> Any:
    return load_model(LEGGED)


@pytest.fixture(scope="module")
def dragged() -> Any:
    return load_model(DRAGGED)


@pytest.fixture(scope="module")
def sleepy() -> Any:
    """Model of a resting box, which may sleep, and of a ball that a motor pushes."""
    return mujoco.MjModel.from_xml_string("""
        <mujoco>
          <option timestep="0.005"><flag sleep="enable"/></option>
          <worldbody>
            <geom type="plane" size="0 0 .1"/>
            <body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/></body>
            <body pos=".25 0 .1"><freejoint name="ball"/><geom size=".1" mass="1"/></body>
          </worldbody>
          <actuator><motor joint="ball" gear="-1 0 0 0 0 0"/></actuator>
        </mujoco>""")


def simulate(model: Any, num_envs: int = NUM_ENVS, **options: Any) -> Simulation:
    """Return a simulation by MuJoCo Warp, unless the options name another engine."""
    sizes = {"njmax": 2, "nconmax": 0} if model.nq == 2 else {"njmax": 16 + 3 * model.neq, "nconmax": 8}
    return Simulation(model, num_envs, "cpu", SimConfig(model="", **{"engine": "warp", **sizes, **options}))


def random_cartpole(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start states and 200 controls in float32. Every second env is pushed to an end of the rail."""
    rng = np.random.default_rng(seed)
    qpos = np.stack([rng.uniform(-1.7, 1.7, NUM_ENVS), rng.uniform(-np.pi, np.pi, NUM_ENVS)], axis=1)
    qvel = rng.normal(scale=2.0, size=(NUM_ENVS, 2))
    ctrl = rng.uniform(-1.5, 1.5, (200, NUM_ENVS, 1))
    ctrl[:, ::2] += np.sign(qpos[::2, :1])
    qpos[1::2, 0] *= 0.2
    qvel[1::2, 0] *= 0.1
    return qpos.astype(np.float32), qvel.astype(np.float32), ctrl.astype(np.float32)


def write(sim: Simulation, qpos: np.ndarray, qvel: np.ndarray) -> None:
    sim.qpos.copy_(torch.from_numpy(qpos))
    sim.qvel.copy_(torch.from_numpy(qvel))


def trajectory(sim: Simulation, ctrl: np.ndarray) -> Trajectory:
    qpos, qvel = [], []
    for row in ctrl:
        sim.ctrl.copy_(torch.from_numpy(row))
        sim.step()
        qpos.append(sim.qpos.numpy().copy())
        qvel.append(sim.qvel.numpy().copy())
    return np.array(qpos), np.array(qvel)


def c_trajectory(model: Any, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> Trajectory:
    """Return the trajectory that mj_step computes for each env."""
    positions = np.empty((len(ctrl), *qpos.shape))
    velocities = np.empty((len(ctrl), *qvel.shape))
    for env in range(len(qpos)):
        data = mujoco.MjData(model)
        data.qpos, data.qvel = qpos[env], qvel[env]
        for i, row in enumerate(ctrl):
            data.ctrl = row[env]
            mujoco.mj_step(model, data)
            positions[i, env], velocities[i, env] = data.qpos, data.qvel
    return positions, velocities


def assert_close(ours: Trajectory, oracle: Trajectory, tol: tuple[float, float]) -> None:
    np.testing.assert_allclose(ours[0], oracle[0], rtol=0, atol=tol[0])
    np.testing.assert_allclose(ours[1], oracle[1], rtol=0, atol=tol[1])


def per_env_arrays(sim: Simulation) -> dict[str, np.ndarray]:
    """Return copies of all fields of the simulation's data that have a row per env."""
    fields = {name: getattr(sim._data, name) for name in mjw.Data.__dataclass_fields__}
    return {
        name: field.numpy().copy()
        for name, field in fields.items()
        if isinstance(field, wp.array) and field.ndim and field.shape[0] == sim.num_envs
    }


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rows: np.ndarray | slice = slice(None)) -> None:
    assert a.keys() == b.keys()
    assert {"qpos", "qvel", "ctrl", "time", "qacc_warmstart", "xpos", "overflow"} <= a.keys()
    differing = [name for name in a if not np.array_equal(a[name][rows], b[name][rows], equal_nan=True)]
    assert differing == []


# Comparison with C


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steps_match_c_also_at_the_ends_of_the_rail(cartpole: Any, seed: int, engine: EngineName) -> None:
    qpos, qvel, ctrl = random_cartpole(seed)
    sim = simulate(cartpole, engine=engine)
    write(sim, qpos, qvel)
    ours, oracle = trajectory(sim, ctrl), c_trajectory(cartpole, qpos, qvel, ctrl)
    hits = (np.abs(oracle[0][:, :, 0]) > 1.8).any(axis=0)
    assert 4 <= hits.sum() < NUM_ENVS  # some envs reach an end of the rail, and others do not
    for ours_x, oracle_x, free_tol, rail_tol in zip(ours, oracle, FREE_TOL, RAIL_TOL, strict=True):
        np.testing.assert_allclose(ours_x[:, ~hits], oracle_x[:, ~hits], rtol=0, atol=free_tol)
        np.testing.assert_allclose(ours_x[:, hits], oracle_x[:, hits], rtol=0, atol=rail_tol)
    assert not sim.overflow.any()


@pytest.mark.parametrize(("speed", "force"), [(2.0, 0.0), (0.0, 5.0)], ids=["flies", "is driven"])
def test_a_free_body_moves_as_in_c(box: Any, speed: float, force: float, engine: EngineName) -> None:
    rng = np.random.default_rng(0)
    qpos = np.tile(box.qpos0, (NUM_ENVS, 1)).astype(np.float32)
    qpos[:, 2] = 20.0  # 200 steps are 1 s, so the body stays in the air
    qvel = rng.normal(scale=speed, size=(NUM_ENVS, 6)).astype(np.float32)
    ctrl = rng.uniform(-force, force, (200, NUM_ENVS, 3)).astype(np.float32)
    sim = simulate(box, engine=engine)
    write(sim, qpos, qvel)
    ours, oracle = trajectory(sim, ctrl), c_trajectory(box, qpos, qvel, ctrl)
    assert (np.ptp(oracle[0][-1], axis=0)[[0, 2]] > 0.01).all()  # speeds or motors have an effect
    assert_close(ours, oracle, FLIGHT_TOL)


def test_a_box_lands_as_in_c(box: Any, engine: EngineName) -> None:
    sim = simulate(box, num_envs=2, engine=engine)
    assert sim.view("xpos")[:, 1].tolist() == pytest.approx(np.tile([0, 0, 0.3], (2, 1)))
    nothing = np.zeros((200, 2, 3), dtype=np.float32)
    qpos, qvel = np.tile(box.qpos0, (2, 1)), np.zeros((2, 6))
    ours, oracle = trajectory(sim, nothing), c_trajectory(box, qpos, qvel, nothing)
    assert oracle[0][-1, 0, 2] == pytest.approx(0.1, abs=1e-3)  # the box rests on the plane
    assert_close(ours, oracle, LANDING_TOL)


@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
def test_a_pendulum_without_constraints_swings_as_in_c(integrator: str, engine: EngineName) -> None:
    pendulum = f"""
        <mujoco>
          <option integrator="{integrator}"/>
          <worldbody><body><joint axis="0 1 0"/><geom size=".1" pos=".5 0 0"/></body></worldbody>
        </mujoco>"""
    model = load_model(pendulum)
    sim = Simulation(model, 1, "cpu", SimConfig(model=pendulum, njmax=0, nconmax=0, engine=engine))
    data = mujoco.MjData(model)
    for _ in range(100):
        sim.step()
        mujoco.mj_step(model, data)
    assert abs(data.qvel[0]) > 3
    np.testing.assert_allclose(sim.qvel[0].numpy(), data.qvel, rtol=1e-4)


def test_forward_computes_poses_and_accelerations_as_c_without_moving(cartpole: Any, engine: EngineName) -> None:
    qpos, qvel, ctrl = random_cartpole(5)
    sim = simulate(cartpole, engine=engine)
    write(sim, qpos, qvel)
    sim.ctrl.copy_(torch.from_numpy(ctrl[0]))
    sim.forward()
    for env in range(NUM_ENVS):
        data = mujoco.MjData(cartpole)
        data.qpos, data.qvel, data.ctrl = qpos[env], qvel[env], ctrl[0, env]
        mujoco.mj_forward(cartpole, data)
        np.testing.assert_allclose(sim.view("xpos")[env], data.xpos, rtol=0, atol=1e-6)
        np.testing.assert_allclose(sim.view("geom_xpos")[env], data.geom_xpos, rtol=0, atol=1e-6)
        np.testing.assert_allclose(sim.view("qacc")[env], data.qacc, rtol=0, atol=5e-5)
    assert np.array_equal(sim.qpos, qpos)
    assert np.array_equal(sim.qvel, qvel)
    assert not sim.view("time").any()


# Steps


@pytest.mark.parametrize("num_substeps", [2, 5])
def test_a_step_of_n_substeps_is_n_steps(cartpole: Any, num_substeps: int, engine: EngineName) -> None:
    qpos, qvel, ctrl = random_cartpole(1)
    coarse, fine = simulate(cartpole, decimation=num_substeps, engine=engine), simulate(cartpole, engine=engine)
    assert coarse.dt_s == pytest.approx(num_substeps * 0.01)
    assert fine.dt_s == pytest.approx(0.01)
    for sim in (coarse, fine):
        write(sim, qpos, qvel)
    trajectory(coarse, ctrl[:20])
    trajectory(fine, np.repeat(ctrl[:20], num_substeps, axis=0))
    if engine == "warp":
        assert_same(per_env_arrays(coarse), per_env_arrays(fine))
    else:  # rounds after each step, not after each substep
        assert_close((coarse.qpos.numpy(), coarse.qvel.numpy()), (fine.qpos.numpy(), fine.qvel.numpy()), FREE_TOL)
    assert torch.allclose(coarse.view("time"), torch.tensor(20 * num_substeps * 0.01))


def warp_engine(sim: Simulation) -> WarpEngine:
    assert isinstance(sim._engine, WarpEngine)
    return sim._engine


def as_on_a_gpu(sim: Simulation) -> Simulation:
    """Let a graph of a simulation contain all substeps."""
    engine = warp_engine(sim)
    engine._step_programs = [engine._all_substeps]
    sim.before_substeps([])
    return sim


@pytest.mark.parametrize("name", ["cartpole", "legged"])
def test_a_graph_of_all_substeps_as_on_a_gpu_equals_graphs_of_one_substep(name: str, request: pytest.FixtureRequest):
    """Compare sensors, too: the legged robot's measure contacts."""
    model = request.getfixturevalue(name)
    separate, whole = (simulate(model, decimation=3, njmax=64, nconmax=16) for _ in range(2))
    assert len(warp_engine(separate)._step_programs) == 3 + 1
    as_on_a_gpu(whole)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ctrl = torch.rand(separate.ctrl.shape, generator=generator)
        for sim in (separate, whole):
            sim.ctrl.copy_(ctrl)
            sim.step()
    assert_same(per_env_arrays(separate), per_env_arrays(whole))
    assert torch.equal(separate.demand, whole.demand)
    assert not model.nsensor or separate.view("sensordata").any()


def test_a_gpu_reads_sensors_in_every_substep_only_if_something_may_read_them(legged: Any) -> None:
    sim = as_on_a_gpu(simulate(legged, decimation=3, njmax=64, nconmax=16))
    reads: list[bool] = []

    def note(model: mjw.Model, _: mjw.Data) -> None:
        reads.append(not model.opt.disableflags & mjw.DisableBit.SENSOR)

    for programs, expected in (([], [False, False, True]), ([lambda _model, _data: None], [True] * 3)):
        sim.before_substeps(programs)
        reads.clear()
        with mock.patch.object(sim._engine, "_step_once", note):
            warp_engine(sim)._all_substeps()
        assert reads == expected


# Capture


def drive(sim: Simulation, seed: int) -> list[dict[str, np.ndarray]]:
    """Step, reset some envs, and call forward. Return the whole state of all envs after each of these calls."""
    rng = np.random.default_rng(seed)
    sim.qvel.copy_(torch.from_numpy(rng.normal(size=sim.qvel.shape)))
    seen = []
    for i in range(90):
        sim.ctrl.copy_(torch.from_numpy(rng.uniform(-1.5, 1.5, sim.ctrl.shape)))
        sim.step()
        seen.append(per_env_arrays(sim))
        if i % 10 == 9:
            sim.reset(torch.from_numpy(rng.random(sim.num_envs) < 0.2))
            seen.append(per_env_arrays(sim))
            sim.forward()
            seen.append(per_env_arrays(sim))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "box"])
def test_captured_equals_eager_bit_for_bit(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    captured, eager = simulate(model), simulate(model, capture="off")
    assert captured.captured
    assert not eager.captured
    assert_same(per_env_arrays(captured), per_env_arrays(eager))
    for ours, oracle in zip(drive(captured, 3), drive(eager, 3), strict=True):
        assert_same(ours, oracle)


# Reset


@pytest.mark.parametrize("name", ["cartpole", "box"])
def test_a_masked_reset_changes_only_the_masked_envs(name: str, request: pytest.FixtureRequest, engine: EngineName):
    sim = simulate(request.getfixturevalue(name), engine=engine)
    drive(sim, 4)
    mask = np.arange(NUM_ENVS) % 3 == 0
    before = per_env_arrays(sim)
    assert (before["time"] > 0).any()
    sim.reset(torch.zeros(NUM_ENVS, dtype=torch.bool))
    assert_same(per_env_arrays(sim), before)
    sim.reset(torch.from_numpy(mask))
    after = per_env_arrays(sim)
    assert_same(after, before, rows=~mask)
    assert np.array_equal(after["qpos"][mask], np.tile(sim.model.qpos0, (mask.sum(), 1)).astype(np.float32))
    for field in ("qvel", "ctrl", "time", "qacc_warmstart"):
        assert not after[field][mask].any()


@pytest.mark.parametrize("name", ["cartpole", "box", "dragged"])
def test_a_reset_env_that_diverged_behaves_like_a_new_one_and_affects_no_other_env(
    name: str, request: pytest.FixtureRequest, engine: EngineName
) -> None:
    model = request.getfixturevalue(name)
    broken, healthy, new = (simulate(model, engine=engine) for _ in range(3))
    ctrl = np.random.default_rng(2).uniform(-1, 1, (100, *broken.ctrl.shape)).astype(np.float32)
    for sim in (broken, healthy):
        trajectory(sim, ctrl[:40])  # after these steps, the box has landed
    broken.qpos[3] = float("nan")
    trajectory(broken, ctrl[40:45])
    trajectory(healthy, ctrl[40:45])
    assert broken.qpos[3].isnan().any()
    mask = torch.arange(NUM_ENVS) == 3
    assert_same(per_env_arrays(broken), per_env_arrays(healthy), rows=~mask.numpy())
    broken.reset(mask)
    for ours, others, oracle in zip(*(trajectory(sim, ctrl[45:]) for sim in (broken, healthy, new)), strict=True):
        assert np.isfinite(ours).all()
        assert np.array_equal(ours[:, mask], oracle[:, mask])
        assert np.array_equal(ours[:, ~mask], others[:, ~mask])


# State


def disturb(sim: Simulation, generator: torch.Generator) -> None:
    """Randomize all inputs of a step: controls, forces, mocap positions, active equality constraints, user data."""
    for name, tensor in sim.physics.items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name in ("ctrl", "xfrc_applied", "qfrc_applied", "userdata"):
            tensor.copy_(noise)
        elif name == "mocap_pos":
            tensor.add_(0.01 * noise)
        elif name == "eq_active":
            tensor.copy_(noise > -1)


@pytest.mark.parametrize("name", ["cartpole", "box", "dragged"])
def test_a_simulation_continues_bit_for_bit_from_the_state_of_another(
    name: str, request: pytest.FixtureRequest, engine: EngineName
) -> None:
    model = request.getfixturevalue(name)
    whole, part = simulate(model, engine=engine), simulate(model, engine=engine)
    for i in range(60):
        if i == 30:
            assert set(part.state()) == set(whole.state())
            copy_state({n: tensor.clone() for n, tensor in whole.state().items()}, part.state())
        for sim in (whole, part) if i >= 30 else (whole,):
            disturb(sim, torch.Generator().manual_seed(i))
            if i % 7 == 6:
                sim.reset(torch.arange(NUM_ENVS) % 7 == i % 4)
            sim.step()
    assert_same(per_env_arrays(part), per_env_arrays(whole))
    assert not whole.overflow.any()
    if name == "dragged":
        assert (whole.view("nefc") > 3).any()  # there are contacts, in addition to the equality constraint
        assert {"act", "history", "mocap_pos", "mocap_quat", "eq_active", "userdata"} <= whole.state().keys()


@pytest.mark.slow
def test_a_sleeping_body_continues_bit_for_bit(sleepy: Any) -> None:
    whole, part = (simulate(sleepy, num_envs=2, njmax=32) for _ in range(2))
    for _ in range(60):
        whole.step()
    assert (whole.view("tree_asleep")[:, 0] >= 0).all()
    copy_state({n: tensor.clone() for n, tensor in whole.state().items()}, part.state())
    for _ in range(60):
        for sim in (whole, part):
            sim.ctrl[1] = 10.0
            sim.step()
    assert (whole.view("tree_asleep")[:, 0] >= 0).tolist() == [True, False]  # in env 1, the ball has woken the box
    assert_same(per_env_arrays(part), per_env_arrays(whole))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(box: Any, dragged: Any) -> None:
    sim = simulate(box, num_envs=4)
    before = per_env_arrays(sim)
    for other, says in (
        (simulate(box, num_envs=5), ("qpos", "(5, 7)", "(4, 7)")),
        (simulate(dragged, 4), (" act ",)),
    ):
        other.qpos += 1
        with pytest.raises(UserError) as caught:
            copy_state(other.state(), sim.state())
        assert all(part in str(caught.value) for part in says)
    assert_same(per_env_arrays(sim), before)


@pytest.mark.parametrize("wrong", [-1.0, 1e30, float("nan")])
def test_a_wrong_index_of_the_history_is_refused(dragged: Any, wrong: float) -> None:
    sim = simulate(dragged, 4)
    state = {name: tensor.clone() for name, tensor in sim.state().items()}
    limits, (low, high) = sim.limits(), sim.limits()["history"]
    assert isinstance(low, torch.Tensor)
    assert isinstance(high, torch.Tensor)
    indices = low.isfinite()
    assert 0 < indices.sum() < len(indices)
    assert (state["history"][:, indices] == high[indices]).all()  # the newest sample is the last one
    state["history"][:, ~indices] = wrong
    copy_state(state, sim.state(), limits)
    state["history"][3, indices] = wrong
    with pytest.raises(UserError, match=r"history contains \S+, but must be between 0 and \d+; "):
        copy_state(state, sim.state(), limits)


def test_indices_of_sleeping_bodies_are_checked_and_other_integers_are_no_state(sleepy: Any) -> None:
    sim = simulate(sleepy, num_envs=2, njmax=32)
    state, limits = {name: tensor.clone() for name, tensor in sim.state().items()}, sim.limits()
    integers = {name for name, tensor in state.items() if tensor.dtype == torch.int32}
    assert {"tree_asleep", "body_awake_ind", "overflow"} <= integers <= limits.keys()
    copy_state(state, sim.state(), limits)
    for name in integers - {"overflow"}:
        wrong = torch.full_like(state[name], 10**9)
        with pytest.raises(UserError, match=f" {name} contains 1000000000, but must be between "):
            copy_state({**state, name: wrong}, sim.state(), limits)


# Views


@pytest.mark.parametrize("capture", ["physics", "off"])
def test_views_share_the_memory_of_the_simulation(cartpole: Any, capture: CaptureMode, engine: EngineName) -> None:
    sim = simulate(cartpole, capture=capture, engine=engine)
    names = ["qpos", "qvel", "ctrl", "xpos", "qacc"]
    views = {name: sim.view(name) for name in names}
    pointers = {name: view.data_ptr() for name, view in views.items()}
    assert pointers == {name: getattr(sim._data, name).ptr for name in names}
    drive(sim, 6)
    assert {name: sim.view(name).data_ptr() for name in names} == pointers
    assert {name: getattr(sim._data, name).ptr for name in names} == pointers
    for name, view in (("qpos", sim.qpos), ("qvel", sim.qvel), ("ctrl", sim.ctrl)):
        assert view.data_ptr() == pointers[name]
        assert np.array_equal(view, getattr(sim._data, name).numpy())


# Overflow


def test_overflow_is_0_with_enough_room(box: Any) -> None:
    sim = simulate(box, num_envs=4, njmax=16, nconmax=4)  # exactly as many as C needs
    data = mujoco.MjData(box)
    most_contacts = most_rows = 0
    for _ in range(200):
        mujoco.mj_step(box, data)
        most_contacts, most_rows = max(most_contacts, data.ncon), max(most_rows, data.nefc)
        sim.step()
        assert not sim.overflow.any()
    assert (most_contacts, most_rows) == (4, 16)


@pytest.mark.parametrize(
    ("sizes", "bit"),
    [
        ({"njmax": 4}, mjw.OverflowType.NEFC),
        ({"nconmax": 1}, mjw.OverflowType.NARROWPHASE | mjw.OverflowType.BROADPHASE),
    ],
    ids=["njmax", "nconmax"],
)
@pytest.mark.parametrize("capture", ["physics", "off"])
def test_overflow_is_set_by_the_first_contact_without_room(
    box: Any, sizes: dict[str, int], bit: int, capture: CaptureMode, capfd: pytest.CaptureFixture[str]
) -> None:
    sim = simulate(box, num_envs=4, capture=capture, **sizes)
    for _ in range(30):  # 0.15 s; the box falls for 0.2 s
        sim.step()
    assert not sim.overflow.any()
    for _ in range(30):
        sim.step()
    assert (sim.overflow & int(bit)).all()
    ctypes.CDLL(None).fflush(None)  # kernels print with C's stdio
    assert capfd.readouterr() == ("", "")  # only the runner reports overflows


def test_an_overflow_persists_over_resets_only_in_its_own_env(box: Any) -> None:
    sim = simulate(box, num_envs=3, njmax=4)
    sim.qpos[1, 2] = 50.0  # stays in the air
    for _ in range(60):
        sim.step()
    sim.reset(torch.tensor([True, True, False]))
    sim.step()
    assert (sim.overflow != 0).tolist() == [True, False, True]


@pytest.mark.parametrize("option", ["iterations", "ls_iterations"])
def test_a_solver_that_stops_early_is_not_an_overflow(option: str) -> None:
    """Simulation.overflow must contain only the two bits that the console reports: njmax or nconmax is too small."""
    model = load_model(BOX)
    setattr(model.opt, option, 1)
    sim = simulate(model, num_envs=4)
    sim.qvel.copy_(torch.from_numpy(np.random.default_rng(0).normal(scale=2.0, size=(4, 6))))
    for _ in range(100):
        sim.step()
    assert not sim.overflow.any(), [mjw.OverflowType(int(bits)) for bits in sim.overflow]


def test_a_model_that_mujoco_warp_cannot_simulate_is_refused() -> None:
    model = load_model(BOX)
    model.opt.solver = mujoco.mjtSolver.mjSOL_PGS
    with pytest.raises(UserError, match=r"--env\.sim\.model it: MuJoCo Warp: .*PGS"):
        Simulation(model, 1, "cpu", SimConfig(model="it", njmax=4, nconmax=4))


# Loading models


def test_a_model_is_found_by_path_in_a_package_and_next_to_a_module() -> None:
    by_path = load_model(str(Path(__file__).parents[3] / "tasks/mjlab_dist_tasks/cartpole/cartpole.xml"))
    for name in (CARTPOLE, "mjlab_dist_tasks.cartpole.config:cartpole.xml"):
        assert load_model(name).nv == by_path.nv == 2
        assert np.array_equal(load_model(name).body_mass, by_path.body_mass)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("{tmp}/none.xml", "{tmp}/none.xml"),
        ("{tmp}", "{tmp}"),
        ("mjlab_dist_tasks.cartpole:none.xml", "/cartpole/none.xml"),
        ("no.such.package:cartpole.xml", "no.such.package"),
        ("mjlab_dist.nope:cartpole.xml", "mjlab_dist.nope"),
        (":cartpole.xml", ""),
        (".cartpole:cartpole.xml", ""),
        ("{tmp}/malformed.xml", "Line number=2"),
        ("{tmp}/mesh.xml", "no.obj"),
        ("{tmp}/empty.xml", "empty"),
    ],
)
def test_a_missing_or_invalid_model_is_refused_with_the_reason(tmp_path: Path, model: str, says: str) -> None:
    (tmp_path / "malformed.xml").write_text("<mujoco>\n<worldbody>\n</mujoco>")
    (tmp_path / "mesh.xml").write_text('<mujoco><asset><mesh name="a" file="no.obj"/></asset></mujoco>')
    (tmp_path / "empty.xml").touch()
    model = model.format(tmp=tmp_path)
    with pytest.raises(UserError) as caught:
        load_model(model)
    start, _, reason = str(caught.value).partition(": ")
    assert start == f"--env.sim.model {model}"
    assert says.format(tmp=tmp_path) in reason
    assert "\n" not in reason


# Kernels

NUM_PROCESSES = 3

PROGRAM = f"""
import json
import os
import sys
import torch
from pathlib import Path
import warp as wp
from mjlab_dist.config import SimConfig
from mjlab_dist.messages import listening
from mjlab_dist.sim import Simulation, load_model, start_warp

# Each process starts Warp and has loaded no kernels. Processes share only the imports
for number in range({NUM_PROCESSES}):
    if os.fork() == 0:
        break
    if os.wait()[1]:
        sys.exit("failed")
else:
    sys.exit()
if number == 2:  # as if kernels were compiled for another processor, whose binaries have other names
    next(Path(os.environ["WARP_CACHE_PATH"]).rglob("*.o")).unlink()

wp.config.optimization_level = 0  # compiles faster; the speed of kernels does not matter
start_warp("cpu")
progress = []
def build(**options):
    config = SimConfig(model="", njmax=2, nconmax=0, **options)
    return Simulation(load_model("mjlab_dist_tasks.cartpole:cartpole.xml"), 4, "cpu", config)
def cached():
    return sorted(str(p) for p in Path(wp.config.kernel_cache_dir).rglob("*") if p.is_file())

with listening(lambda event: progress.append((event["kind"], event.get("done"), event.get("total")))):
    eager = build(capture="off")  # runs no step when it is built
    built = cached()
    for sim in (eager, build()):
        sim.step()
        sim.forward()
        sim.reset(torch.ones(4, dtype=torch.bool))
print(json.dumps(dict(progress=progress, built=built, after=cached())), flush=True)
"""


def prepare_in_new_processes(command: Command, cache: Path) -> list[dict[str, Any]]:
    """Run the program above in several processes, one after another, with the same cache. Return their output."""
    done = command(command.script(PROGRAM), env={"WARP_CACHE_PATH": str(cache)})
    assert done.code == 0, done.err
    assert done.err == ""  # start_warp keeps Warp quiet
    results = [json.loads(line) for line in done.out.splitlines()]
    assert len(results) == NUM_PROCESSES
    return results


@pytest.mark.slow
def test_compiling_reports_every_module_once_and_covers_every_kernel(command: Command, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second, third = prepare_in_new_processes(command, cache)
    total = len(first["progress"]) - 1
    assert first["progress"] == [["compiling", done, total] for done in range(total + 1)]
    assert total == len({Path(file).parent for file in first["built"] if file.endswith(".o")})
    assert all(Path(file).is_relative_to(cache) for file in first["built"])
    assert len(first["built"]) > 10
    assert first["after"] == first["built"]  # eager and captured calls compiled nothing more
    assert second["progress"] == []
    assert second["built"] == first["built"]
    # The third process deletes one of the binaries, and compiles only this one
    assert third["progress"] == [["compiling", 0, 1], ["compiling", 1, 1]]
    assert third["built"] == first["built"]
