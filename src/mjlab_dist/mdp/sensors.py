"""What is measured after every step and remembered."""

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
"""These two come first in a contact sensor's data: one number, then three."""


class Contact(Sensor):
    """Touch, force and time in the air of several bodies, by MuJoCo's contact sensors.

    A sensor's data must hold ``found`` and ``force``; what it matches (geoms, bodies, subtrees) and how several contacts become
    one (``reduce``) is said in the MJCF. As all sensors, they tell of the start of the last substep.

    Attributes:
        names: The sensors, k of them.
        force_n: Force in N of what the sensor names first on what it touches, (num_envs, k, 3): with ``reduce="netforce"`` in the
            world's frame, else in the contact's.
        in_contact: (num_envs, k) of bool.
        first_contact: Whether it has touched in this step and was in the air in the one before, (num_envs, k) of bool.
        air_time_s: Time since it last touched, 0 in contact, (num_envs, k).
        last_air_time_s: How long it was in the air before it last touched, (num_envs, k).
        contact_time_s: Time since it was last in the air, 0 there, (num_envs, k).
    """

    def __init__(self, env: Env, sensors: tuple[str, ...]) -> None:
        """Look up the sensors.

        Args:
            env: The envs.
            sensors: Regular expressions of their names; several are taken in the model's order.

        Raises:
            UserError: If one fits none, or one's data lacks found or force.
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

        def read(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.read_contacts, shape, inputs, outputs)

        self._read = env.sim.record(read, changes_state=False)

    def touching(self, min_force_n: float) -> torch.Tensor:
        """Return whether each body touches with a force of at least min_force_n, in N: (num_envs, k) of bool."""
        if min_force_n <= 0.0:
            return self.in_contact
        return self.in_contact & (self.force_n.norm(dim=2) >= min_force_n)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        """Read the contacts of the step."""
        self._read()

    def cleared(self) -> list[torch.Tensor]:
        """Episodes start touching nothing."""
        return list(self.state().values())

    def state(self) -> dict[str, torch.Tensor]:
        """Forces, touches and times."""
        names = ("force_n", "in_contact", "first_contact", "air_time_s", "last_air_time_s", "contact_time_s")
        return {name: getattr(self, name) for name in names}


def _contact_sensors(model: mujoco.MjModel, patterns: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Name and address of the contact sensors that patterns name."""
    known = [
        model.sensor(i).name for i in range(model.nsensor) if model.sensor_type[i] == mujoco.mjtSensor.mjSENS_CONTACT
    ]
    for i in find_names("contact sensors", patterns, known):
        sensor = model.sensor(name := known[i])
        if int(model.sensor_intprm[sensor.id, 0]) & _FOUND_AND_FORCE != _FOUND_AND_FORCE:
            raise UserError(f'sensor {name}: its data lacks found or force; write data="found force" in the MJCF')
        yield name, int(sensor.adr[0])
