"""Sensor terms: they measure once per control step, after the physics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.env import kernels
from mjlab_dist.env.columns import find_names
from mjlab_dist.env.term import Sensor
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

_FOUND_AND_FORCE = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND) | 1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE)
"""Data fields that a contact sensor must have: found (1 number) and force (3 numbers), which come first in its data."""


class Contact(Sensor):
    """Contacts, contact forces and air times of several bodies, measured by MuJoCo's contact sensors.

    The MJCF defines what each sensor matches (geoms, bodies, subtrees) and how it reduces several contacts to one
    (``reduce``). Its data must contain ``found`` and ``force``. As with every MuJoCo sensor, the values belong to the
    start of the last substep.

    Attributes:
        names: Names of the k sensors.
        force_n: Force in N that the sensor's first object exerts on the second, (num_envs, k, 3): in the world frame
            with ``reduce="netforce"``, else in the contact frame.
        in_contact: Whether the sensor found a contact, (num_envs, k) of bool.
        first_contact: Whether the body landed in this step: in contact now, in the air before, (num_envs, k) of bool.
        air_time_s: Time since the last contact, (num_envs, k); 0 while in contact.
        last_air_time_s: Duration of the flight before the latest landing, (num_envs, k).
        contact_time_s: Time since the contact began, (num_envs, k); 0 while in the air.
    """

    def __init__(self, env: Env, sensors: tuple[str, ...]) -> None:
        """Look up the sensors.

        Args:
            env: The envs.
            sensors: Regular expressions that match the sensors' names. The sensors are in the model's order.

        Raises:
            UserError: If an expression matches no contact sensor, or a sensor's data lacks found or force.
        """
        model = env.sim.model
        found = list(_contact_sensors(model, sensors))
        self.names = tuple(name for name, _ in found)
        shape = (env.num_envs, len(found))
        self.force_n = torch.zeros(*shape, 3, device=env.device)
        self.in_contact = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self.first_contact = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self.air_time_s, self.last_air_time_s, self.contact_time_s = torch.zeros(3, *shape, device=env.device)

        with wp.ScopedDevice(env.device):
            addresses = wp.array([address for _, address in found], dtype=int)
        outputs: list[Any] = [wp.from_torch(tensor) for tensor in self.state().values()]
        inputs = [wp.from_torch(env.sim.view("sensordata")), addresses, env.step_dt_s]

        def read(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (the signature of recorded programs)
            wp.launch(kernels.read_contacts, shape, inputs, outputs)

        self._read = env.sim.record(read, changes_state=False)

    def touching(self, min_force_n: float) -> torch.Tensor:
        """Return whether each body is in contact with a force of at least min_force_n, in N; (num_envs, k) of bool."""
        if min_force_n <= 0.0:
            return self.in_contact
        return self.in_contact & (self.force_n.norm(dim=2) >= min_force_n)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        self._read()

    def cleared(self) -> list[torch.Tensor]:
        return list(self.state().values())

    def state(self) -> dict[str, torch.Tensor]:
        names = ("force_n", "in_contact", "first_contact", "air_time_s", "last_air_time_s", "contact_time_s")
        return {name: getattr(self, name) for name in names}


def _contact_sensors(model: mujoco.MjModel, patterns: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the name and the data address of each contact sensor that matches."""
    known = [
        model.sensor(i).name for i in range(model.nsensor) if model.sensor_type[i] == mujoco.mjtSensor.mjSENS_CONTACT
    ]
    for i in find_names("contact sensors", patterns, known):
        sensor = model.sensor(name := known[i])
        if int(model.sensor_intprm[sensor.id, 0]) & _FOUND_AND_FORCE != _FOUND_AND_FORCE:
            raise UserError(f'sensor {name}: its data lacks found or force; write data="found force" in the MJCF')
        yield name, int(sensor.adr[0])
