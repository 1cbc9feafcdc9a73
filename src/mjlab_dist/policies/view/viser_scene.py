"""Shows the states of envs in viser's 3D scene, with MuJoCo's meshes, contacts and terrain."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import mujoco
import numpy as np
import viser
from mjviser import ViserMujocoScene
from mjviser.conversions import create_primitive_mesh, is_fixed_body, merge_geoms

from mjlab_dist.policies.view.player import Robot
from mjlab_dist.sim.terrain import FLOOR, crop_terrain

# Arrays by name
State = Mapping[str, np.ndarray]

# Maximum distance from the chosen env's origin at which terrain is shown, in m
GROUND_M = 12.0

# Color of arrows of commanded velocities
COMMANDED_COLOR = (40, 170, 60)

# Color of arrows of measured velocities
MEASURED_COLOR = (40, 100, 220)

# Color that highlights bodies
CONCERNED_COLOR = (230, 30, 30)

# Number of geom groups that are shown, from group 0, as in MuJoCo's viewer. Other groups are usually for collision
# shapes.
SHOWN_GEOM_GROUPS = 3


class Scene:
    """3D scene of all envs. Envs with the same origin are drawn side by side, around the chosen one.

    Attributes:
        env_id: Index of the chosen env, which the camera follows, and whose contacts and arrows are shown.
        shows_velocities: Whether arrows of velocities are shown.
    """

    def __init__(
        self, server: viser.ViserServer, model: mujoco.MjModel, num_envs: int, velocity_command: str | None = None
    ) -> None:
        """Add all bodies to a server's scene."""
        self.env_id = 0
        self.shows_velocities = True
        self._velocity_command = velocity_command
        self._server, self._model, self._num_envs = server, model, num_envs
        self._data, self._robot = mujoco.MjData(model), Robot.of(model)
        # Latest finite pose of each env
        mujoco.mj_kinematics(model, self._data)
        self._positions = np.tile(self._data.xpos, (num_envs, 1, 1))
        self._rotations = np.tile(self._data.xmat.reshape(-1, 3, 3), (num_envs, 1, 1, 1))
        self._shown_origin: tuple[float, float] | None = None
        # A copy, because mjviser changes its model. The terrain is hidden in the copy, because this class itself shows
        # the part of the terrain around the chosen env.
        shown = copy.copy(model)
        self._floor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, FLOOR)
        self._has_terrain = self._floor >= 0 and model.geom_type[self._floor] == mujoco.mjtGeom.mjGEOM_HFIELD
        if self._has_terrain:
            shown.geom_matid[self._floor], shown.geom_rgba[self._floor] = -1, 0.0
        self._bodies = ViserMujocoScene(server, shown, num_envs)
        self._bodies._tracked_body_id = self._robot.body  # instead of the first body that moves
        self._spacing_m = _spacing(model)
        self._others = self._add_fixed_geoms() if num_envs > 1 and not self._has_terrain else []
        self._arrows = [
            server.scene.add_arrows(
                f"/velocities/{name}", np.zeros((1, 2, 3)), color, shaft_radius=0.01, head_radius=0.025,
                head_length=0.06, visible=False,
            )
            for name, color in (("commanded", COMMANDED_COLOR), ("measured", MEASURED_COLOR))
        ]  # fmt: skip
        self._marks: list[viser.SceneNodeHandle] = []
        server.on_client_connect(self._place_camera)

    @property
    def follows_robot(self) -> bool:
        """Whether the camera follows the robot."""
        return self._bodies.camera_tracking_enabled

    @follows_robot.setter
    def follows_robot(self, follows: bool) -> None:
        self._bodies.camera_tracking_enabled = follows

    @property
    def shows_contacts(self) -> bool:
        """Whether contact points and forces of the chosen env are shown."""
        return self._bodies.show_contact_points

    @shows_contacts.setter
    def shows_contacts(self, shows: bool) -> None:
        self._bodies.show_contact_points = self._bodies.show_contact_forces = shows

    @property
    def hides_others(self) -> bool:
        """Whether only the chosen env is shown."""
        return self._bodies.show_only_selected

    @hides_others.setter
    def hides_others(self, hides: bool) -> None:
        self._bodies.show_only_selected = hides
        for handle in self._others:
            handle.visible = not hides

    @property
    def shows_collision_geoms(self) -> bool:
        """Whether the geom groups that MuJoCo's viewer hides are shown."""
        return self._bodies.geom_groups_visible[-1]

    @shows_collision_geoms.setter
    def shows_collision_geoms(self, shows: bool) -> None:
        self._bodies.geom_groups_visible = [shows or group < SHOWN_GEOM_GROUPS for group in range(mujoco.mjNGROUP)]
        self._bodies._sync_visibilities()

    def _place_camera(self, client: viser.ClientHandle) -> None:
        """Let the camera of a new page look at the robot."""
        center = np.zeros(3) if self.follows_robot else self._model.stat.center
        client.camera.position = center + 2.6 * self._size_m() * np.array([0.7, -0.75, 0.45])
        client.camera.look_at = center

    def show(self, state: State, origins: np.ndarray, commands: State | None = None) -> None:
        """Show a state of all envs. An env whose state is not finite keeps its latest finite pose.

        Args:
            origins: Start position of each env in the world frame, in m, (num_envs, 3).
        """
        positions, rotations = self._poses(state)
        # Displacement of each env in the scene; 0 for the chosen env
        offsets = np.zeros((self._num_envs, 3))
        if not self._has_terrain and not np.ptp(origins, axis=0).any():
            columns = math.ceil(math.sqrt(self._num_envs))
            places = np.array([[i // columns, i % columns, 0.0] for i in range(self._num_envs)])
            offsets = self._spacing_m * (places - places[self.env_id])
        shifted = positions + offsets[:, None, :]
        mocap = {name: state[name] for name in ("mocap_pos", "mocap_quat") if name in state}
        if "mocap_pos" in mocap:
            mocap["mocap_pos"] = mocap["mocap_pos"] + offsets[:, None, :]
        with self._server.atomic():
            self._show_ground(origins[self.env_id])
            self._bodies.update_from_arrays(
                shifted, rotations, env_idx=self.env_id, qpos=state["qpos"], qvel=state["qvel"],
                ctrl=state.get("ctrl"), **mocap,
            )  # fmt: skip
            for handle, place in zip(self._others, np.delete(offsets, self.env_id, axis=0), strict=False):
                handle.position = place
            self._show_velocities(state, commands or {}, shifted[self.env_id])

    def mark(self, bodies: Mapping[str, int], state: State) -> None:
        """Highlight these bodies, and no others, with a red ball and a name. The scene must have only one env."""
        assert self._num_envs == 1
        for handle in reversed(self._marks):
            handle.remove()
        self._marks = []
        place = self.place_of(self._robot.body, state)
        for name, body in bodies.items():
            middle = self._data.xipos[body] - self._data.xpos[self._robot.body] + place
            sizes = self._model.geom_rbound[self._model.geom_bodyid == body]
            radius = max(0.05 * self._size_m(), float(sizes.max(initial=0.0)))
            self._marks += [
                self._server.scene.add_icosphere(
                    f"/marks/{body}", radius, color=CONCERNED_COLOR, opacity=0.35, position=middle
                ),
                self._server.scene.add_label(f"/marks/{body}/label", name, position=(0.0, 0.0, radius)),
            ]

    def place_of(self, body: int, state: State) -> np.ndarray:
        """Return the position of a body of the chosen env in the scene, in m."""
        positions, _ = self._poses(state)
        own = positions[self.env_id]
        return own[body] - (own[self._robot.body] if self.follows_robot else 0.0)

    def _poses(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and rotation matrices of all bodies, (num_envs, bodies, 3) and (..., 3, 3)."""
        for i in range(self._num_envs):
            fields = {name: state[name][i] for name in ("qpos", "mocap_pos", "mocap_quat") if name in state}
            if all(np.isfinite(value).all() for value in fields.values()):
                for name, value in fields.items():
                    getattr(self._data, name)[:] = value
                mujoco.mj_kinematics(self._model, self._data)
                self._positions[i], self._rotations[i] = self._data.xpos, self._data.xmat.reshape(-1, 3, 3)
        return self._positions, self._rotations

    def _size_m(self) -> float:
        """Return the extent of the robot, in m."""
        model = self._model
        own = [geom for geom in range(model.ngeom) if not is_fixed_body(model, model.geom_bodyid[geom])]
        return max(0.3, _extent(model, own) + float(model.geom_rbound[own].max(initial=0.0)))

    def _add_fixed_geoms(self) -> list[viser.SceneNodeHandle]:
        """Add the fixed geoms of the other envs, because mjviser adds the fixed geoms of only one env.

        Planes are left out, because they are infinite.
        """
        model = self._bodies.mj_model
        geoms = [
            geom
            for geom in range(model.ngeom)
            if is_fixed_body(model, model.geom_bodyid[geom])
            and model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_PLANE
            and model.geom_rgba[geom, 3] > 0
            and model.geom_group[geom] < SHOWN_GEOM_GROUPS
        ]
        bodies = sorted({int(model.geom_bodyid[geom]) for geom in geoms})
        frames: list[viser.SceneNodeHandle] = []
        for env in range(1, self._num_envs):
            if bodies:
                frames.append(self._server.scene.add_frame(f"/fixed_bodies/env{env}", show_axes=False))
            for body in bodies:
                self._server.scene.add_mesh_trimesh(
                    f"/fixed_bodies/env{env}/{body}",
                    merge_geoms(model, [geom for geom in geoms if model.geom_bodyid[geom] == body]),
                    position=self._data.xpos[body], wxyz=self._data.xquat[body],
                )  # fmt: skip
        return frames

    def _show_ground(self, origin: np.ndarray) -> None:
        """Show the terrain around the chosen env's origin if the origin has changed."""
        place = (float(origin[0]), float(origin[1]))
        if not self._has_terrain or place == self._shown_origin:
            return
        self._shown_origin = place
        cropped = crop_terrain(self._model, place, GROUND_M)
        mesh = create_primitive_mesh(cropped, self._floor)
        self._server.scene.add_mesh_trimesh("/fixed_bodies/ground", mesh, position=cropped.geom_pos[self._floor])

    def _show_velocities(self, state: State, commands: State, positions: np.ndarray) -> None:
        """Show commanded and measured velocity of the chosen env as arrows above its robot: 1 m for each m/s."""
        root, command = self._robot.root, commands.get(self._velocity_command or "")
        for arrow in self._arrows:
            arrow.visible = self.shows_velocities and command is not None and root is not None
        if root is None or command is None or not self.shows_velocities:
            return
        qpos, qvel = (state[name][self.env_id] for name in ("qpos", "qvel"))
        w, x, y, z = qpos[root.qpos][3:]
        heading = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        forward, left = command[self.env_id, :2]
        cos, sin = math.cos(heading), math.sin(heading)
        velocities = [
            np.array([cos * forward - sin * left, sin * forward + cos * left, 0.0]),
            np.array([*qvel[root.qvel][:2], 0.0]),
        ]
        base = np.zeros(3) if self.follows_robot else positions[self._robot.body]
        start = base + np.array([0.0, 0.0, 0.6 * self._size_m()])
        for i, (arrow, velocity) in enumerate(zip(self._arrows, velocities, strict=True)):
            if np.isfinite(velocity).all():
                lifted = start + np.array([0.0, 0.0, 0.08 * i])
                arrow.points = np.array([[lifted, lifted + velocity]], dtype=np.float32)


def _extent(model: mujoco.MjModel, geoms: list[int]) -> float:
    """Return the longest side of the box around the centers of geoms in the start pose, in m."""
    if not geoms:
        return 0.0
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return float(np.ptp(data.geom_xpos[geoms], axis=0).max())


def _spacing(model: mujoco.MjModel) -> float:
    """Return the distance between envs that are drawn side by side, in m; only planes overlap at this distance."""
    solid = [geom for geom in range(model.ngeom) if model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_PLANE]
    sizes = model.geom_rbound[solid]
    return max(1.0, 1.3 * (_extent(model, solid) + 2 * float(np.median(sizes))) if solid else 1.0)
