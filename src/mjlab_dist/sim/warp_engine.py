"""Physics by MuJoCo Warp, recorded once and replayed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import mujoco
import mujoco_warp as mjw
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.imports import patched
from mjlab_dist.sim import data, model_fields
from mjlab_dist.sim.engine import Arrays, Engine, Program
from mjlab_dist.sim.ordering import find_physics
from mjlab_dist.sim.recorder import Recorder

# Bits of overflows that drop contacts or constraints. Other bits mean that the solver has used all its iterations.
BUFFER_BITS = int(mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS))

# Fields that MuJoCo Warp's next step also depends on if the model has equality constraints, which read these
# velocities. MuJoCo Warp's reset does not clear them.
CARRIED = ("cvel", "cdof_dot")


class WarpEngine(Engine):
    """MuJoCo Warp on a GPU or on the CPU."""

    def __init__(self, arrays: Arrays, recorder: Recorder, config: SimConfig, key: int | None) -> None:
        self._arrays, self._recorder, self._key = arrays, recorder, key
        self._model, self._put, self.data = arrays.model, arrays.put, arrays.data
        self._decimation, self._num_envs = config.decimation, arrays.data.nworld
        self._substep_programs: tuple[Program, ...] = ()
        self._groups = model_fields.groups(self._model, arrays.written)
        moves_static = not model_fields.MOVING_STATIC.isdisjoint(arrays.written)
        mask, device = arrays.reset_mask, wp.get_device(str(arrays.reset_mask.device))
        with wp.ScopedDevice(device):
            self._unanchored = model_fields.unanchored(self._put) if moves_static else None
            self._keys = wp.full(self._num_envs, -1, dtype=int)
            cleared = [arrays.physics[name] for name in CARRIED if name in arrays.physics]
            self._clear_carried = data.clearing(mask, cleared)
            self._step_once, self._forward_once = find_physics(config, str(device), self._put, self.data)
        # On a GPU, one graph contains all substeps, because each launch of a graph takes time. On the CPU a launch
        # takes 1 µs, and a graph of one substep is recorded faster than a graph of all substeps.
        in_turn = [*[self._substep] * self._decimation, self._collect_overflow]
        self._step_programs = in_turn if device.is_cpu else [self._all_substeps]
        programs = [*dict.fromkeys(self._step_programs), self._forward, self._reset]
        if self._groups or self._unanchored is not None:
            programs.append(self._update_constants)
        self._recorder.record(*programs)

    @functools.cached_property
    def _sliders(self) -> model_fields.Sliders | None:
        has_any = self._groups & mjw.SetConstGroup.INERT0 and (self._model.body_simple == 2).any()
        return model_fields.Sliders(self._model, self._put, str(self._arrays.reset_mask.device)) if has_any else None

    def step(self) -> None:
        self._recorder.run(*self._step_programs)

    def forward(self) -> None:
        self._recorder.run(self._forward)

    def reset(self) -> None:
        self._recorder.run(self._reset)

    def update_constants(self) -> None:
        self._recorder.run(self._update_constants)
        if self._sliders is not None:
            self._sliders.correct()

    def before_substeps(self, programs: Sequence[Program]) -> None:
        self._substep_programs = tuple(programs)
        self._recorder.record(self._step_programs[0])

    def record_wrenches(self) -> Callable[[], None]:
        def compute() -> None:
            mjw.rne_postconstraint(self._put, self.data)

        self._recorder.record(compute, changes_state=False)
        return functools.partial(self._recorder.run, compute)

    def provide(self, name: str) -> None:
        pass  # kernels write every field

    def num_bytes(self) -> int:
        return 0

    # The programs of the physics

    def _substep(self) -> None:
        for program in self._substep_programs:
            program(self._put, self.data)
        self._step_once(self._put, self.data)

    def _all_substeps(self) -> None:
        # Only the sensor readings of the last substep remain, so the others are computed only if something needs them.
        options = self._put.opt
        are_needed = self._substep_programs or self._model.nhistory
        flags = options.disableflags | (0 if are_needed else mujoco.mjtDisableBit.mjDSBL_SENSOR)
        with patched(options, "disableflags", flags):
            for _ in range(self._decimation - 1):
                self._substep()
        self._substep()
        self._collect_overflow()

    def _collect_overflow(self) -> None:
        counts = (self.data.nefc, self.data.nacon, self.data.ncollision)
        buffers = (self._arrays.overflow, self._arrays.demand)
        wp.launch(data.collect_overflow, self._num_envs, [self.data.overflow, BUFFER_BITS, *counts, *buffers])

    def _forward(self) -> None:
        self._forward_once(self._put, self.data)

    def _reset(self) -> None:
        mask = self._arrays.reset_mask
        if self._key is None:
            mjw.reset_data(self._put, self.data, reset=mask)
        else:
            wp.launch(data.choose_keys, self._num_envs, [mask, self._key, self._keys])
            mjw.reset_data_keyframe(self._put, self.data, self._keys)
        self._clear_carried()

    def _update_constants(self) -> None:
        mjw.set_const(self._put, self.data, groups=self._groups)
        if self._unanchored is not None:
            mjw.kinematics(self._unanchored, self.data)
