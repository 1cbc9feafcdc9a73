"""The physics of one rank's envs: MuJoCo Warp, recorded once and replayed, seen through torch without copies."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.messages import emit
from mjlab_dist.sim import kernels, rows
from mjlab_dist.sim.height_field import take_over

CAPTURABLE_DRIVER = (12, 4)
"""CUDA driver from which on a graph can hold the solver's loop (a conditional node)."""


BUFFER_BITS = int(mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS))
"""Overflows that drop contacts or constraints; the others say that the solver stopped at its limit of iterations."""

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
"""Fields of ``mujoco_warp.Data`` that MuJoCo calls mjSTATE_INTEGRATION: what the next step depends on."""

_CARRIED = ("cvel", "cdof_dot")
"""Further ones where there are equality constraints: connect and weld read the velocities of the substep before."""


_FRAME0 = ("cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0", "light_dir0")

_INERTIA0 = ("dof_invweight0", "body_invweight0", "tendon_invweight0", "actuator_acc0")

_POSE0 = ("tendon_length0", "eq_data", *_FRAME0, *_INERTIA0)

_GROUPS: dict[int, tuple[str, ...]] = {
    mjw.SetConstGroup.FIXED: ("body_subtreemass", "geom_aabb", "geom_rbound"),
    mjw.SetConstGroup.KIN0: ("tendon_length0", "eq_data", *_FRAME0),
    mjw.SetConstGroup.INERT0: _INERTIA0,
}
"""Fields that ``mujoco_warp.set_const`` computes, by its groups."""

_DERIVED: dict[str, tuple[str, ...]] = {
    "body_mass": ("body_subtreemass", "cam_poscom0", "light_poscom0", *_INERTIA0),
    "body_ipos": ("cam_poscom0", "light_poscom0", *_INERTIA0),
    **dict.fromkeys(("body_inertia", "body_iquat"), _INERTIA0),
    **dict.fromkeys(("dof_armature", "tendon_armature", "actuator_armature", "actuator_gear"), _INERTIA0),
    **dict.fromkeys(("body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0"), _POSE0),
    **dict.fromkeys(("cam_pos", "cam_quat", "light_pos", "light_dir"), _FRAME0),
    "geom_size": ("geom_aabb", "geom_rbound"),
    "eq_data": ("eq_data",),
}
"""Fields that follow from a field."""

_ROUTES = ("site_pos", "site_quat", "geom_pos", "geom_quat", "geom_size")
"""Fields that tendons run along, and site transmissions lie in."""

_ROUTED = ("tendon_length0", "tendon_invweight0", "actuator_acc0")
"""Fields that follow from where these are."""

_OPTIONS = ("gravity", "wind", "magnetic", "density", "viscosity")
"""Fields of ``mujoco_warp.Option`` that may differ between envs: those of the world. The others are the solver's."""

_SWITCHES = {
    **dict.fromkeys(("wind", "density", "viscosity"), "has_fluid"),
    "tendon_stiffness": "has_tendon_stiffness",
    "tendon_damping": "has_tendon_damping",
}
"""What MuJoCo Warp skips where a field is 0 when the model is put on the device."""

_MOVING_STATIC = {"geom_pos", "geom_quat", "body_pos", "body_quat"}
"""Fields that poses of static geoms follow from."""

_ON_JOINTS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)


class Simulation:
    """A batch of envs on one device.

    State tensors are views of MuJoCo Warp's own arrays: writing to them changes the simulation.

    Attributes:
        model: The MuJoCo model on the host, for names and addresses.
        num_envs: Envs in the batch (MuJoCo Warp calls them worlds).
        device: Torch's name of the device.
        dt_s: Simulated seconds per :meth:`step`.
        qpos: Joint positions, (num_envs, nq), in MuJoCo's order and units.
        qvel: Joint velocities, (num_envs, nv).
        ctrl: Actuator inputs, (num_envs, nu).
        reset_mask: Envs of the newest :meth:`reset`, a Warp array (num_envs,) of bool, for recorded programs.
        overflow: Bits of ``mujoco_warp.OverflowType``, (num_envs,), set where a buffer was ever too small; resets leave them.
        launch: Called with every launch of a captured program, to perform it. A recording of torch's operations replaces this, for
            the launch of a CUDA graph cannot be recorded in another one.
        physics: What the next step depends on, by the names of ``mujoco_warp.Data``, (num_envs, ...) each; without those that
            the model has none of.
        fields: What differs between the envs' models, by the names of ``mujoco_warp.Model`` and its options, (num_envs, ...)
            each: the fields named at construction, and those that follow from them (poses of geoms, too, where static ones may
            be moved). They and :meth:`state` are all that envs depend on.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: str,
        config: SimConfig,
        fields: Sequence[str] = (),
    ) -> None:
        """Put the model on the device, compile what is missing, record the physics.

        Args:
            model: The MuJoCo model on the host.
            num_envs: Envs in the batch.
            device: ``cpu`` or ``cuda:<index>``.
            config: Sizes and options.
            fields: Fields of the model that are to have a value per env: see :meth:`field`.

        Raises:
            UserError: If there is no such field or keyframe, or MuJoCo Warp cannot simulate the model.
        """
        self.model = model
        self.num_envs = num_envs
        self.device = device
        self.dt_s = float(model.opt.timestep) * config.decimation
        self._config = config
        self._graphs: dict[Callable[[], None], wp.Graph] = {}
        self._num_changes = 0
        self._readers: set[Callable[[], None]] = set()
        self._stream = wp.stream_from_torch(device) if device != "cpu" else None
        self.launch: Callable[[Callable[[], None]], None] = _launch_now
        self._key = _find_key(model, config.keyframe)
        with wp.ScopedDevice(device):
            self._warp_model = _put_model(model, config.model, num_envs, _with_derived(model, fields))
            self._unanchored = _unanchored(self._warp_model) if not _MOVING_STATIC.isdisjoint(fields) else None
            self._data = mjw.put_data(
                model,
                start := _start(model, self._key),
                nworld=num_envs,
                njmax=max(config.njmax, start.nefc),
                nconmax=max(config.nconmax, start.ncon),
            )
            self.reset_mask = wp.zeros(num_envs, dtype=wp.bool)
            self._keys = wp.full(num_envs, -1, dtype=int)
            self._overflow = wp.zeros(num_envs, dtype=int)
        self._groups = _groups(model, fields)
        # Views are made here, so that a step makes none: a recording of the step would miss them.
        per_env = [field.name for field in dataclasses.fields(mjw.Data) if _is_per_env(field)]
        self._views = {name: wp.to_torch(getattr(self._data, name)) for name in per_env}
        self._field_views: dict[str, torch.Tensor] = {}
        self.qpos, self.qvel, self.ctrl = self.view("qpos"), self.view("qvel"), self.view("ctrl")
        self.overflow, self._torch_mask = wp.to_torch(self._overflow), wp.to_torch(self.reset_mask)
        carried = _INTEGRATION + (_CARRIED if model.neq else ())
        self.physics = {name: view for name in carried if (view := self.view(name)).numel()}
        self.fields = {name: self.field(name) for name in _with_derived(model, fields)}
        if self._unanchored:
            self.fields |= {name: self.view(name) for name in ("geom_xpos", "geom_xmat")}
        # What MuJoCo Warp's reset leaves
        self._clear_carried = self._clearing([self.physics[name] for name in _CARRIED if name in self.physics])
        self._record()

    @property
    def captured(self) -> bool:
        """Whether the physics is replayed from a recording."""
        return bool(self._graphs)

    @property
    def version(self) -> tuple[int, ...] | None:
        """Number that changes whenever a program runs, or torch writes to ``qpos`` or ``qvel``; None if torch does not count."""
        if self.qpos.is_inference() or self.qvel.is_inference():
            return None
        return (self._num_changes, self.qpos._version, self.qvel._version)

    def mark_changed(self) -> None:
        """Change :attr:`version`; call this after writes to the state by other means than programs and torch."""
        self._num_changes += 1

    def view(self, name: str) -> torch.Tensor:
        """A field of ``mujoco_warp.Data`` as a tensor, without a copy.

        Args:
            name: The field, such as ``xpos`` (num_envs, nbody, 3) or ``sensordata`` (num_envs, nsensordata).
        """
        if name not in self._views:
            self._views[name] = wp.to_torch(getattr(self._data, name))
        return self._views[name]

    def field(self, name: str) -> torch.Tensor:
        """A field of ``mujoco_warp.Model`` or its options as a tensor, without a copy.

        Those named at construction have a value per env, and writing to them changes the simulation (after
        :meth:`update_constants`, where others follow from them). Of the others all envs share one, which cannot be written.

        Args:
            name: The field, such as ``geom_friction`` (num_envs, ngeom, 3) or ``gravity`` (num_envs, 3).

        Raises:
            UserError: If there is no such field.
        """
        holder = self._warp_model.opt if name in _OPTIONS else self._warp_model
        if name not in _OPTIONS and name not in _batched_fields():
            raise _no_field(self.model, name)
        if name not in self._field_views:
            self._field_views[name] = wp.to_torch(getattr(holder, name))
        field = self._field_views[name]
        return field.expand(self.num_envs, *field.shape[1:])

    def sensor(self, name: str) -> torch.Tensor:
        """What a sensor of the MJCF measured in the last substep (or :meth:`forward`), without a copy.

        Args:
            name: The sensor's name.

        Returns:
            (num_envs, dim), in the sensor's units.

        Raises:
            UserError: If there is no such sensor.
        """
        names = [self.model.sensor(i).name for i in range(self.model.nsensor)]
        if name not in names:
            raise UserError(f"sensor {name}: the model has {', '.join(filter(None, names)) or 'none'}")
        sensor = self.model.sensor(name)
        return self.view("sensordata")[:, int(sensor.adr[0]) : int(sensor.adr[0] + sensor.dim[0])]

    def update_constants(self) -> None:
        """Recompute, in every env, what follows from the fields that have a value per env: bounds, inverse weights, ...

        The state stays as it is. Poses and what else follows from positions alone become those of the present state, in every
        env. It launches several hundred kernels, and may wait for the device: call it where envs are set up, not in a step.

        Raises:
            UserError: If an inertia was moved that MuJoCo takes to stay at the origin of its body.
        """
        for name in {"body_ipos", "body_iquat"} & self.fields.keys():
            _refuse_moved_inertia(self.model, name, self.fields[name])
        self._run(self._update_constants)
        if self._groups & mjw.SetConstGroup.INERT0:
            _correct_sliders(self.model, self._warp_model)

    def record(
        self, program: Callable[[mjw.Model, mjw.Data], None], *, changes_state: bool = True
    ) -> Callable[[], None]:
        """Make a program of Warp kernels over these envs that runs as the physics does: recorded once, then replayed.

        Args:
            program: Launches the kernels; it allocates nothing. The arrays that it writes to have to be kept.
            changes_state: Whether it may write to ``qpos`` or ``qvel``.

        Returns:
            Runs it, in order with torch's work.
        """

        def run() -> None:
            program(self._warp_model, self._data)

        if not changes_state:
            self._readers.add(run)
        with wp.ScopedDevice(self.device):
            if not self._why_not_capturable():
                kernels.prepare(self.device, run)
            if self.captured:
                self._graphs[run] = self._capture(run)
        return functools.partial(self._run, run)

    def derived(self, name: str) -> list[str]:
        """Fields that follow from a field, and that :meth:`update_constants` therefore recomputes.

        Args:
            name: The field.
        """
        return _derived(self.model, name)

    def num_bytes(self) -> int:
        """Bytes of device memory that MuJoCo Warp's model and data hold, without what a step allocates for itself."""
        return sum(_array_bytes(self._warp_model, self._data).values())

    def step(self) -> None:
        """Advance every env by one control step: ``decimation`` substeps with the current ``ctrl``."""
        self._run(self._step)

    def forward(self) -> None:
        """Recompute everything that follows from positions and velocities, in every env."""
        self._run(self._forward)

    def reset(self, mask: torch.Tensor) -> None:
        """Put envs back to the start state: the keyframe's, or the model's reference positions where the config names none.

        Args:
            mask: Which envs, (num_envs,) of bool, on the device.
        """
        self._torch_mask.copy_(mask)
        self._run(self._reset)

    def record_clearing(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Make a program that sets rows of tensors to 0, in the envs of the newest :meth:`reset`.

        Args:
            tensors: (num_envs, ...) each, of any type, whose rows are contiguous. They have to be kept.

        Returns:
            Runs it, as :meth:`record` says: one operation for all tensors.
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

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the future of the envs depends on, by name: views, (num_envs, ...) each. Clone what is to be kept.

        Poses and sensors are not among it: a step computes them anew.
        """
        return {**(self._everything() if self._sleeps() else self.physics), "overflow": self.overflow}

    def _sleeps(self) -> bool:
        return bool(self.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP)

    def _everything(self) -> dict[str, torch.Tensor]:
        """All that there is per env: poses of a body that sleeps are not computed anew, so that no less will do."""
        fields = [field.name for field in dataclasses.fields(mjw.Data) if _is_per_env(field)]
        return {name: view for name in fields if (view := self.view(name)).numel()}

    def _step(self) -> None:
        for _ in range(self._config.decimation):
            mjw.step(self._warp_model, self._data)
        wp.launch(rows.collect_overflow, self.num_envs, [self._data.overflow, BUFFER_BITS, self._overflow])

    def _forward(self) -> None:
        mjw.forward(self._warp_model, self._data)

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
        programs = [self._step, self._forward, self._reset]
        return [*programs, self._update_constants] if self._groups or self._unanchored else programs

    def _all(self) -> None:
        for program in self._programs():
            program()

    def _run(self, program: Callable[[], None]) -> None:
        if program not in self._readers:
            self._num_changes += 1
        # On torch's stream, so that the terms' kernels and these stay in order without a synchronization.
        graph = self._graphs.get(program)
        if graph is not None:
            self.launch(functools.partial(wp.capture_launch, graph, stream=self._stream))
        elif self._stream is None:
            with wp.ScopedDevice(self.device):
                program()
        else:
            with wp.ScopedStream(self._stream):
                program()

    def _record(self) -> None:
        reason = self._why_not_capturable()
        with wp.ScopedDevice(self.device):
            if not reason:
                kernels.prepare(self.device, self._all)
            captures = self._config.capture != "off"
            if captures and reason:
                emit("warning", text=f"the physics is not captured, which is slower: {reason}")
            elif captures:
                self._graphs = {program: self._capture(program) for program in self._programs()}

    def _capture(self, program: Callable[[], None]) -> wp.Graph:
        with kernels.no_gc(), wp.ScopedCapture(device=self.device, force_module_load=False) as capture:
            program()
        assert capture.graph is not None
        return capture.graph

    def _why_not_capturable(self) -> str:
        device = wp.get_device(self.device)
        if device.is_cpu:
            return ""
        driver = wp.get_cuda_driver_version()
        if driver is None or driver < CAPTURABLE_DRIVER:
            return f"conditional graph nodes need CUDA 12.4, the NVIDIA driver has {driver}"
        if not wp.is_mempool_enabled(device):
            return "CUDA memory pools are off on this device"
        return ""


def _launch_now(launch: Callable[[], None]) -> None:
    launch()


def _find_key(model: mujoco.MjModel, name: str | None) -> int | None:
    keys = [model.key(i).name for i in range(model.nkey)]
    if name is not None and name not in keys:
        raise UserError(f"--env.sim.keyframe {name}: the model has {', '.join(filter(None, keys)) or 'none'}")
    return None if name is None else keys.index(name)


def _start(model: mujoco.MjModel, key: int | None) -> mujoco.MjData:
    start = mujoco.MjData(model)
    if key is not None:
        mujoco.mj_resetDataKeyframe(model, start, key)
    mujoco.mj_forward(model, start)
    return start


def _put_model(model: mujoco.MjModel, name: str, num_envs: int, fields: Iterable[str]) -> mjw.Model:
    """Put a model on the current device, with fields that have a value per env."""
    sizes = {field: num_envs for field in fields if field not in _OPTIONS}
    try:
        put = mjw.put_model(model, batch_sizes=sizes)
    except (NotImplementedError, ValueError) as error:
        raise UserError(f"--env.sim.model {name}: MuJoCo Warp: {' '.join(str(error).split())}") from error
    take_over(model, put)
    put.opt.warn_overflow = 0  # reported by the runner, once, instead of printed by every env
    for field in set(fields) - sizes.keys():
        shared = getattr(put.opt, field)
        setattr(put.opt, field, wp.array(np.repeat(shared.numpy(), num_envs, axis=0), dtype=shared.dtype))
    # What MuJoCo Warp leaves out, since it is 0 in the MJCF, may be so no longer.
    for field, switch in _SWITCHES.items():
        if field in fields:
            setattr(put, switch, True)
    return put


def _with_derived(model: mujoco.MjModel, fields: Iterable[str]) -> list[str]:
    """Fields and all that follows from them, as far as the model has any."""
    found: dict[str, None] = {}
    for name in fields:
        if name not in _offered(model):
            raise _no_field(model, name)
        found |= dict.fromkeys([name, *_derived(model, name)])
    return list(found)


def _derived(model: mujoco.MjModel, name: str) -> list[str]:
    routed = bool(model.ntendon) or not np.isin(model.actuator_trntype, _ON_JOINTS).all()
    names = _DERIVED.get(name, ()) + (_ROUTED if name in _ROUTES and routed else ())
    return [name for name in names if getattr(model, name).size]


def _groups(model: mujoco.MjModel, fields: Iterable[str]) -> int:
    """The groups of ``mujoco_warp.set_const`` that compute what follows from some fields."""
    derived = {name for field in fields for name in _derived(model, field)}
    return sum(group for group, names in _GROUPS.items() if derived & set(names))


def _offered(model: mujoco.MjModel) -> list[str]:
    computed = {name for names in _GROUPS.values() for name in names} - {"eq_data"}
    return [name for name in _batched_fields() if name not in computed and getattr(model, name).size] + list(_OPTIONS)


def _batched_fields() -> list[str]:
    """Fields of ``mujoco_warp.Model`` that may have a value per env, and are real numbers."""
    specs: list[tuple[str, Any]] = [(field.name, field.type) for field in dataclasses.fields(mjw.Model)]
    return [name for name, spec in specs if getattr(spec, "shape", ("",))[0] == "*" and _is_real(spec.dtype)]


def _is_real(dtype: Any) -> bool:
    return getattr(dtype, "_wp_scalar_type_", dtype) in (float, wp.float32)


def _no_field(model: mujoco.MjModel, name: str) -> UserError:
    return UserError(
        f"field {name}: can have no value per env; those of the model that can are {', '.join(_offered(model))}"
    )


def copy_state(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors by name into others, in place: recorded graphs know these by their addresses.

    Args:
        source: What was saved.
        target: What it goes into.

    Raises:
        UserError: If names or shapes differ; nothing is copied then.
    """
    for name in {**source, **target}:
        there, here = (str(tuple(held[name].shape)) if name in held else "missing" for held in (source, target))
        if there != here:
            raise UserError(
                f"the saved state of the envs does not fit: {name} is {there} there, {here} here; the model, the task or the "
                "number of envs is another"
            )
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _refuse_moved_inertia(model: mujoco.MjModel, name: str, field: torch.Tensor) -> None:
    moved = (field.cpu() != torch.from_numpy(getattr(model, name)).float()).any(dim=2).any(dim=0).numpy()
    for body in np.flatnonzero(moved & (model.body_simple != 0)):
        raise UserError(
            f"field {name}: MuJoCo takes the inertia of body {model.body(body).name} to lie at its origin, along its axes; write "
            'simple="false" into that body of the MJCF'
        )


def _correct_sliders(model: mujoco.MjModel, put: mjw.Model) -> None:
    """Set inverse weights of bodies that only slide, and carry none, as MuJoCo's C code does and MuJoCo Warp does not."""
    bodies = np.flatnonzero(model.body_simple == 2)
    dofs = np.flatnonzero(np.isin(model.dof_bodyid, bodies))
    inverse_mass = 1.0 / wp.to_torch(put.body_mass)
    wp.to_torch(put.dof_invweight0)[:, dofs] = inverse_mass[:, model.dof_bodyid[dofs]]
    wp.to_torch(put.body_invweight0)[:, bodies, 0] = inverse_mass[:, bodies]
    wp.to_torch(put.body_invweight0)[:, bodies, 1] = 0.0


def _unanchored(model: mjw.Model) -> mjw.Model:
    """The same model, but no geom in it counts as static: MuJoCo Warp computes poses of those only when data is made."""
    copied = copy.copy(model)
    copied.body_weldid = wp.full_like(model.body_weldid, 1)
    return copied


def _is_per_env(field: dataclasses.Field[Any]) -> bool:
    return getattr(field.type, "shape", ("",))[0] == "nworld"


def _array_bytes(*holders: Any) -> dict[int, int]:
    """Bytes by address of the Warp arrays in dataclasses, tuples and lists; several arrays may be views of one memory."""
    found: dict[int, int] = {}
    for holder in holders:
        if isinstance(holder, wp.array):
            inner = {holder.ptr: holder.capacity} if holder.ptr else {}
        elif dataclasses.is_dataclass(holder):
            inner = _array_bytes(*(getattr(holder, field.name) for field in dataclasses.fields(holder)))
        elif isinstance(holder, tuple | list):
            inner = _array_bytes(*holder)
        else:
            continue
        for pointer, size in inner.items():
            found[pointer] = max(size, found.get(pointer, 0))
    return found
