"""Sensor terms: they measure once per control step, after the physics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import warp as wp

from mjlab_dist.env.binding import look_up
from mjlab_dist.env.columns import Number
from mjlab_dist.env.frames import FrameKind
from mjlab_dist.env.term import LazySensor, Sensor
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import kernels
from mjlab_dist.mdp.mirror import Image, Mirror
from mjlab_dist.sim.scene import ContactRow, contacts_of_mjcf, declared_contacts

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class Contact(Sensor):
    """Contacts, contact forces and air times of several bodies, measured by MuJoCo's contact sensors.

    The sensors are those that the config declares in ``sim.contacts``, or those of the MJCF. In the MJCF, the data of a
    sensor must contain ``found`` and ``force``. As with every MuJoCo sensor, the values are those at the start of the
    last substep. At the start of an episode, the times are 0. Contacts and forces are then those of the start
    state if ``forward_before_observation`` is on, and 0 if it is off.

    Attributes:
        names: With ``contacts``, the names of the k elements that are sensed. With ``sensors``, the names of the k
            sensors.
        force_n: Force in N that the element (in the MJCF, the sensor's first object) exerts on what it touches,
            (num_envs, k, 3): in the world frame with ``reduce="netforce"``, else in the contact frame.
        force_history_n: Forces of the latest control steps, newest first, (num_envs, history, k, 3).
        in_contact: Whether there is a contact, (num_envs, k) of bool.
        first_contact: Whether the body landed in this step: in contact now, in the air before, (num_envs, k) of bool.
        air_time_s: Time since the last contact, (num_envs, k); 0 while in contact.
        last_air_time_s: Duration of the flight before the latest landing, (num_envs, k).
        contact_time_s: Time since the contact began, (num_envs, k); 0 while in the air.
        last_contact_time_s: Duration of the contact before the latest take-off, (num_envs, k).
    """

    def __init__(self, env: Env, sensors: tuple[str, ...] = (), contacts: str = "", history: int = 0) -> None:
        """Look up the sensors.

        Args:
            env: The envs.
            sensors: Regular expressions that match the names of contact sensors of the MJCF. The sensors are in the
                model's order.
            contacts: Name of an entry of sim.contacts, instead of sensors of the MJCF.
            history: Number of control steps whose forces are kept.

        Raises:
            UserError: If an expression matches no contact sensor, a sensor's data lacks found or force, there is no
                such entry, or history is negative.
        """
        if history < 0:
            raise UserError(f"contact sensor: history {history}: must be 0 or more")
        # Values per env
        rows, sums = _rows(env, sensors, contacts)
        self.names = tuple(row.name for row in rows)
        self._addresses = [row.addresses[0] for row in rows]
        shape = (env.num_envs, len(rows))
        self.force_n = torch.zeros(*shape, 3, device=env.device)
        self.force_history_n = torch.zeros(env.num_envs, history, len(rows), 3, device=env.device)
        self.in_contact = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self.first_contact = torch.zeros(shape, dtype=torch.bool, device=env.device)
        times = torch.zeros(4, *shape, device=env.device)
        self.air_time_s, self.last_air_time_s, self.contact_time_s, self.last_contact_time_s = times

        with wp.ScopedDevice(env.device):
            addresses = wp.array([row.addresses for row in rows], dtype=int, ndim=2)
            everywhere = wp.full(env.num_envs, True, dtype=wp.bool)
        # Without a history, the kernel does not write to the last array, so any other array can take its place.
        kept = self.state() | {"force_history_n": self.force_history_n if history else self.force_n.unsqueeze(1)}
        inputs, outputs = [env.sim.view("sensordata"), addresses, sums, history], kept.values()
        self._read, self._read_start = (
            env.sim.record_launch(kernels.read_contacts, shape, [mask, *inputs, dt_s, *outputs], changes_state=False)
            for mask, dt_s in ((everywhere, env.step_dt_s), (env.sim.reset_mask, 0.0))
        )

    def touching(self, min_force_n: Number) -> torch.Tensor:
        """Return whether each body touches something with at least min_force_n N; (num_envs, k) of bool."""
        if not isinstance(min_force_n, torch.Tensor) and min_force_n <= 0.0:
            return self.in_contact
        return self.in_contact & (self.force_n.norm(dim=2) >= min_force_n)

    def mirrored(self, mirror: Mirror) -> Image:
        """Return the mirror image of one number per body."""
        return mirror.sensors(self._addresses)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        self._read()

    def start(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every sensor takes them)
        self._read_start()

    def cleared(self) -> list[torch.Tensor]:
        return list(self.state().values())

    def state(self) -> dict[str, torch.Tensor]:
        names = ("force_n", "in_contact", "first_contact", "air_time_s", "last_air_time_s", "contact_time_s")
        state = {name: getattr(self, name) for name in (*names, "last_contact_time_s")}
        return state | ({"force_history_n": self.force_history_n} if self.force_history_n.numel() else {})


class Gait(LazySensor):
    """Clock that tells a legged robot when to lift each foot.

    A foot should swing during the first half of its period, and stand during the second half. The robot should stand on
    all feet while the norm of its command is at most moving_m_s and its speed at most still_m_s, and at the start of an
    episode, until it has landed.

    Attributes:
        feet: The k feet.
        kind: Their kind.
        clock: Sine and cosine of the clock's phase, (num_envs, 2); 0 while the robot should stand.
        swing: Sine of each foot's phase, (num_envs, k): positive while the foot should swing, and negative while it
            should stand; 0 while the robot should stand.
    """

    def __init__(
        self,
        env: Env,
        *,
        feet: tuple[str, ...],
        kind: FrameKind = "geom",
        offsets: tuple[float, ...],
        frequency_hz: float,
        command: str,
        moving_m_s: float = 0.1,
        still_m_s: float = math.inf,
        rest_s: float = 0.25,
    ) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            feet: Regular expressions that match the names of the feet.
            kind: Kind of the feet: geoms, bodies or sites.
            offsets: For each foot, in the order of the model, the fraction of a period by which it is ahead of the
                clock.
            frequency_hz: Periods per second.
            command: Name of a command of ``env.commands``.
            moving_m_s: Norm of the command above which the robot should walk.
            still_m_s: Horizontal speed of the base above which the robot should walk even if it is told to stand, so
                that it can stop, or recover from a push, with steps.
            rest_s: Time from the start of an episode until the robot should walk, in s.

        Raises:
            UserError: If the number of offsets differs from the number of feet, there is no such command, or still_m_s
                is given and the robot has no free joint.
        """
        look_up("command", command, env.cfg.commands)
        self.kind: FrameKind = kind
        self.feet = env.find_frames(kind, feet)
        if len(offsets) != len(self.feet.names):
            raise UserError(
                f"gait: {len(offsets)} offsets, but {len(self.feet.names)} feet: {', '.join(self.feet.names)}; give "
                "one offset for each foot"
            )
        self._command, self._moving_m_s, self._offsets = command, moving_m_s, offsets
        self._still_m_s, self._base = still_m_s, env.base() if still_m_s < math.inf else None
        self._rest_steps = math.ceil(rest_s / env.step_dt_s - 1e-6)
        self._step = 2.0 * math.pi * frequency_hz * env.step_dt_s
        # Sines of the clock, a quarter of a period later (its cosine), and of the feet
        ahead = torch.tensor([0.0, 0.25, *offsets], device=env.device)
        self._ahead = 2.0 * math.pi * ahead
        waves = torch.zeros(env.num_envs, len(ahead), device=env.device)
        self._waves, self.clock, self.swing = waves, waves[:, :2], waves[:, 2:]

    def mirrored(self, mirror: Mirror) -> Image:
        """Return the mirror image of the clock.

        Raises:
            UserError: If the mirror image of the gait is not the same gait, at the same time or half a period later.
        """
        image = mirror.places(self.kind, self.feet.names)
        later = {
            round((self._offsets[other] - offset) % 1.0, 6)
            for offset, (other, _) in zip(self._offsets, image, strict=True)
        }
        if later not in ({0.0}, {0.5}):
            raise UserError(f"gait: the mirror image of the offsets {self._offsets} is another gait")
        sign = 1 if later == {0.0} else -1
        return ((0, sign), (1, sign))

    def measure(self, env: Env) -> None:
        steps = env.episode_length_buf.unsqueeze(1)
        walks = env.command(self._command).norm(dim=1, keepdim=True) > self._moving_m_s
        if self._base is not None:
            walks |= self._base.level_velocity[:, :2].norm(dim=1, keepdim=True) > self._still_m_s
        walks &= steps >= self._rest_steps
        torch.mul((steps * self._step + self._ahead).sin(), walks, out=self._waves)


def _rows(env: Env, sensors: tuple[str, ...], contacts: str) -> tuple[list[ContactRow], bool]:
    """Return the rows, and whether a row's force is the sum over its sensors, or else the largest sensor force."""
    if not contacts:
        return contacts_of_mjcf(env.sim.model, sensors), True
    if sensors:
        raise UserError(f"contact sensor: sensors {' '.join(sensors)} and contacts {contacts}: give one of the two")
    config = look_up("sim.contacts", contacts, env.cfg.sim.contacts)
    return declared_contacts(env.sim.model, contacts), config.reduce == "netforce"
