"""Sensors that a config declares: functions that add them to a model and find them in the compiled model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import mujoco

from mjlab_dist.config import ContactConfig, DistanceConfig
from mjlab_dist.config.sensors import ElementKind
from mjlab_dist.errors import UserError
from mjlab_dist.sim.names import check_entity, find_names, local_name

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
