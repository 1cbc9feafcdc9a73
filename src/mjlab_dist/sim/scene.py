"""Build a MuJoCo model from a config: load the MJCF, then add terrain, entities, motors, sensors and options.

Numbers in a model that no simulation can use are refused, before they turn up as NaN in all envs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import mujoco
import numpy as np

from mjlab_dist.config import (
    ActuatorConfig,
    ContactConfig,
    DistanceConfig,
    EntityConfig,
    OptionsConfig,
    ParamValue,
    SimConfig,
)
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.config.physics import ElementKind
from mjlab_dist.config.signatures import check_model_params, find_module, is_function
from mjlab_dist.config.terms import resolve
from mjlab_dist.errors import UserError, describe, listed, place_of
from mjlab_dist.sim.names import check_entity, find_names, local_name
from mjlab_dist.sim.quiet import quiet
from mjlab_dist.sim.terrain import add_terrain

T = TypeVar("T")

_HINGE_OR_SLIDE = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)

_ON_JOINTS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)

_INPUTS = {
    "position": mujoco.mjtCtrlInput.mjINPUT_POS,
    "velocity": mujoco.mjtCtrlInput.mjINPUT_VEL,
    "effort": mujoco.mjtCtrlInput.mjINPUT_FF,
}

# Columns of gainprm for the motors of ActuatorConfig: stiffness, damping, and no-load speed (0 if it has none)
DC_STIFFNESS, DC_DAMPING, DC_SPEED = 4, 6, 7

_SAME_NAMES = ("body", "geom", "site", "light", "mesh", "actuator", "sensor", "tendon", "key", "pair")

# Kinds of elements by prefix of their fields of mujoco.MjModel
_KINDS = {name: name for name in _SAME_NAMES} | {"jnt": "joint", "dof": "joint", "cam": "camera", "eq": "equality"}

_OBJECTS = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "subtree": mujoco.mjtObj.mjOBJ_XBODY,
}

# Data fields that a contact sensor must have: found (1 number) and force (3 numbers), which come first in its data
_FOUND_AND_FORCE = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND) | 1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE)

# Codes of MuJoCo's contact sensor for the values of ContactConfig.reduce
_REDUCTIONS = {"maxforce": 2, "netforce": 3}

_POINTS = mujoco.mjtSensor.mjSENS_GEOMFROMTO

_DISTANCE_SENSORS = (mujoco.mjtSensor.mjSENS_GEOMDIST, _POINTS)


@quiet()
def build_model(config: SimConfig) -> mujoco.MjModel:
    """Assemble a scene and compile it.

    Bodies of ``config.model`` come first, then entities in their order; actuators of the MJCFs come first, then those
    of ``config.actuators`` in their order; sensors of the MJCFs come first, then those of ``config.contacts`` and
    ``config.distances``. Keyframes include entities and the targets of position motors.
    """
    validate_limits(config, "env.sim.")
    spec, flag = _load_spec("--env.sim", config.model, config.model_params), f"--env.sim.model {_shown(config.model)}"

    def add_parts() -> dict[str, ActuatorConfig]:
        """Add the parts of the config to the scene, and return the motor of each joint."""
        add_terrain(spec, config.terrain)
        for name, entity in config.entities.items():
            _attach(spec, name, entity)
        motors = add_motors(spec, config.actuators)
        add_contacts(spec, config.contacts, config.entities)
        add_distances(spec, config.distances, config.entities)
        return motors

    motors = _compile(flag, add_parts)  # MuJoCo refuses repeated names
    _set_options(spec.option, config.options)
    model = _compile(flag, spec.compile)
    # The joint positions of a keyframe are also the targets of position motors: the motors then hold the start state.
    for name, motor in motors.items():
        if motor.kind == "position":
            model.key_ctrl[:, model.actuator(name).id] = model.key_qpos[:, model.jnt_qposadr[model.joint(name).id]]
    return model


@quiet()
def ignored_options(config: SimConfig) -> list[str]:
    """Return a line for each entity whose MJCF sets options to other values than the scene has."""
    defaults = mujoco.MjSpec().option
    scene = _read_spec("--env.sim", config.model, config.model_params).option
    _set_options(scene, config.options)
    lines: list[str] = []
    for entity, part in config.entities.items():
        flag = f"--env.sim.entities.{entity}"
        own = _read_spec(flag, part.model, part.model_params).option
        names = [
            "flag" if name in {"disableflags", "enableflags"} else name
            for name in dir(defaults)
            if not name.startswith("_")
            and all(np.any(getattr(own, name) != getattr(other, name)) for other in (defaults, scene))
        ]
        if names:
            lines.append(
                f"{flag}.model {_shown(part.model)}: the scene's values apply instead of its options "
                f"{listed(dict.fromkeys(names))}; set them in the MJCF of --env.sim.model or by --env.sim.options"
            )
    return lines


@quiet()
def load_model(model: str) -> mujoco.MjModel:
    """Compile an MJCF without anything added to it."""
    return _compile(f"--env.sim.model {_shown(model)}", _load_spec("--env.sim", model, {}).compile)


def _load_spec(config_flag: str, model: str, params: Mapping[str, ParamValue]) -> mujoco.MjSpec:
    """Read a spec, and compile it before anything is added to it.

    Errors in the MJCF itself are reported here. In addition, MuJoCo adjusts the keyframes to later changes only if the
    spec has been compiled.
    """
    spec, flag = _read_spec(config_flag, model, params), f"{config_flag}.model {_shown(model)}"
    refuse_bad_numbers(flag, _compile(flag, spec.compile))
    return spec


def _read_spec(config_flag: str, model: str, params: Mapping[str, ParamValue]) -> mujoco.MjSpec:
    check_model_params(config_flag, model, params)
    flag = f"{config_flag}.model {_shown(model)}"
    if model.lstrip().startswith("<"):
        return _compile(flag, lambda: mujoco.MjSpec.from_string(model))
    if is_function(model):
        return _call(flag, model, params)
    path = find_file(flag, model)
    return _compile(flag, lambda: mujoco.MjSpec.from_file(str(path)))


def find_file(flag: str, file: str) -> Path:
    """Return the path of a file."""
    module, colon, name = file.rpartition(":")
    path = Path(file)
    if colon:
        spec = find_module(module)  # imports nothing
        if spec is None:
            raise UserError(f"{flag}: there is no package {module}")
        if spec.submodule_search_locations:
            path = Path(next(iter(spec.submodule_search_locations))) / name
        else:
            assert spec.origin is not None
            path = Path(spec.origin).parent / name
    if not path.is_file():
        raise UserError(f"{flag}: there is no file {path}")
    return path


def _compile(flag: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error


def _call(flag: str, function: str, params: Mapping[str, ParamValue]) -> mujoco.MjSpec:
    try:
        found = resolve(function)
    except Exception as error:
        # The module belongs to the user, so any exception is an error in the value of this flag.
        fix = "" if place_of(error, function) else "; write package.module:file or package.module:function"
        raise UserError(f"{flag}: {describe(error, function)}{fix}") from error
    try:
        made = found(**params)
    except UserError:
        raise  # the message already names the fix
    except Exception as error:
        raise UserError(f"{flag}: {describe(error, function)}") from error
    if not isinstance(made, mujoco.MjSpec):
        raise UserError(f"{flag}: returns {type(made).__name__}; it must return a mujoco.MjSpec")
    return made


def _shown(model: str) -> str:
    """Return a short form of the model for messages: XML is cut off after 30 characters."""
    return f"{' '.join(model.split())[:30]}..." if model.lstrip().startswith("<") else model


def _attach(spec: mujoco.MjSpec, name: str, entity: EntityConfig) -> None:
    flag = f"--env.sim.entities.{name}"
    child = _load_spec(flag, entity.model, entity.model_params)
    if not any(entity.quat):
        raise UserError(f"{flag}.quat {entity.quat}: is not a rotation; use 1 0 0 0 for no rotation")
    frame = spec.worldbody.add_frame(pos=entity.pos, quat=entity.quat)
    _compile(f"{flag}.model {_shown(entity.model)}", lambda: spec.attach(child, prefix=f"{name}/", frame=frame))
    _compile(f"{flag}.model {_shown(entity.model)}", spec.compile)


def add_motors(spec: mujoco.MjSpec, configs: Mapping[str, ActuatorConfig]) -> dict[str, ActuatorConfig]:
    """Add the motors of a config to a scene, and return each motor's config by the name of its joint."""
    added: dict[str, ActuatorConfig] = {}
    for name, config in configs.items():
        flag = f"--env.sim.actuators.{name}"
        _validate_motor(flag, config)
        joints = _find_joints(f"{flag}.joints", config.joints, spec.joints)
        for joint in joints:
            if joint.name in added:
                raise UserError(
                    f"{flag}.joints {' '.join(config.joints)}: {joint.name} already has a motor of another group; "
                    "name each joint in one group only"
                )
            # The motor replaces the actuators of the MJCF on this joint.
            for actuator in list(spec.actuators):
                if actuator.trntype in _ON_JOINTS and actuator.target == joint.name:
                    spec.delete(actuator)
            _add_motor(spec, joint, config)
            added[joint.name] = config
    return added


def _add_motor(spec: mujoco.MjSpec, joint: mujoco.MjsJoint, config: ActuatorConfig) -> None:
    """Add a MuJoCo dcmotor, which applies the speed limit in every substep and integrates the torque implicitly.

    The torque of a DC motor with constant K, resistance R and voltage V is K / R * (V - K * velocity). At maximum
    voltage it decreases linearly from the stall torque K * V / R to 0 at the no-load speed V / K
    (mujoco.readthedocs.io/en/latest/_static/dcmotor.pdf, equation 2). With K = 1, the maximum voltage equals the
    no-load speed. Below that voltage, MuJoCo's controller produces the torque that stiffness and damping require.
    """
    stall, speed = config.effort_limit, config.velocity_limit
    motor = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.set_to_dcmotor(
        motorconst=[1.0, 1.0],
        resistance=speed / stall if stall and speed else 1.0,
        controller=[config.stiffness, 0.0, config.damping, 0.0, 0.0, speed or 0.0],
        ctrlspec=int(_INPUTS[config.kind]),
    )
    if stall is not None:
        motor.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        motor.forcerange = [-stall, stall]
    if config.armature is not None:
        joint.armature = config.armature
    if config.frictionloss is not None:
        joint.frictionloss = config.frictionloss


def _validate_motor(flag: str, config: ActuatorConfig) -> None:
    if config.velocity_limit is not None and config.effort_limit is None:
        raise UserError(
            f"{flag}.velocity-limit {config.velocity_limit}: also needs the torque at zero speed; set effort-limit"
        )
    if config.stiffness and config.kind != "position":
        raise UserError(
            f"{flag}.stiffness {config.stiffness}: applies to position motors, not to kind {config.kind}; remove it"
        )
    if config.damping and config.kind == "effort":
        raise UserError(
            f"{flag}.damping {config.damping}: does not apply to effort motors; set damping of the joint in the MJCF"
        )


def _find_joints(flag: str, patterns: Iterable[str], joints: Iterable[mujoco.MjsJoint]) -> list[mujoco.MjsJoint]:
    known = [joint for joint in joints if joint.type in _HINGE_OR_SLIDE]
    found: dict[str, mujoco.MjsJoint] = {}
    for pattern in patterns:
        try:
            matches = [joint for joint in known if joint.name and re.fullmatch(pattern, joint.name)]
        except re.error as error:
            raise UserError(f"{flag} {pattern}: is not a regular expression: {error}") from error
        if not matches:
            names = ", ".join(joint.name for joint in known if joint.name)
            raise UserError(
                f"{flag} {pattern}: matches none of the hinge and slide joints; there are {names or 'none'}"
            )
        found |= {joint.name: joint for joint in matches}
    return list(found.values())


def _set_options(option: mujoco.MjOption, config: OptionsConfig) -> None:
    chosen: Mapping[str, float | int | None] = {
        "timestep": config.timestep_s,
        "integrator": getattr(mujoco.mjtIntegrator, f"mjINT_{(config.integrator or '').upper()}", None),
        "cone": getattr(mujoco.mjtCone, f"mjCONE_{(config.cone or '').upper()}", None),
        "solver": getattr(mujoco.mjtSolver, f"mjSOL_{(config.solver or '').upper()}", None),
        "iterations": config.iterations,
        "ls_iterations": config.ls_iterations,
        "impratio": config.impratio,
        "tolerance": config.tolerance,
    }
    for name, value in chosen.items():
        if value is not None:
            setattr(option, name, value)
    if option.solver == mujoco.mjtSolver.mjSOL_PGS:
        raise UserError("--env.sim.options.solver: the MJCF uses PGS, which MuJoCo Warp does not support; set newton")


def refuse_bad_numbers(flag: str, model: mujoco.MjModel) -> None:
    """Raise if a value of an MJCF is NaN, infinite, or too large for float32.

    Ranges may be infinite. Numbers for users, and those that MuJoCo computes for the reference pose, are not checked.
    """
    for name, values in _fields(model):
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))
        if name.endswith("range"):
            bad &= ~np.isinf(values)
        if bad.any():
            row = int(np.argwhere(bad)[0, 0])
            value = " ".join(f"{number:g}" for number in np.ravel(values[row]))
            raise UserError(f"{flag}: {_element(model, name, row)} is {value}; use a finite number")


def _fields(model: mujoco.MjModel) -> list[tuple[str, np.ndarray]]:
    options = [(f"opt_{name}", np.atleast_1d(getattr(model.opt, name))) for name in dir(model.opt) if name[0] != "_"]
    names = [name for name in dir(model) if name.partition("_")[0] in _KINDS and not name.endswith(("0", "user"))]
    fields = [*options, *((name, getattr(model, name)) for name in names)]
    return [(name, values) for name, values in fields if isinstance(values, np.ndarray) and values.dtype.kind == "f"]


def _element(model: mujoco.MjModel, field: str, row: int) -> str:
    """Return the kind and name of an element, and its attribute."""
    prefix, _, attribute = field.partition("_")
    if prefix == "opt":
        return f"option: {attribute}"
    kind = _KINDS[prefix]
    index = int(model.dof_jntid[row]) if prefix == "dof" else row
    return f"{kind} {getattr(model, kind)(index).name or index}: {attribute}"


class ContactRow(NamedTuple):
    """Contacts of one element: the readings of one or more contact sensors."""

    # Name of the element, or of the sensor if it is defined in the MJCF
    name: str
    # For each sensor, the column of found in sensordata; the next three columns are the force
    addresses: tuple[int, ...]


def add_contacts(spec: mujoco.MjSpec, configs: Mapping[str, ContactConfig], entities: Collection[str]) -> None:
    """Add the contact sensors of a config to a scene."""
    for name, config in configs.items():
        flag = f"--env.sim.contacts.{name}"
        _check_name(flag, name)
        elements = _find(spec, flag, "", (config.names, config.kind, config.entity), entities)
        others = [""]
        if config.other_names:
            others = _find(spec, flag, "other-", (config.other_names, config.other_kind, config.other_entity), entities)
        elif config.other_entity is not None:
            raise UserError(f"{flag}.other-entity {config.other_entity}: needs other-names; set both, or drop it")
        for element in elements:
            for other in others:
                spec.add_sensor(
                    name=":".join(filter(None, (name, element, other))),
                    type=mujoco.mjtSensor.mjSENS_CONTACT,
                    objtype=_OBJECTS[config.kind],
                    objname=element,
                    reftype=_OBJECTS[config.other_kind] if other else mujoco.mjtObj.mjOBJ_UNKNOWN,
                    refname=other,
                    intprm=[_FOUND_AND_FORCE, _REDUCTIONS[config.reduce], 1],
                )


def add_distances(spec: mujoco.MjSpec, configs: Mapping[str, DistanceConfig], entities: Collection[str]) -> None:
    """Add the distance sensors of a config to a scene."""
    for name, config in configs.items():
        flag = f"--env.sim.distances.{name}"
        _check_name(flag, name)
        elements = _find(spec, flag, "", (config.names, config.kind, config.entity), entities)
        others = _find(spec, flag, "other-", (config.other_names, config.other_kind, config.other_entity), entities)
        # First all distances, then all points, so that the columns of each kind are contiguous in the sensors' data
        for kind, suffix in ((mujoco.mjtSensor.mjSENS_GEOMDIST, "distance"), (_POINTS, "points")):
            for element in elements:
                for other in others:
                    spec.add_sensor(
                        name=f"{name}:{element}:{other}:{suffix}",
                        type=kind,
                        objtype=_OBJECTS[config.kind],
                        objname=element,
                        reftype=_OBJECTS[config.other_kind],
                        refname=other,
                        cutoff=config.max_m,
                    )


def declared_distances(model: mujoco.MjModel, name: str) -> tuple[list[str], slice, slice]:
    """Return the distance sensors that a config has added to a model.

    Returns:
        Name of each of k pairs, as ``<element>:<other>``; columns of the distances in ``sensordata``; and columns of
        the closest points, six per pair.
    """
    known = [i for i in range(model.nsensor) if model.sensor(i).name.startswith(f"{name}:")]
    first, points = ([i for i in known if model.sensor_type[i] == kind] for kind in _DISTANCE_SENSORS)
    names = [model.sensor(i).name.removeprefix(f"{name}:").removesuffix(":distance") for i in first]
    starts = [int(model.sensor_adr[ids[0]]) for ids in (first, points)]
    return names, slice(starts[0], starts[0] + len(first)), slice(starts[1], starts[1] + 6 * len(points))


def declared_contacts(model: mujoco.MjModel, name: str) -> list[ContactRow]:
    """Return the contact sensors that a config has added to a model, by element."""
    kinds = {int(kind): "geom" if kind == mujoco.mjtObj.mjOBJ_GEOM else "body" for kind in _OBJECTS.values()}
    rows: dict[str, list[int]] = {}
    for i in _contact_sensors(model):
        if model.sensor(i).name.startswith(f"{name}:"):
            element = getattr(model, kinds[int(model.sensor_objtype[i])])(model.sensor_objid[i]).name
            rows.setdefault(element, []).append(int(model.sensor_adr[i]))
    return [ContactRow(element, tuple(addresses)) for element, addresses in rows.items()]


def contacts_of_mjcf(model: mujoco.MjModel, patterns: Collection[str]) -> list[ContactRow]:
    """Return the contact sensors whose names match the patterns, in the model's order."""
    sensors = _contact_sensors(model)
    rows = []
    for i in find_names("contact sensors", patterns, [model.sensor(i).name for i in sensors]):
        sensor = model.sensor(sensors[i])
        if int(model.sensor_intprm[sensor.id, 0]) & _FOUND_AND_FORCE != _FOUND_AND_FORCE:
            name = sensor.name
            raise UserError(f'sensor {name}: its data lacks found or force; write data="found force" in the MJCF')
        rows.append(ContactRow(sensor.name, (int(sensor.adr[0]),)))
    return rows


def _check_name(flag: str, name: str) -> None:
    if not re.fullmatch(r"[\w-]+", name):
        raise UserError(f"{flag}: a name consists of letters, digits, - and _; rename it")


def _contact_sensors(model: mujoco.MjModel) -> list[int]:
    return [i for i in range(model.nsensor) if model.sensor_type[i] == mujoco.mjtSensor.mjSENS_CONTACT]


def _find(
    spec: mujoco.MjSpec,
    flag: str,
    prefix: str,
    wanted: tuple[Collection[str], ElementKind, str | None],
    entities: Collection[str],
) -> list[str]:
    """Return the full names of the elements that match, in the order of the scene."""
    patterns, kind, entity = wanted
    check_entity(f"{flag}.{prefix}entity", entity, entities)
    # Sensors refer to elements by name, so those without a name cannot be selected.
    known = [one.name for one in (spec.geoms if kind == "geom" else spec.bodies) if one.name]
    found = find_names(f"{flag}.{prefix}names", patterns, [local_name(name, entity, entities) for name in known])
    return [known[i] for i in found]
