"""Compare times and contacts on uneven ground made of our height field, MuJoCo Warp's height field, or boxes.

A quadruped on stairs is simulated on the CPU, in one process with one thread, with random actions. Times are medians of
the CPU time per control step of all envs. A contact counts as wrong if its normal points into the ground, or if the
robot is more than 5 cm inside the ground. On these stairs, MuJoCo's C code finds hardly any such contacts.

    uv run python scripts/bench_terrain.py --num-envs 64
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest import mock

import mujoco
import numpy as np
import torch

from mjlab_dist.config import SimConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.sim import Simulation, build_model, model_fields, start_warp
from mjlab_dist.sim.terrain import Terrain

MODEL = "mjlab_dist_tasks.quadruped:quadruped.xml"
HEIGHT_M, WIDTH_M, PLATFORM_M, TILE_M = 0.1, 0.4, 2.0, 8.0
STAIRS = {"stairs": TerrainPartConfig(kind="stairs_down", height_m=(HEIGHT_M, HEIGHT_M), width_m=(WIDTH_M, WIDTH_M))}


def stairs_of_boxes(num_tiles: int) -> tuple[str, np.ndarray]:
    """Build the stairs of :data:`STAIRS` from boxes. Return the scene as XML, and the centers of its tiles."""
    num_steps = int((TILE_M - PLATFORM_M) / 2 / WIDTH_M)
    origins = np.array([[TILE_M * (i % 20), TILE_M * (i // 20 - 5), num_steps * HEIGHT_M] for i in range(num_tiles)])
    spec = mujoco.MjSpec.from_string(load(SimConfig(model=MODEL, njmax=1, nconmax=1)))
    for x, y, _ in origins:
        for step in range(num_steps):
            half, top = PLATFORM_M / 2 + step * WIDTH_M, HEIGHT_M * (num_steps - step)
            box = spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX, size=[half, half, top / 2], pos=[x, y, top / 2]
            )
            box.contype, box.conaffinity = 1, 0
    return spec.to_xml(), origins


def load(config: SimConfig) -> str:
    """Return the scene as XML."""
    folder, _, name = config.model.partition(":")
    module = __import__(folder, fromlist=["__path__"])
    spec = mujoco.MjSpec.from_file(f"{module.__path__[0]}/{name}")
    spec.compile()
    return spec.to_xml()


def run(name: str, config: SimConfig, origins: np.ndarray, num_envs: int, num_steps: int) -> None:
    """Step the envs and print the results."""
    # Physics, and start states at random places on the ground
    model = build_model(config)
    sim = Simulation(model, num_envs, "cpu", config)
    generator = torch.Generator().manual_seed(0)
    start = torch.tensor(model.key_qpos[0], dtype=torch.float32).repeat(num_envs, 1)
    start[:, :3] += torch.from_numpy(origins[np.arange(num_envs) * 7 % len(origins)])
    start[:, :2] += TILE_M / 2 * (torch.rand(num_envs, 2, generator=generator) - 0.5)
    ctrl = torch.tensor(model.key_ctrl[0], dtype=torch.float32)
    sim.qpos.copy_(start)
    # Steps with random actions
    took, contacts, wrong, broken = [], 0, 0, 0
    for step in range(num_steps):
        sim.ctrl.copy_(ctrl + 0.25 * torch.randn(num_envs, model.nu, generator=generator))
        begin = time.thread_time()
        sim.step()
        took.append(time.thread_time() - begin)
        # Count contacts and wrong contacts
        count = min(int(sim._data.nacon.numpy()[0]), sim._data.naconmax)
        contact = sim._data.contact
        dist, up, geoms = (held.numpy()[:count] for held in (contact.dist, contact.frame, contact.geom))
        # A normal points from the first geom to the second. Flip it if the ground is the second geom.
        up = np.where(model.geom_bodyid[geoms[:, 0]] == 0, 1, -1) * up[:, 0, 2]
        contacts += count
        wrong += int((~(dist > -0.05) | (up < -0.05)).sum())
        # Reset envs that became unstable, and every 40 steps also those whose robot has fallen
        fast = ~(sim.qvel.abs().amax(dim=1) < 200)
        broken += int(fast.sum())
        again = fast | (sim.qpos[:, 3].abs() < 0.8) if step % 40 == 39 else fast
        sim.reset(again)
        sim.qpos.copy_(torch.where(again.unsqueeze(1), start, sim.qpos))
    # Results
    overflow = int((sim.overflow > 0).sum())  # in any step, because resets do not clear sim.overflow
    took_ms = 1e3 * statistics.median(took)
    print(
        f"{name:44} {took_ms:7.1f} ms {num_envs / took_ms * 1e3:7.0f} env-steps/s; {contacts} contacts, {wrong} wrong, "
        f"{broken} unstable states in {num_envs * num_steps} env-steps, {overflow} of {num_envs} envs overflowed"
    )


def main() -> None:
    """Measure all kinds of ground."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start_warp("cpu")
    plain = SimConfig(model=MODEL, keyframe="home", decimation=4, njmax=160, nconmax=40)
    nowhere = np.zeros((1, 3), dtype=np.float32)
    run("plane", plain, nowhere, args.num_envs, args.num_steps)
    terrain = TerrainConfig(parts=STAIRS, num_levels=10, num_columns=20)
    uneven = SimConfig(model=MODEL, keyframe="home", decimation=4, njmax=160, nconmax=40, terrain=terrain)
    origins = Terrain(terrain).origins.reshape(-1, 3)
    run("our height field, 200 tiles", uneven, origins, args.num_envs, args.num_steps)
    with mock.patch.object(model_fields, "take_over", return_value=None):
        run("MuJoCo Warp's height field, 200 tiles", uneven, origins, args.num_envs, args.num_steps)
    for num_tiles in (1, 10, 50, 200):
        xml, boxes = stairs_of_boxes(num_tiles)
        config = SimConfig(model=xml, keyframe="home", decimation=4, njmax=160, nconmax=40)
        run(f"boxes, {num_tiles} tiles", config, boxes.astype(np.float32), args.num_envs, args.num_steps)


if __name__ == "__main__":
    main()
