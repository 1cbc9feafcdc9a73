"""Physics by MuJoCo's C code, on threads of the CPU.

The tensors of record stay the same as with MuJoCo Warp. Each call copies them to MuJoCo, which computes in float64, and
copies back the new state and those results that somebody reads.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco.batch import DATA_FIELDS, Batch, SimulationError

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.messages import emit
from mjlab_dist.sim import model_fields
from mjlab_dist.sim.engine import Arrays, Engine, Program
from mjlab_dist.sim.quiet import warnings_to
from mjlab_dist.sim.recorder import Recorder

# Fields of the state that a step changes. The others are its inputs.
_CHANGED_BY_STEPS = {"qpos", "qvel", "act", "qacc_warmstart", "history", "plastic", "time"}

# Results that MuJoCo Warp's reset sets to 0
_CLEARED = ("sensordata", "qacc", "act_dot", "energy")

# Warnings that contacts or constraints were dropped
_FULL = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]

# Fields of MuJoCo Warp's data that hold the contacts and constraints of all envs
_CONTACTS = ("contact", "efc", "nacon", "ncollision")

# Fields of the model that move frames within a body
_FRAMES = {"body_ipos", "body_iquat", "geom_pos", "geom_quat", "site_pos", "site_quat"}

# Number of degrees of freedom above which matrices of constraints are sparse, as in MuJoCo Warp. MuJoCo's own choice is
# 60, but with 35, and many contacts, steps take a third less time with sparse matrices.
_SPARSE_NV = 32

# Results that a step computes only if the model has one of the following sensors
_OF_WRENCHES = ("cacc", "cfrc_int", "cfrc_ext")

_NEED_WRENCHES = [
    int(getattr(mujoco.mjtSensor, f"mjSENS_{name}"))
    for name in ("ACCELEROMETER", "FORCE", "TORQUE", "FRAMELINACC", "FRAMEANGACC")
]

# Fields of the model that MuJoCo derives constants from
_INPUTS = mujoco.MjModel._setconst_inputs

_FLAG = "--env.sim.engine mujoco"

# A tensor of record, and MuJoCo's array of the same shape
_Pair = tuple[torch.Tensor, torch.Tensor]


class MujocoEngine(Engine):
    """MuJoCo's C code, through ``mujoco.batch``, with as many threads as torch has."""

    def __init__(self, arrays: Arrays, recorder: Recorder, config: SimConfig, key: int | None) -> None:
        self._arrays, self._recorder = arrays, recorder
        self._decimation, self._key = config.decimation, -1 if key is None else key
        self._num_envs = arrays.data.nworld
        # Without this flag, MuJoCo would move an env with a NaN to its reference positions, without a word
        model = copy.copy(arrays.model)
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        # With a single tree, islands change no result, but finding them takes 5% of a step
        if model.ntree == 1:
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
        if model.opt.jacobian == mujoco.mjtJacobian.mjJAC_AUTO and model.nv > _SPARSE_NV:
            model.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
        # MuJoCo skips computations where frames coincide in the MJCF, but fields that differ between envs can move them
        if not _FRAMES.isdisjoint(arrays.written):
            for kind in ("body", "geom", "site"):
                getattr(model, f"{kind}_sameframe")[:] = int(mujoco.mjtSameFrame.mjSAMEFRAME_NONE)
        self._open(model, [], keeps_data=False)
        self._mask = wp.to_torch(arrays.reset_mask)
        self._outdated = torch.zeros_like(self._mask)
        self._before: Callable[[], None] | None = None
        self._is_full = False
        self.data = cast("mjw.Data", _Reader(self, arrays.data))

    def _open(self, model: mujoco.MjModel, results: Iterable[str], *, keeps_data: bool) -> None:
        """Start the threads, and look up MuJoCo's arrays."""
        arrays = self._arrays
        self._batch = Batch(model, self._num_envs, min(torch.get_num_threads(), self._num_envs), keeps_data)
        # State before the latest call that computed results, and a function that repeats the call
        self._before_call, self._repeat = self._batch.state.copy(), None
        self._state = {name: (tensor, self._bound(name, tensor)) for name, tensor in arrays.physics.items()}
        self._changed = [pair for name, pair in self._state.items() if name in _CHANGED_BY_STEPS]
        self._results = {name: (arrays.views[name], self._bound(name, arrays.views[name])) for name in results}
        self._fields: list[_Pair] = []
        for name, tensor in arrays.fields.items():
            array = self._batch.expand(f"opt.{name}" if name in model_fields.OPTIONS else name)
            self._fields.append((tensor, torch.from_numpy(array).view(tensor.shape)))
        # Fields that MuJoCo derives constants from, with their values at the latest derivation; and the envs whose
        # constants of record are older than that
        derived_from = [name for name in arrays.written if name in model_fields.OPTIONS or name in _INPUTS]
        self._derived_from = [(arrays.fields[n], torch.full_like(arrays.fields[n], torch.nan)) for n in derived_from]

    def step(self) -> None:
        if self._before is None:
            self._call(self._batch.step, self._changed, nstep=self._decimation)
            return
        for _ in range(self._decimation):
            self._recorder.run(self._before)
            self._call(self._batch.step, self._changed)

    def forward(self) -> None:
        self._call(self._batch.forward)

    def reset(self) -> None:
        if not self._mask.any():
            return
        start = {"keyframe": self._key, "stage": int(mujoco.mjtStage.mjSTAGE_NONE)}
        self._call(self._batch.reset, self._state.values(), with_results=False, ids=self._mask.numpy(), **start)
        for name in self._results.keys() & _CLEARED:
            self._results[name][0][self._mask] = 0

    def update_constants(self) -> None:
        self._copy_in()
        if self._outdated.any():
            self._set_const(self._outdated)
            _copy(self._fields, back=True)
            self._outdated.zero_()
        if not model_fields.MOVING_STATIC.isdisjoint(self._arrays.written):
            poses = [self._results[name] for name in ("geom_xpos", "geom_xmat")]
            self._call(self._batch.forward, poses, with_results=False, stage=int(mujoco.mjtStage.mjSTAGE_POS))

    def before_substeps(self, programs: Sequence[Program]) -> None:
        def before() -> None:
            for program in programs:
                program(self._arrays.put, self.data)

        self._before = before if programs else None
        if programs:
            self._recorder.record(before)

    def record_wrenches(self) -> Callable[[], None]:
        self._open(self._batch.model, self._results, keeps_data=True)
        model, data = self._batch.get_model(0), mujoco.MjData(self._batch.model)
        outputs = [(name, self._arrays.views[name].numpy()) for name in _OF_WRENCHES]

        def compute() -> None:
            for env in range(self._num_envs):
                self._batch.get_data(env, data)
                if self._fields:
                    self._batch.get_model(env, model)
                mujoco.mj_rnePostConstraint(model, data)
                for name, output in outputs:
                    output[env] = getattr(data, name)

        return compute

    def provide(self, name: str) -> None:
        if name in _CONTACTS:
            raise _missing(name)
        tensor = self._arrays.views.get(name)
        if tensor is None or not tensor.numel() or name in self._results or name in self._state or name == "overflow":
            return
        if name in _OF_WRENCHES and not np.isin(self._batch.model.sensor_type, _NEED_WRENCHES).any():
            return
        array = self._bound(name, tensor)
        self._results[name] = tensor, array
        # MuJoCo has not copied this result of the latest call: repeat the call. The state of record does not change.
        if self._repeat is not None:
            self._batch.state[:] = self._before_call
            self._repeat()
            tensor.copy_(array)

    def num_bytes(self) -> int:
        arrays = [array for _, array in (*self._results.values(), *self._fields)]
        return self._batch.state.nbytes + sum(array.nbytes for array in arrays)

    def _bound(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        array: np.ndarray = self._batch.bind(name) if name in DATA_FIELDS else np.empty(0)
        if array.size != tensor.numel():
            raise _missing(name)
        # MuJoCo marks results as read-only, and torch warns about such arrays
        array = array.view()
        array.flags.writeable = True
        return torch.from_numpy(array).view(tensor.shape)

    def _call(
        self, call: Callable[..., None], changed: Iterable[_Pair] = (), *, with_results: bool = True, **arguments: Any
    ) -> None:
        """Copy state and fields to MuJoCo, call it, and copy back what the call changed."""
        self._recorder.num_changes += 1
        self._copy_in()
        run = functools.partial(self._run, call, arguments)
        if with_results:
            self._before_call[:] = self._batch.state
            self._repeat = run
        failed = run()
        _copy(changed, back=True)
        if with_results:
            _copy(self._results.values(), back=True)
        if failed is not None:  # NaN positions are handled by nan_policy
            env, reason = self._reason(failed)
            emit("warning", text=f"env {env}: MuJoCo: {reason}; its state counts as not finite")
            self._arrays.views["qpos"][torch.from_numpy(failed.ids).long()] = torch.nan
        self._warn_if_full()

    def _run(self, call: Callable[..., None], arguments: Mapping[str, Any]) -> SimulationError | None:
        """Call MuJoCo, and return its error if it could not simulate some envs."""
        try:
            with warnings_to(lambda _: None):  # what a warning is about is found in the results
                call(**arguments)
        except SimulationError as error:
            return error
        except ValueError as error:
            raise UserError(f"{_FLAG}: {error}; use --env.sim.engine warp") from error
        return None

    def _copy_in(self) -> None:
        """Copy state and fields to MuJoCo."""
        _copy(self._state.values())
        _copy(self._fields)
        # MuJoCo also has constants that are not in the tensors of record, such as bounding volumes. A restored
        # checkpoint, for example, changes the fields that they are derived from.
        if not self._derived_from:
            return
        changed = torch.zeros_like(self._mask)
        for tensor, before in self._derived_from:
            if not tensor.equal(before):
                changed |= (tensor != before).reshape(len(tensor), -1).any(dim=1)
                before.copy_(tensor)
        if changed.any():
            self._outdated |= changed
            self._set_const(changed)
            _copy(self._fields)

    def _set_const(self, mask: torch.Tensor) -> None:
        """Compute the constants of some envs, (num_envs,) of bool, in MuJoCo's arrays."""
        failed = self._run(self._batch.set_const, {"ids": mask.numpy()})
        if failed is not None:
            env, reason = self._reason(failed)
            raise UserError(f"{_FLAG}: MuJoCo cannot compute the constants of env {env}: {reason}")

    def _reason(self, error: SimulationError) -> tuple[int, str]:
        """Return the first env that MuJoCo could not simulate, and MuJoCo's message, as one line."""
        env = int(error.ids[0])
        return env, " ".join(self._batch.error(env).split())

    def _warn_if_full(self) -> None:
        if not self._is_full and (num_full := int(self._batch.warning[:, _FULL, 1].any(axis=1).sum())):
            self._is_full = True
            emit(
                "warning",
                text=f"MuJoCo's memory has no room for all contacts and constraints of {num_full} envs, so the rest "
                'was dropped; give it more in the MJCF, such as <size memory="64M"/>',
            )


def _copy(pairs: Iterable[_Pair], *, back: bool = False) -> None:
    """Copy tensors of record to MuJoCo's arrays, or back."""
    for tensor, array in pairs:
        if back:
            tensor.copy_(array)
        else:
            array.copy_(tensor)


def _missing(name: str) -> UserError:
    return UserError(f"{_FLAG}: does not provide {name}, which this task reads; use --env.sim.engine warp")


class _Reader:
    """Data that provides each field that a program reads."""

    def __init__(self, engine: MujocoEngine, data: mjw.Data) -> None:
        self._engine, self._data = engine, data

    def __getattr__(self, name: str) -> Any:
        self._engine.provide(name)
        return getattr(self._data, name)
