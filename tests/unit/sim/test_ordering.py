"""Contacts and constraint rows are ordered, whatever the order in which threads found them."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import mujoco_warp as mjw
import numpy as np
import pytest
import torch

from mjlab_dist.config import SimConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, build_model, start_warp
from mjlab_dist.sim.ordering import Ordering
from mjlab_dist.sim.warp_engine import WarpEngine

NUM_ENVS = 4


def shuffle_contacts(data: Any, generator: np.random.Generator) -> None:
    """Put the contacts into a random order, as threads of a GPU do."""
    num = int(data.nacon.numpy()[0])
    order = generator.permutation(num)
    for field in dataclasses.fields(data.contact):
        values = getattr(data.contact, field.name).numpy()  # a view
        if values.size:
            values[:num] = values[order]


def shuffle_rows(data: Any, generator: np.random.Generator) -> None:
    """Put the constraint rows of each env into a random order; rows of the same contact stay next to each other."""
    efc = data.efc
    per_row = [efc.type, efc.id, efc.J_rownnz, efc.J_rowadr, efc.pos, efc.margin, efc.D, efc.vel, efc.aref]
    per_row += [efc.frictionloss, efc.Jqvel, *([efc.J] if efc.J.shape[1] >= data.njmax else [])]
    values = [field.numpy() for field in per_row if field.size]  # views
    addresses, friction = data.contact.efc_address.numpy(), data.dof_frictionadr.numpy()
    firsts, sizes = efc.jtdaj_adr.numpy(), efc.jtdaj_nrow.numpy()
    types, ids, envs = efc.type.numpy().copy(), efc.id.numpy().copy(), data.contact.worldid.numpy()
    for env, num in enumerate(data.nefc.numpy()):
        keys = list(dict.fromkeys(zip(types[env, :num], ids[env, :num], strict=True)))
        places = {key: place for place, key in enumerate(keys[i] for i in generator.permutation(len(keys)))}
        order = sorted(range(num), key=lambda row: places[types[env, row], ids[env, row]])
        ranks = np.argsort(order)
        for field in values:
            field[env, :num] = field[env, order]
        own = np.flatnonzero(envs[: int(data.nacon.numpy()[0])] == env)
        addresses[own] = np.where(addresses[own] >= 0, ranks[np.maximum(addresses[own], 0)], -1) if num else -1
        friction[env] = np.where(friction[env] >= 0, ranks[np.maximum(friction[env], 0)], -1) if num else -1
        num_blocks = int(efc.jtdaj_nblock.numpy()[env])
        if firsts.size and num_blocks:
            blocks = generator.permutation(num_blocks)
            firsts[env, :num_blocks] = ranks[firsts[env, blocks]]
            sizes[env, :num_blocks] = sizes[env, blocks]


@pytest.mark.slow
@pytest.mark.parametrize("jacobian", [0, 1])  # dense, sparse
@pytest.mark.parametrize("task", ["humanoid-velocity-flat", "arm-lift-cube"])
def test_a_step_does_not_depend_on_the_order_in_which_contacts_and_rows_were_found(task: str, jacobian: int) -> None:
    start_warp("cpu")
    config = dataclasses.replace(registry.task_config(task).env.sim, engine="warp", capture="off")
    model = build_model(config)
    model.opt.jacobian = jacobian

    def run(seed: int | None) -> tuple[list[np.ndarray], list[int]]:
        sim = Simulation(model, NUM_ENVS, "cpu", config)
        ordering = Ordering(config.model, sim._warp_model, sim._data)
        assert isinstance(sim._engine, WarpEngine)
        sim._engine._step_once = ordering.ordered(mjw.step)
        generator = None if seed is None else np.random.default_rng(seed)
        order_contacts, order_rows = ordering.order_contacts, ordering.order_rows
        counts: list[int] = []

        def shuffled_contacts(m: Any, d: Any) -> None:
            if generator:
                shuffle_contacts(d, generator)
            order_contacts(m, d)

        def shuffled_rows(m: Any, d: Any) -> None:
            counts.append(int(d.nefc.numpy().max()))
            if generator:
                shuffle_rows(d, generator)
            order_rows(m, d)

        sim.qvel.copy_(torch.randn(sim.qvel.shape, generator=torch.Generator().manual_seed(0)))
        with (
            mock.patch.object(ordering, "order_contacts", shuffled_contacts),
            mock.patch.object(ordering, "order_rows", shuffled_rows),
        ):
            for _ in range(5):
                sim.step()
        efc, contact = sim._data.efc, sim._data.contact
        seen = [efc.type, efc.id, efc.D, efc.aref, efc.force, contact.geom, contact.pos, contact.efc_address]
        return [array.numpy().copy() for array in (*seen, sim._data.qpos, sim._data.qvel)], counts

    expected, counts = run(None)
    assert max(counts) > 8, "too few rows to shuffle"
    for seed in range(2):
        found, _ = run(seed)
        for values, others in zip(expected, found, strict=True):
            np.testing.assert_array_equal(others, values)


def test_the_deterministic_mode_switches_on_all_orders_of_mujoco_warp_and_ignores_the_cpu() -> None:
    start_warp("cpu")
    config = dataclasses.replace(registry.task_config("cartpole-balance").env.sim, deterministic=True)
    sim = Simulation(build_model(config), NUM_ENVS, "cpu", config)
    assert sim._warp_model.opt.deterministic == 0
    Ordering(config.model, sim._warp_model, sim._data)
    assert sim._warp_model.opt.deterministic == mjw.DeterminismType.ALL


def test_flexes_are_refused() -> None:
    start_warp("cpu")
    cloth = '<mujoco><worldbody><flexcomp name="cloth" type="grid" count="3 3 1" dim="2"/></worldbody></mujoco>'
    config = SimConfig(model=cloth, njmax=8, nconmax=8)
    sim = Simulation(build_model(config), 1, "cpu", config)
    with pytest.raises(UserError, match=r"^--env\.sim\.deterministic: .*flexes"):
        Ordering("cloth.xml", sim._warp_model, sim._data)
