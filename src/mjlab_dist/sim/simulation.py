"""Physics of the envs of one rank, with torch views of its state and results.

A program is a function that launches Warp kernels, such as one physics step; see ``recorder.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import torch
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import data, model_fields
from mjlab_dist.sim.data import Limits, array_bytes, find_key, limits_of, per_env_names, put_data
from mjlab_dist.sim.engine import Arrays, Engine, Program
from mjlab_dist.sim.engine_choice import choose_engine
from mjlab_dist.sim.mujoco_engine import MujocoEngine
from mjlab_dist.sim.quiet import quiet
from mjlab_dist.sim.recorder import Recorder
from mjlab_dist.sim.warp_engine import CARRIED, WarpEngine

# Fields of `mujoco_warp.Data` that the next step depends on; MuJoCo calls them mjSTATE_INTEGRATION
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


class Simulation:
    """A batch of envs on one device.

    State tensors are views of the arrays of MuJoCo Warp, whatever engine simulates: writing to them changes the
    simulation.

    Attributes:
        model: The MuJoCo model on the host, for names and addresses.
        engine: The engine that computes the physics, ``warp`` or ``mujoco``.
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
            substep of each step, and are always 0 with MuJoCo's C code, which has no buffers.
        recorder: Records and runs programs.
        num_substep_programs: Number of programs that run before every substep.
        physics: Fields that the next step depends on, by their names in ``mujoco_warp.Data``, (num_envs, ...) each;
            fields that are empty in this model are omitted.
        fields: Fields that differ between envs, by their names in ``mujoco_warp.Model`` and its options,
            (num_envs, ...) each: those named at construction, those derived from them and, if static geoms may move,
            ``geom_xpos`` and ``geom_xmat`` of the data. Later steps depend only on these fields, state and inputs.
    """

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
        self.engine = choose_engine(config, device, model)
        key = find_key(model, config.keyframe)
        per_env_fields = model_fields.with_derived(model, fields)
        njmax, nconmax = (config.njmax, config.nconmax) if self.engine == "warp" else (0, 0)

        # Model and data on the device
        self.recorder = Recorder(device, captures=config.capture != "off")
        with wp.ScopedDevice(device), quiet():
            self._warp_model = model_fields.put_model(model, config.model, num_envs, per_env_fields)
            self._data = put_data(model, key, num_envs, njmax, nconmax)
            self.reset_mask = wp.zeros(num_envs, dtype=wp.bool)
            overflow, demand = (wp.zeros(size, dtype=int) for size in (num_envs, num_envs + 1))

        # Views of data and fields per env. Create all now: they cannot be created while torch operations are recorded.
        self._views = {name: wp.to_torch(getattr(self._data, name)) for name in per_env_names()}
        self._field_views: dict[str, torch.Tensor] = {}
        self.qpos, self.qvel, self.ctrl = (self._views[name] for name in ("qpos", "qvel", "ctrl"))
        self.overflow, self.demand = wp.to_torch(overflow), wp.to_torch(demand)
        self._torch_mask = wp.to_torch(self.reset_mask)
        carried = CARRIED if model.neq and self.engine == "warp" else ()
        self.physics = {name: view for name in _INTEGRATION + carried if (view := self._views[name]).numel()}
        self.fields = {name: self.field(name) for name in per_env_fields}

        # Engine
        arrays = Arrays(
            model=model, put=self._warp_model, data=self._data, views=self._views, physics=self.physics,
            fields=self.fields, written=fields, reset_mask=self.reset_mask, overflow=overflow, demand=demand,
        )  # fmt: skip
        engine = MujocoEngine if self.engine == "mujoco" else WarpEngine
        self._engine: Engine = engine(arrays, self.recorder, config, key)
        self.num_substep_programs = 0
        if not model_fields.MOVING_STATIC.isdisjoint(fields):
            self.fields |= {name: self.view(name) for name in ("geom_xpos", "geom_xmat")}

    @property
    def captured(self) -> bool:
        """Whether the physics runs as recorded graphs."""
        return self.recorder.captures

    @property
    def version(self) -> tuple[int, ...] | None:
        """Version of the state; None if ``qpos`` or ``qvel`` is an inference tensor, whose writes torch does not count.

        The version changes if a program that may change the state runs, or if torch writes to ``qpos`` or ``qvel``.
        """
        if self.qpos.is_inference() or self.qvel.is_inference():
            return None
        return (self.recorder.num_changes, self.qpos._version, self.qvel._version)

    def mark_changed(self) -> None:
        """Change :attr:`version`. Call this after writes to the state that neither a program nor torch made."""
        self.recorder.num_changes += 1

    def view(self, name: str) -> torch.Tensor:
        """Return a field of ``mujoco_warp.Data`` as a tensor, without a copy.

        Args:
            name: The field, such as ``xpos`` (num_envs, nbody, 3) or ``sensordata`` (num_envs, nsensordata).

        Raises:
            UserError: If the engine does not compute this field.
        """
        self._engine.provide(name)
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

        The state does not change. The poses of static geoms are updated. MuJoCo Warp also updates all other quantities
        that depend only on positions to the current state, and launches several hundred kernels in one recorded
        program.

        Args:
            checked: Whether to check inertias first. The check waits for the device, so use it only during setup.

        Raises:
            UserError: If a body's inertial frame was moved, although MuJoCo assumes that it is at the body's origin.
        """
        for name in {"body_ipos", "body_iquat"} & self.fields.keys() if checked else ():
            model_fields.refuse_moved_inertia(self.model, name, self.fields[name])
        self._engine.update_constants()

    def record(self, program: Program, *, changes_state: bool = True) -> Callable[[], None]:
        """Record a program of Warp kernels over these envs, in the same way as the physics.

        Args:
            program: Function that launches the kernels and allocates no memory. The caller must keep references
                to the arrays that the kernels use.
            changes_state: Whether the program may write to ``qpos`` or ``qvel``.

        Returns:
            A function that runs the program, after the torch operations that were called earlier.
        """

        def run() -> None:
            program(self._warp_model, self._engine.data)

        self.recorder.record(run, changes_state=changes_state)
        return functools.partial(self.recorder.run, run)

    def record_launch(
        self,
        kernel: Callable[..., None] | wp.Kernel,
        size: int | Sequence[int],
        arguments: Sequence[Any],
        *,
        changes_state: bool = True,
    ) -> Callable[[], None]:
        """Record a program that launches one Warp kernel.

        Args:
            kernel: The kernel.
            size: Number of threads along each axis.
            arguments: Arguments of the kernel. Tensors of torch are passed as Warp arrays that share their memory.
            changes_state: Whether the kernel may write to ``qpos`` or ``qvel``.

        Returns:
            A function that runs the program, as in :meth:`record`.
        """
        arrays = [wp.from_torch(one) if isinstance(one, torch.Tensor) else one for one in arguments]

        def launch(*_: object) -> None:
            wp.launch(kernel, size, arrays)

        return self.record(launch, changes_state=changes_state)

    def record_wrenches(self) -> Callable[[], None]:
        """Record a program that computes ``cacc``, ``cfrc_int`` and ``cfrc_ext``, which steps compute only for sensors.

        Returns:
            A function that runs the program: MuJoCo's ``mj_rnePostConstraint`` in the last stage of the integrator.
        """
        return self._engine.record_wrenches()

    def before_substeps(self, programs: Sequence[Program]) -> None:
        """Run programs of Warp kernels before every substep of :meth:`step`, as part of the same recording.

        Args:
            programs: See :meth:`record`. They run in the given order, and replace the programs of an earlier call.
        """
        self.num_substep_programs = len(programs)
        self._engine.before_substeps(programs)

    def derived(self, name: str) -> list[str]:
        """Return the fields that :meth:`update_constants` derives from a field.

        Args:
            name: The field.
        """
        return model_fields.derived(self.model, name)

    def num_bytes(self) -> int:
        """Return the device memory of model, data and engine in bytes, without a step's temporary arrays."""
        return sum(array_bytes(self._warp_model, self._data).values()) + self._engine.num_bytes()

    def step(self) -> None:
        """Advance every env by one control step: ``decimation`` substeps with the current ``ctrl``."""
        self._engine.step()

    def forward(self) -> None:
        """Recompute everything that derives from positions and velocities, in every env (``mj_forward``)."""
        self._engine.forward()

    def reset(self, mask: torch.Tensor) -> None:
        """Reset envs to the start state: the keyframe of the config, or the reference positions of the model.

        Args:
            mask: Envs to reset, (num_envs,) of bool, on the device.
        """
        self._torch_mask.copy_(mask)
        self._engine.reset()

    def record_clearing(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Record a program that sets rows of tensors to 0 in the envs of the latest :meth:`reset`.

        Args:
            tensors: (num_envs, ...) each, of any type, with contiguous rows. The caller must keep them alive.

        Returns:
            A function that runs the program, as in :meth:`record`. One kernel clears all tensors.
        """
        with wp.ScopedDevice(self.device):
            clear = data.clearing(self.reset_mask, tensors)
        return self.record(lambda *_: clear(), changes_state=False)

    @property
    def buffer_sizes(self) -> tuple[int, int]:
        """Constraint rows and contacts allocated per env; larger than in the config if the start state needs more."""
        return self._data.njmax, self._data.naconmax // self.num_envs

    def state(self) -> dict[str, torch.Tensor]:
        """Return the full simulation state by name: views, (num_envs, ...) each.

        Poses and sensor readings are omitted, because a step recomputes them. Clone the tensors to keep them.
        """
        if not self.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            return {**self.physics, "overflow": self.overflow}
        # If bodies may sleep, a step does not recompute all poses. It computes all integers before it uses them, except
        # those that describe which bodies sleep.
        views = {name: view for name in per_env_names() if (view := self.view(name)).numel()}
        limits = self.limits()
        kept = {name: view for name, view in views.items() if view.dtype != torch.int32 or name in limits}
        return {**kept, "overflow": self.overflow}

    def limits(self) -> dict[str, Limits]:
        """Return the limits of integers in :meth:`state` by name, and of the floats that MuJoCo uses as indices."""
        return limits_of(self.model)
