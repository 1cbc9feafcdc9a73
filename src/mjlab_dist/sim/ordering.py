"""Order contacts and constraint rows, which the threads of a GPU append to their buffers in any order.

With ``Option.deterministic``, MuJoCo Warp 4.0 adds numbers in the order of contacts and rows, but its two functions for
a fixed order of both are empty. This module replaces them.
"""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOptionalOperand=false
# pyright: reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN202, PLR0917, RUF046, UP018

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import mujoco
import mujoco_warp as mjw
import warp as wp
from mujoco_warp._src import collision_driver, constraint

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import patched
from mjlab_dist.sim.engine import Program

_FRICTION = wp.constant(int(mujoco.mjtConstraint.mjCNSTR_FRICTION_DOF))

# Maximum number of contacts between two geoms
_MAX_PER_PAIR = wp.constant(wp.int64(1024))

# Key of contacts that do not exist; larger than all other keys
_UNUSED = wp.constant(wp.int64(2**62))

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


def find_physics(config: SimConfig, device: str, model: mjw.Model, data: mjw.Data) -> tuple[Program, Program]:
    """Return MuJoCo Warp's functions ``step`` and ``forward``, in the deterministic mode if the config asks for it."""
    if not config.deterministic or device == "cpu":
        return mjw.step, mjw.forward
    ordering = Ordering(config.model, model, data)
    return ordering.ordered(mjw.step), ordering.ordered(mjw.forward)


class Ordering:
    """Orders the contacts and constraint rows of one simulation.

    Contacts are ordered by env, geoms and number of the contact between the same geoms; the rows of an env by type and
    contact, joint or equality.
    """

    def __init__(self, name: str, model: mjw.Model, data: mjw.Data) -> None:
        """Switch on the deterministic mode of the model, and allocate buffers."""
        if model.nflex:
            raise UserError(
                f"--env.sim.deterministic: {name} has flexes, whose contacts have no fixed order; use "
                "--env.sim.no-deterministic"
            )
        model.opt.deterministic = int(mjw.DeterminismType.ALL)
        efc, num_envs = data.efc, data.nworld
        fields = (getattr(data.contact, field.name) for field in dataclasses.fields(data.contact))
        self._contacts = _Rows([field.reshape((1, *field.shape)) for field in fields if field.size])
        self._keys, self._contact_order = (wp.zeros(2 * data.naconmax, dtype=dtype) for dtype in (wp.int64, int))
        per_row = (efc.type, efc.id, efc.J_rownnz, efc.J_rowadr, efc.J, efc.pos, efc.margin, efc.D, efc.vel, efc.aref)
        per_row += (efc.frictionloss, efc.Jqvel)
        # In the sparse format, J is a list of numbers, in which J_rowadr finds the row
        self._rows = _Rows([field for field in per_row if field.size and field.shape[1] >= data.njmax])
        self._ranks, self._row_order = (wp.zeros((num_envs, data.njmax), dtype=int) for _ in range(2))
        self._blocks = [(field, wp.zeros_like(field)) for field in (efc.jtdaj_adr, efc.jtdaj_nrow)]

    def ordered(self, program: Program) -> Program:
        """Return a function of MuJoCo Warp with ordered contacts and rows."""

        def run(model: mjw.Model, data: mjw.Data) -> None:
            with (
                patched(collision_driver, "_sort_contacts", self.order_contacts),
                patched(constraint, "_sort_constraints", self.order_rows),
            ):
                program(model, data)

        return run

    def order_contacts(self, model: mjw.Model, data: mjw.Data) -> None:
        """Order the contacts of all envs."""
        contact, size = data.contact, data.naconmax
        of_contacts = [contact.worldid, contact.geom, contact.geomcollisionid]
        wp.launch(_contact_keys, size, [data.nacon, *of_contacts, model.ngeom, self._keys, self._contact_order])
        wp.utils.radix_sort_pairs(self._keys, self._contact_order, size)
        self._contacts.permute(self._contact_order.reshape((1, 2 * size)), data.nacon)

    def order_rows(self, _model: mjw.Model, data: mjw.Data) -> None:
        """Order the constraint rows of each env, and everything that contains the number of a row."""
        efc, ranks = data.efc, self._ranks
        wp.launch(_rank_rows, ranks.shape, [data.nefc, efc.type, efc.id, ranks, self._row_order, data.dof_frictionadr])
        addresses = data.contact.efc_address
        wp.launch(_follow_rows, addresses.shape, [data.nacon, data.contact.worldid, ranks, addresses])
        (firsts, new_firsts), (sizes, new_sizes) = self._blocks
        wp.launch(_order_blocks, firsts.shape, [efc.jtdaj_nblock, ranks, firsts, sizes, new_firsts, new_sizes])
        for old, new in self._blocks:
            wp.copy(old, new)
        self._rows.permute(self._row_order, data.nefc)


class _Rows:
    """Arrays with one row per contact or constraint row, (envs, rows, ...) each."""

    def __init__(self, arrays: Sequence[wp.array]) -> None:
        self._arrays = arrays  # keeps the memory alive
        self._copies = [wp.empty_like(array) for array in arrays]
        self._old, self._new = (
            wp.array([array.ptr for array in each], dtype=wp.uint64) for each in (self._arrays, self._copies)
        )
        self._env_strides, self._row_strides = (
            wp.array([array.strides[axis] for array in arrays], dtype=wp.int64) for axis in range(2)
        )
        self._words = wp.array([array.strides[1] // 4 for array in arrays], dtype=int)
        assert all(array.is_contiguous for array in arrays)

    def permute(self, order: wp.array, counts: wp.array) -> None:
        """Move row ``order[env, row]`` to ``row``, for the first ``counts[env]`` rows of each env."""
        size = (counts.shape[0], min(array.shape[1] for array in self._arrays), len(self._arrays))
        strides = [self._env_strides, self._row_strides, self._words]
        wp.launch(_move_rows, size, [counts, order, True, self._old, self._new, *strides])
        wp.launch(_move_rows, size, [counts, order, False, self._new, self._old, *strides])


@wp.kernel
def _contact_keys(
    num_contacts: wp.array[int],
    envs: wp.array[int],
    geoms: wp.array[wp.vec2i],
    numbers: wp.array[int],
    num_geoms: int,
    keys: wp.array[wp.int64],
    order: wp.array[int],
):
    contact = wp.tid()
    order[contact] = contact
    keys[contact] = _UNUSED
    if contact < num_contacts[0]:
        pair = (wp.int64(envs[contact]) * wp.int64(num_geoms) + wp.int64(geoms[contact][0])) * wp.int64(num_geoms)
        keys[contact] = (pair + wp.int64(geoms[contact][1])) * _MAX_PER_PAIR + wp.int64(numbers[contact])


@wp.kernel
def _rank_rows(
    num_rows: wp.array[int],
    types: wp.array2d[int],
    ids: wp.array2d[int],
    ranks: wp.array2d[int],
    order: wp.array2d[int],
    friction_rows: wp.array2d[int],
):
    env, row = wp.tid()
    num = wp.min(num_rows[env], ranks.shape[1])
    if row >= num:
        return
    # The rows of one contact or equality are already in order
    rank = int(0)
    for other in range(num):
        difference = types[env, other] - types[env, row]
        if difference == 0:
            difference = ids[env, other] - ids[env, row]
        if difference < 0 or (difference == 0 and other < row):
            rank += 1
    ranks[env, row] = rank
    order[env, rank] = row
    if types[env, row] == _FRICTION:
        friction_rows[env, ids[env, row]] = rank


@wp.kernel
def _follow_rows(num_contacts: wp.array[int], envs: wp.array[int], ranks: wp.array2d[int], addresses: wp.array2d[int]):
    contact, i = wp.tid()
    if contact < num_contacts[0] and addresses[contact, i] >= 0:
        addresses[contact, i] = ranks[envs[contact], addresses[contact, i]]


@wp.kernel
def _order_blocks(
    num_blocks: wp.array[int],
    ranks: wp.array2d[int],
    firsts: wp.array2d[int],
    sizes: wp.array2d[int],
    new_firsts: wp.array2d[int],
    new_sizes: wp.array2d[int],
):
    env, block = wp.tid()
    num = wp.min(num_blocks[env], firsts.shape[1])
    if block >= num:
        return
    first = ranks[env, firsts[env, block]]
    place = int(0)
    for other in range(num):
        if ranks[env, firsts[env, other]] < first:
            place += 1
    new_firsts[env, place] = first
    new_sizes[env, place] = sizes[env, block]


@wp.kernel
def _move_rows(
    counts: wp.array[int],
    order: wp.array2d[int],
    ordered: bool,
    sources: wp.array[wp.uint64],
    targets: wp.array[wp.uint64],
    env_strides: wp.array[wp.int64],
    row_strides: wp.array[wp.int64],
    words: wp.array[int],
):
    env, row, field = wp.tid()
    if row >= counts[env]:
        return
    source = row
    if ordered:
        source = order[env, row]
    start = wp.uint64(wp.int64(env) * env_strides[field])
    stride = wp.uint64(row_strides[field])
    old = wp.array(ptr=sources[field] + start + wp.uint64(source) * stride, shape=(words[field],), dtype=int)
    new = wp.array(ptr=targets[field] + start + wp.uint64(row) * stride, shape=(words[field],), dtype=int)
    for word in range(words[field]):
        new[word] = old[word]
