"""Physics of the envs of one rank: MuJoCo Warp, recorded once and replayed, with torch views of its arrays.

A program is a function that launches Warp kernels, such as one physics step; see ``recording.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.messages import emit
from mjlab_dist.patching import patched
from mjlab_dist.sim import kernels, model_fields, recording, rows
from mjlab_dist.sim.data import find_key, per_env_names, put_data
from mjlab_dist.sim.memory import array_bytes
from mjlab_dist.sim.ordering import find_physics
from mjlab_dist.sim.quiet import quiet
from mjlab_dist.sim.saved import Limits, limits_of

BUFFER_BITS = int(mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS))
"""Bits of overflows that drop contacts or constraints. Other bits mean that the solver has used all its iterations."""

_INTEGRATION = (
    "qpos",
    "qvel",
    "act",
    "ctrl",
    "qacc_warmstart",
    "qfrc_applied",
    "xfrc_applied",
    "mocap_pos",
    "mocap_quat",
    "eq_active",
    "history",
    "plastic",
    "userdata",
    "time",
)
"""Fields of ``mujoco_warp.Data`` that the next step depends on; MuJoCo calls them mjSTATE_INTEGRATION."""

_CARRIED = ("cvel", "cdof_dot")
"""Fields that the next step also depends on if the model has equality constraints, which read these velocities."""


class Simulation:
    """A batch of envs on one device.

    State tensors are views of the arrays of MuJoCo Warp: writing to them changes the simulation.

    Attributes:
        model: The MuJoCo model on the host, for names and addresses.
        num_envs: Number of envs in the batch (MuJoCo Warp calls them worlds).
        device: PyTorch name of the device.
        dt_s: Simulated seconds per :meth:`step`.
        qpos: Joint positions, (num_envs, nq), in MuJoCo's order and units.
        qvel: Joint velocities, (num_envs, nv).
        ctrl: Actuator inputs, (num_envs, nu).
        reset_mask: Envs of the latest :meth:`reset`, a Warp array (num_envs,) of bool, for recorded programs.
        overflow: Bits of ``mujoco_warp.OverflowType``, (num_envs,), set if a buffer was ever too small. Resets do not
            clear them.
        demand: Largest counts since construction, (num_envs + 1,): constraint rows of each env, then contacts or near
            pairs of the whole batch. Dropped rows and contacts are included. The counts are updated after the last
            substep of each step.
        launch: Function that launches recorded programs. It is replaced while torch operations are recorded as a CUDA
            graph, because the launch of a graph cannot be recorded in another graph.
        physics: Fields that the next step depends on, by their names in ``mujoco_warp.Data``, (num_envs, ...) each;
            fields that are empty in this model are omitted.
        fields: Fields that differ between envs, by their names in ``mujoco_warp.Model`` and its options,
            (num_envs, ...) each: those named at construction, those derived from them and, if static geoms may move,
            ``geom_xpos`` and ``geom_xmat`` of the data. Later steps depend only on these fields, state and inputs.
    """

    _substep_programs: tuple[Callable[[mjw.Model, mjw.Data], None], ...] = ()

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: str,
        config: SimConfig,
        fields: Sequence[str] = (),
    ) -> None:
        """Put the model on the device, compile missing kernels and record the physics.

        Args:
            model: The MuJoCo model on the host.
            num_envs: Number of envs in the batch.
            device: ``cpu`` or ``cuda:<index>``.
            config: Sizes and options.
            fields: Fields of the model with one value per env, see :meth:`field`.

        Raises:
            UserError: If there is no such field or keyframe, or MuJoCo Warp cannot simulate the model.
        """
        self.model, self.num_envs, self.device = model, num_envs, device
        self.dt_s = float(model.opt.timestep) * config.decimation
        self._config = config
        self._key = find_key(model, config.keyframe)
        per_env_fields = model_fields.with_derived(model, fields)
        self._groups = model_fields.groups(model, fields)

        # Recorded programs, and the stream that they run on
        self._graphs: dict[Callable[[], None], wp.Graph] = {}
        self._num_changes = 0
        self._readers: set[Callable[[], None]] = set()
        self._stream = wp.stream_from_torch(device) if device != "cpu" else None
        self.launch: Callable[[Callable[[], None]], None] = _launch_now

        # Model and data on the device
        with wp.ScopedDevice(device), quiet():
            self._warp_model = model_fields.put_model(model, config.model, num_envs, per_env_fields)
            moves_static = not model_fields.MOVING_STATIC.isdisjoint(fields)
            self._unanchored = model_fields.unanchored(self._warp_model) if moves_static else None
            self._data = put_data(model, self._key, num_envs, config)
            self._step_once, self._forward_once = find_physics(config, device, self._warp_model, self._data)
            self.reset_mask, self._keys = wp.zeros(num_envs, dtype=wp.bool), wp.full(num_envs, -1, dtype=int)
            self._overflow, self._demand = (wp.zeros(size, dtype=int) for size in (num_envs, num_envs + 1))

        # Views of data and fields per env. Create all now: they cannot be created while torch operations are recorded.
        self._views = {name: wp.to_torch(getattr(self._data, name)) for name in per_env_names()}
        self._field_views: dict[str, torch.Tensor] = {}
        self.qpos, self.qvel, self.ctrl = self.view("qpos"), self.view("qvel"), self.view("ctrl")
        self.overflow, self.demand = wp.to_torch(self._overflow), wp.to_torch(self._demand)
        self._torch_mask = wp.to_torch(self.reset_mask)
        carried = _INTEGRATION + (_CARRIED if model.neq else ())
        self.physics = {name: view for name in carried if (view := self.view(name)).numel()}
        self.fields = {name: self.field(name) for name in per_env_fields}
        if self._unanchored:
            self.fields |= {name: self.view(name) for name in ("geom_xpos", "geom_xmat")}

        # Recorded programs of the physics. Unlike MuJoCo Warp's reset, our reset also clears the fields in _CARRIED.
        self._clear_carried = self._clearing([self.physics[name] for name in _CARRIED if name in self.physics])
        self._record()

    @functools.cached_property
    def _sliders(self) -> model_fields.Sliders | None:
        has_any = self._groups & mjw.SetConstGroup.INERT0 and (self.model.body_simple == 2).any()
        return model_fields.Sliders(self.model, self._warp_model, self.device) if has_any else None

    @functools.cached_property
    def _step_programs(self) -> list[Callable[[], None]]:
        # On a GPU, one graph contains all substeps, because each launch of a graph takes time. On the CPU a launch
        # takes 1 µs, and a graph of one substep is recorded faster than a graph of all substeps.
        in_turn = [*[self._substep] * self._config.decimation, self._collect_overflow]
        return in_turn if self.device == "cpu" else [self._all_substeps]

    @property
    def captured(self) -> bool:
        """Whether the physics runs as recorded graphs."""
        return bool(self._graphs)

    @property
    def version(self) -> tuple[int, ...] | None:
        """Version of the state; None if ``qpos`` or ``qvel`` is an inference tensor, whose writes torch does not count.

        The version changes if a program that may change the state runs, or if torch writes to ``qpos`` or ``qvel``.
        """
        if self.qpos.is_inference() or self.qvel.is_inference():
            return None
        return (self._num_changes, self.qpos._version, self.qvel._version)

    def mark_changed(self) -> None:
        """Change :attr:`version`. Call this after writes to the state that neither a program nor torch made."""
        self._num_changes += 1

    def view(self, name: str) -> torch.Tensor:
        """Return a field of ``mujoco_warp.Data`` as a tensor, without a copy.

        Args:
            name: The field, such as ``xpos`` (num_envs, nbody, 3) or ``sensordata`` (num_envs, nsensordata).
        """
        if name not in self._views:
            self._views[name] = wp.to_torch(getattr(self._data, name))
        return self._views[name]

    def field(self, name: str) -> torch.Tensor:
        """Return a field of ``mujoco_warp.Model`` or its options as a tensor, without a copy.

        Fields named at construction have one value per env. Writing to them changes the simulation. If other fields are
        derived from them, call :meth:`update_constants` afterwards (the env does this after events with the field in
        their ``model_fields``). All other fields have one value for all envs. Do not write to them:
        :meth:`refuse_shared_writes` raises if there was such a write.

        Args:
            name: The field, such as ``geom_friction`` (num_envs, ngeom, 3) or ``gravity`` (num_envs, 3).

        Raises:
            UserError: If there is no such field.
        """
        holder = self._warp_model.opt if name in model_fields.OPTIONS else self._warp_model
        if name not in model_fields.OPTIONS and name not in model_fields.batched_fields():
            raise model_fields.no_field(self.model, name)
        if name not in self._field_views:
            self._field_views[name] = wp.to_torch(getattr(holder, name))
        field = self._field_views[name]
        return field.expand(self.num_envs, *field.shape[1:])

    def refuse_shared_writes(self, flag: str) -> None:
        """Raise if torch has written to a field that all envs share, at any time after :meth:`field` first returned it.

        Args:
            flag: Flag of the term that may have written, for the message.
        """
        model_fields.refuse_writes(flag, self._field_views, self.fields)

    def sensor(self, name: str) -> torch.Tensor:
        """Return the reading of an MJCF sensor as the last substep or :meth:`forward` computed it, without a copy.

        Args:
            name: The sensor's name.

        Returns:
            (num_envs, dim), in the sensor's units.

        Raises:
            UserError: If there is no such sensor.
        """
        names = [self.model.sensor(i).name for i in range(self.model.nsensor)]
        if name not in names:
            raise UserError(f"sensor {name}: does not exist; the model has {', '.join(filter(None, names)) or 'none'}")
        sensor = self.model.sensor(name)
        return self.view("sensordata")[:, int(sensor.adr[0]) : int(sensor.adr[0] + sensor.dim[0])]

    def update_constants(self, *, checked: bool = True) -> None:
        """Recompute the constants derived from fields with one value per env (bounds, inverse weights, ...).

        The state does not change. Poses and all other quantities that depend only on positions are updated to the
        current state in every env. The call launches several hundred kernels in one recorded program.

        Args:
            checked: Whether to check inertias first. The check waits for the device, so use it only during setup.

        Raises:
            UserError: If a body's inertial frame was moved, although MuJoCo assumes that it is at the body's origin.
        """
        for name in {"body_ipos", "body_iquat"} & self.fields.keys() if checked else ():
            model_fields.refuse_moved_inertia(self.model, name, self.fields[name])
        self._run(self._update_constants)
        if self._sliders is not None:
            self._sliders.correct()

    def record(
        self, program: Callable[[mjw.Model, mjw.Data], None], *, changes_state: bool = True
    ) -> Callable[[], None]:
        """Record a program of Warp kernels over these envs, in the same way as the physics.

        Args:
            program: Function that launches the kernels and allocates no memory. The caller must keep references
                to the arrays that the kernels use.
            changes_state: Whether the program may write to ``qpos`` or ``qvel``.

        Returns:
            A function that runs the program, after the torch operations that were called earlier.
        """

        def run() -> None:
            program(self._warp_model, self._data)

        if not changes_state:
            self._readers.add(run)
        self._record_program(run)
        return functools.partial(self._run, run)

    def before_substeps(self, programs: Sequence[Callable[[mjw.Model, mjw.Data], None]]) -> None:
        """Run programs of Warp kernels before every substep of :meth:`step`, as part of the same recording.

        Args:
            programs: See :meth:`record`. They run in the given order, and replace the programs of an earlier call.
        """
        self._substep_programs = tuple(programs)
        self._record_program(self._step_programs[0])

    def _record_program(self, run: Callable[[], None]) -> None:
        with wp.ScopedDevice(self.device):
            if not recording.why_not_capturable(self.device):
                kernels.prepare(self.device, run)
            if self.captured:
                self._graphs[run] = recording.capture(self.device, run)

    def derived(self, name: str) -> list[str]:
        """Return the fields that :meth:`update_constants` derives from a field.

        Args:
            name: The field.
        """
        return model_fields.derived(self.model, name)

    def num_bytes(self) -> int:
        """Return the device memory of MuJoCo Warp's model and data in bytes, without a step's temporary arrays."""
        return sum(array_bytes(self._warp_model, self._data).values())

    def step(self) -> None:
        """Advance every env by one control step: ``decimation`` substeps with the current ``ctrl``."""
        self._run(*self._step_programs)

    def forward(self) -> None:
        """Recompute everything that derives from positions and velocities, in every env (``mj_forward``)."""
        self._run(self._forward)

    def reset(self, mask: torch.Tensor) -> None:
        """Reset envs to the start state: the keyframe of the config, or the reference positions of the model.

        Args:
            mask: Envs to reset, (num_envs,) of bool, on the device.
        """
        self._torch_mask.copy_(mask)
        self._run(self._reset)

    def record_clearing(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Record a program that sets rows of tensors to 0 in the envs of the latest :meth:`reset`.

        Args:
            tensors: (num_envs, ...) each, of any type, with contiguous rows. The caller must keep them alive.

        Returns:
            A function that runs the program, as in :meth:`record`. One kernel clears all tensors.
        """
        clear = self._clearing(tensors)
        return self.record(lambda *_: clear(), changes_state=False)

    def _clearing(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        tensors = [tensor for tensor in tensors if tensor.numel()]
        if not tensors:
            return lambda: None
        assert all(len(tensor) == self.num_envs and tensor[0].is_contiguous() for tensor in tensors)
        with wp.ScopedDevice(self.device):
            tables = [
                wp.array([tensor.data_ptr() for tensor in tensors], dtype=wp.uint64),
                wp.array([tensor.stride(0) * tensor.element_size() for tensor in tensors], dtype=wp.int64),
                wp.array([tensor[0].nbytes for tensor in tensors], dtype=int),
            ]
        size = (self.num_envs, len(tensors))

        def clear() -> None:
            wp.launch(rows.clear_rows, size, [self.reset_mask, *tables])

        return clear

    @property
    def buffer_sizes(self) -> tuple[int, int]:
        """Constraint rows and contacts allocated per env; larger than in the config if the start state needs more."""
        return self._data.njmax, self._data.naconmax // self.num_envs

    def state(self) -> dict[str, torch.Tensor]:
        """Return the full simulation state by name: views, (num_envs, ...) each.

        Poses and sensor readings are omitted, because a step recomputes them. Clone the tensors to keep them.
        """
        return {**(self._everything() if self._sleeps() else self.physics), "overflow": self.overflow}

    def limits(self) -> dict[str, Limits]:
        """Return the limits of integers in :meth:`state` by name, and of the floats that MuJoCo uses as indices."""
        return limits_of(self.model)

    def _sleeps(self) -> bool:
        return bool(self.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP)

    def _everything(self) -> dict[str, torch.Tensor]:
        """Return all data per env. If bodies may sleep, this is the state: a step does not recompute all poses."""
        views = {name: view for name in per_env_names() if (view := self.view(name)).numel()}
        # A step computes all integers before it uses them, except those that describe which bodies sleep.
        limits = self.limits()
        return {name: view for name, view in views.items() if view.dtype != torch.int32 or name in limits}

    # The programs of the physics

    def _substep(self) -> None:
        for program in self._substep_programs:
            program(self._warp_model, self._data)
        self._step_once(self._warp_model, self._data)

    def _all_substeps(self) -> None:
        # Only the sensor readings of the last substep remain, so the others are computed only if something needs them.
        options, num_others = self._warp_model.opt, self._config.decimation - 1
        are_needed = self._substep_programs or self.model.nhistory
        flags = options.disableflags | (0 if are_needed else mujoco.mjtDisableBit.mjDSBL_SENSOR)
        with patched(options, "disableflags", flags):
            _call_all([self._substep] * num_others)
        self._substep()
        self._collect_overflow()

    def _collect_overflow(self) -> None:
        counts = (self._data.nefc, self._data.nacon, self._data.ncollision)
        buffers = (self._overflow, self._demand)
        wp.launch(rows.collect_overflow, self.num_envs, [self._data.overflow, BUFFER_BITS, *counts, *buffers])

    def _forward(self) -> None:
        self._forward_once(self._warp_model, self._data)

    def _reset(self) -> None:
        if self._key is None:
            mjw.reset_data(self._warp_model, self._data, reset=self.reset_mask)
        else:
            wp.launch(rows.choose_keys, self.num_envs, [self.reset_mask, self._key, self._keys])
            mjw.reset_data_keyframe(self._warp_model, self._data, self._keys)
        self._clear_carried()

    def _update_constants(self) -> None:
        mjw.set_const(self._warp_model, self._data, groups=self._groups)
        if self._unanchored is not None:
            mjw.kinematics(self._unanchored, self._data)

    def _programs(self) -> list[Callable[[], None]]:
        programs = [*dict.fromkeys(self._step_programs), self._forward, self._reset]
        return [*programs, self._update_constants] if self._groups or self._unanchored else programs

    def _run(self, *programs: Callable[[], None]) -> None:
        if not self._readers.issuperset(programs):
            self._num_changes += 1
        if self._graphs.keys() >= set(programs):
            graphs = [self._graphs[program] for program in programs]
            # On the torch stream, so that these kernels and those of the terms stay in order without a synchronization.
            self.launch(functools.partial(recording.replay, graphs, self._stream))
        elif self._stream is None:
            # Without a recording, Python launches the same kernels one by one.
            with wp.ScopedDevice(self.device) as device, recording.launching(device):
                _call_all(programs)
        else:
            with wp.ScopedStream(self._stream):
                _call_all(programs)

    def _record(self) -> None:
        reason = recording.why_not_capturable(self.device)
        with wp.ScopedDevice(self.device):
            # Load every kernel first, because loading a module during a capture breaks the capture.
            if not reason:
                kernels.prepare(self.device, functools.partial(_call_all, self._programs()))
            captures = self._config.capture != "off"
            if captures and reason:
                emit("warning", text=f"the physics is not captured, which is slower: {reason}")
            elif captures:
                self._graphs = {program: recording.capture(self.device, program) for program in self._programs()}


def _call_all(programs: Iterable[Callable[[], None]]) -> None:
    for program in programs:
        program()


def _launch_now(launch: Callable[[], None]) -> None:
    launch()
