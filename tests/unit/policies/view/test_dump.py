"""The page of a dump highlights the bodies of the joints and actuators whose values were not finite."""

from __future__ import annotations

from mjlab_dist.config import registry
from mjlab_dist.policies.view.dump import concerned_bodies
from mjlab_dist.sim import build_model


def test_bodies_of_joints_and_actuators_are_found() -> None:
    model = build_model(registry.task_config("cartpole-balance").env.sim)
    names = {"physics qvel": ["hinge"], "action": ["force"], "reward": ["smooth"], "observation actor": ["pole"]}
    bodies = concerned_bodies(model, names)
    slider, hinge = (int(model.joint(name).bodyid[0]) for name in ("slider", "hinge"))
    assert list(bodies.values()) == [hinge, slider]
    assert [model.body(name).id for name in bodies] == [hinge, slider]
    assert concerned_bodies(model, {"physics qpos": ["unknown"]}) == {}
