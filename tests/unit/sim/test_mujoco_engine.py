"""The engine that runs MuJoCo's C code: threads, results that are copied, failures, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp as mjw
import pytest
import torch
from mujoco.batch import Batch

from mjlab_dist.config import SimConfig, registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.distributed import RankDevice
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.launch.plan import settled
from mjlab_dist.messages import Event, listening
from mjlab_dist.sim import Simulation, build_model, load_model, start_warp
from mjlab_dist.sim.engine_choice import choose_engine
from mjlab_dist.sim.mujoco_engine import MujocoEngine

BOX = str(Path(__file__).parents[2] / "data" / "models" / "box.xml")

NUM_ENVS = 6

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")

GPU = RankDevice(device="cuda:0", name="GPU 0", torch_threads=1, backend="nccl")

BOXES = "".join(
    f'<body pos="{i}.5 0 .5"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/></body>' for i in range(12)
)


@pytest.fixture(autouse=True, scope="module")
def _warp() -> None:
    start_warp("cpu")


@pytest.fixture
def events() -> Iterator[list[Event]]:
    seen: list[Event] = []
    with listening(seen.append):
        yield seen


def simulate(model: str, num_envs: int = NUM_ENVS, **options: Any) -> Simulation:
    config = SimConfig(model=model, engine="mujoco", njmax=0, nconmax=0, **options)
    return Simulation(load_model(model), num_envs, "cpu", config)


def engine_of(sim: Simulation) -> MujocoEngine:
    assert isinstance(sim._engine, MujocoEngine)
    return sim._engine


def heap(sim: Simulation, envs: list[int]) -> None:
    """Put all boxes of some envs into one place, so that there are hundreds of contacts."""
    sim.qpos[envs, 0::7] = torch.arange(12) * 0.05
    sim.qpos[envs, 2::7] = 0.1


def with_memory(size: str) -> str:
    return f"""
        <mujoco>
          <size memory="{size}"/>
          <worldbody><geom type="plane" size="1 1 1"/>{BOXES}</worldbody>
        </mujoco>"""


# Threads


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    for num_threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=num_threads: n)
        sim = simulate(BOX)
        assert engine_of(sim)._batch.nthread == num_threads
        sim.qvel.copy_(torch.randn(sim.qvel.shape, generator=torch.Generator().manual_seed(0)))
        for _ in range(100):
            sim.step()
        seen.append(sim.qpos.clone())
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


# Results


def test_steps_are_those_of_mujoco_bit_for_bit() -> None:
    """Options that the engine sets for speed change no result."""
    config = registry.task_config("quadruped-velocity-flat").env.sim
    sim = Simulation(build_model(config), NUM_ENVS, "cpu", dataclasses.replace(config, engine="mujoco"))
    batch = Batch(sim.model, NUM_ENVS, 1)
    state = {name: (tensor, torch.from_numpy(batch.bind(name))) for name, tensor in sim.physics.items()}
    touched = sim.view("sensordata")
    for _ in range(50):
        sim.ctrl.copy_(torch.randn(sim.ctrl.shape))
        for tensor, expected in state.values():
            expected.copy_(tensor.view(expected.shape))
        batch.bind("ctrl")[:] = sim.ctrl
        batch.step(nstep=config.decimation)
        sim.step()
        for name, (tensor, expected) in state.items():
            assert torch.equal(tensor.view(expected.shape), expected.to(tensor.dtype)), name
    assert touched.any(), "the robots touch the ground"


def test_only_results_that_somebody_reads_are_copied() -> None:
    sim = simulate(BOX)
    sim.step()
    assert not engine_of(sim)._results
    sim.view("xpos")
    sim.record(lambda _, data: print(data.geom_xpos.shape))
    assert engine_of(sim)._results.keys() == {"xpos", "geom_xpos"}


def test_a_result_that_is_first_read_after_a_step_is_that_of_the_step() -> None:
    """Many terms first read a result in the first step of a run, and also in the first step after a resume."""
    early, late = simulate(BOX, decimation=3), simulate(BOX, decimation=3)
    expected = early.view("xquat")
    for sim in (early, late):
        sim.qvel[:, 3:] = 2.0
        for _ in range(5):
            sim.step()
        sim.reset(torch.arange(NUM_ENVS) < 2)
    assert torch.equal(late.view("xquat"), expected)
    for sim in (early, late):
        sim.step()
    assert torch.equal(late.view("xquat"), expected)
    assert torch.equal(late.qpos, early.qpos)


def test_new_constants_do_not_change_results_of_the_step() -> None:
    """MuJoCo's threads share data between envs, so a result that a call does not compute may be of another env."""
    config = SimConfig(model=BOX, engine="mujoco", njmax=0, nconmax=0)
    sim = Simulation(load_model(BOX), NUM_ENVS, "cpu", config, ("body_mass",))
    results = [sim.view(name) for name in ("cvel", "qfrc_bias", "qacc", "xpos")]
    sim.qvel.copy_(torch.randn(sim.qvel.shape, generator=torch.Generator().manual_seed(0)))
    sim.step()
    before = [result.clone() for result in results]
    weight, bound = sim.field("body_mass")[:, 1], sim.field("body_subtreemass")[:, 0]
    weight[2] *= 3.0
    sim.update_constants()
    assert torch.equal(bound, weight)
    assert all(torch.equal(result, old) for result, old in zip(results, before, strict=True))


def test_programs_before_substeps_read_the_current_state_and_write_inputs() -> None:
    """A spring that a program computes moves the box as a spring in the MJCF does."""
    xml = """
        <mujoco>
          <option gravity="0 0 0"/>
          <worldbody>
            <body><joint name="x" type="slide" axis="1 0 0" {spring}/><geom size=".1" mass="1"/></body>
          </worldbody>
          <actuator><motor joint="x"/></actuator>
        </mujoco>"""
    driven, spring = (simulate(xml.format(spring=each), decimation=4) for each in ("", 'stiffness="50"'))

    def pull(_: mjw.Model, data: mjw.Data) -> None:
        mjw_ctrl, qpos = data.ctrl.numpy(), data.qpos.numpy()
        mjw_ctrl[:] = -50 * qpos

    driven.recorder.captures = False  # the program is Python code, which a recording would run only once
    driven.before_substeps([pull])
    for sim in (driven, spring):
        sim.qpos.fill_(0.3)
        for _ in range(30):
            sim.step()
    assert (spring.qpos - 0.3).abs().max() > 0.1
    torch.testing.assert_close(driven.qpos, spring.qpos, rtol=0, atol=1e-5)


# Failures


def test_a_position_that_is_not_finite_stays_so_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By default, MuJoCo would move the env to its reference positions, print a line and write a file."""
    monkeypatch.chdir(tmp_path)
    sim, alone = simulate(BOX), simulate(BOX)
    sim.qpos[2, 0] = torch.nan
    for one in (sim, alone):
        for _ in range(5):
            one.step()
    assert sim.qpos[2].isnan().any()
    others = torch.arange(NUM_ENVS) != 2
    assert torch.equal(sim.qpos[others], alone.qpos[others])
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_an_env_that_mujoco_cannot_simulate_is_not_finite_and_named(events: list[Event]) -> None:
    sim, alone = (simulate(with_memory("400K")) for _ in range(2))
    heap(sim, [2])
    for one in (sim, alone):
        one.step()
    others = torch.arange(NUM_ENVS) != 2
    assert sim.qpos[2].isnan().all()
    assert torch.equal(sim.qpos[others], alone.qpos[others])
    (text,) = [event["text"] for event in events if event["kind"] == "warning"]
    assert text.startswith("env 2: MuJoCo: ")
    assert "\n" not in text
    sim.reset(~others)
    sim.step()
    assert sim.qpos.isfinite().all()


def test_contacts_without_room_in_memory_are_reported_once(events: list[Event]) -> None:
    sim = simulate(with_memory("200K"))
    heap(sim, [1, 2])
    for _ in range(3):
        sim.step()
    (text,) = [event["text"] for event in events if event["kind"] == "warning"]
    assert " 2 envs" in text
    assert "<size memory=" in text


# Refusals


@pytest.mark.parametrize(
    "read",
    [
        lambda sim: sim.view("nacon"),
        lambda sim: sim.view("tree_island"),
        lambda sim: sim.record(mjw.rne_postconstraint),
    ],
)
def test_a_field_that_only_mujoco_warp_computes_is_refused(read: Callable[[Simulation], object]) -> None:
    sim = simulate(BOX)
    with pytest.raises(UserError, match=r"^--env\.sim\.engine mujoco: .*; use --env\.sim\.engine warp$"):
        read(sim)


def test_a_python_callback_is_refused() -> None:
    sim = simulate(BOX)
    mujoco.set_mjcb_control(lambda _model, _data: None)
    try:
        with pytest.raises(UserError, match=r"^--env\.sim\.engine mujoco: .*; use --env\.sim\.engine warp$"):
            sim.step()
    finally:
        mujoco.set_mjcb_control(None)


def test_bodies_that_may_sleep_are_left_to_mujoco_warp() -> None:
    sleepy = """
        <mujoco>
          <option><flag sleep="enable"/></option>
          <worldbody><body><freejoint/><geom size="1"/></body></worldbody>
        </mujoco>"""
    config = SimConfig(model=sleepy, njmax=4, nconmax=4)
    assert choose_engine(config, "cpu") == "warp"
    with pytest.raises(UserError, match=r"^--env\.sim\.engine mujoco: .*sleep.*; use --env\.sim\.engine warp$"):
        choose_engine(replaced(config, ["engine"], "mujoco"), "cpu")


# Choice


@pytest.mark.parametrize(
    ("task", "devices", "expected"),
    [
        ("cartpole-balance", [CPU], "warp"),
        ("quadruped-velocity-rough", [CPU, CPU], "mujoco"),
        ("quadruped-velocity-flat", [GPU], "warp"),
        ("quadruped-velocity-flat", [CPU, GPU], "warp"),
    ],
)
def test_the_engine_is_chosen_once_by_model_and_devices(task: str, devices: list[RankDevice], expected: str) -> None:
    config = registry.task_config(task)
    assert config.env.sim.engine == "auto"
    assert settled(config, devices).env.sim.engine == expected


def test_the_engine_of_the_config_is_kept_on_the_cpu_and_mujoco_is_refused_on_a_gpu() -> None:
    task = registry.task_config("quadruped-velocity-flat")
    for engine in ("warp", "mujoco"):
        config = replaced(task, ["env", "sim", "engine"], engine)
        assert settled(config, [CPU]).env.sim.engine == engine
    with pytest.raises(UserError, match=r"^--env\.sim\.engine mujoco: .*--gpu-ids None"):
        settled(config, [GPU])


def test_envs_choose_the_same_engine_as_the_launcher() -> None:
    for task, expected in (("cartpole-balance", "warp"), ("template", "mujoco")):
        assert Env(registry.task_config(task).env, 2, "cpu").sim.engine == expected
