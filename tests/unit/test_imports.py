"""Modules that must not import large libraries."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mjlab_dist.imports import OPENGL_LIBRARIES, prepare_opengl


def imported_by(statement: str) -> set[str]:
    """Return the top-level modules that a statement imports in a new interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


HEAVY = {"torch", "warp", "mujoco", "mujoco_warp", "rsl_rl", "tensordict", "torchrunx", "tensorboard", "wandb"}


@pytest.mark.parametrize(
    "module",
    [
        *("cli.main", "cli.train", "cli.play", "cli.doctor", "machine.doctor", "mdp", "policies"),
        *("policies.film", "policies.choice", "sim.render", "learn.loggers", "launch.worker", "simulate.make"),
        "authoring.new_task",
        *("launch.train", "launch.ranks", "launch.torchrunx_agent", "launch.supervision", "launch.signals"),
    ],
)
def test_modules_of_the_command_line_import_nothing_heavy(module: str):
    imported = imported_by(f"import mjlab_dist.{module}")
    assert "mjlab_dist" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(("device", "libraries"), [("cpu", {"mujoco"}), ("cuda:0", set[str]())])
def test_the_launcher_chooses_an_engine_without_torch_and_warp(device: str, libraries: set[str]):
    imported = imported_by(
        "from mjlab_dist.config.registry import task_config; from mjlab_dist.sim.engine_choice import choose_engine; "
        f"choose_engine(task_config('quadruped-velocity-rough').env.sim, {device!r})"
    )
    assert imported & HEAVY == libraries


def test_task_configs_import_nothing_heavy():
    imported = imported_by(
        "from mjlab_dist.config import registry; [registry.task_config(name) for name in registry.task_names()]"
    )
    assert "mjlab_dist_tasks" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(
    "module", ["messages", "distributed.heartbeat", "config.registry", "launch.budget", "distributed.exchange"]
)
def test_basic_modules_import_only_the_standard_library(module: str):
    imported = imported_by(f"import mjlab_dist.{module}")
    assert imported - sys.stdlib_module_names == {"mjlab_dist"}


@pytest.mark.parametrize(
    ("value", "library", "stays"),
    [
        ("EGL", "libc.so.6", True),
        ("osmesa", "libNoSuchThing.so.1", False),
        ("egl", "libNoSuchThing.so.1", False),
        ("glfw", "", True),
        ("Off", "", True),
        ("vulkan", "", False),
    ],
)
def test_only_usable_values_of_mujoco_gl_stay(monkeypatch: pytest.MonkeyPatch, value: str, library: str, stays: bool):
    if library:
        monkeypatch.setitem(OPENGL_LIBRARIES, value.lower(), (library,))
    environ = {"MUJOCO_GL": value}
    assert (prepare_opengl(environ) == "") == stays
    assert environ == ({"MUJOCO_GL": value} if stays else {})


def test_osmesa_loads_triton_first() -> None:
    """Otherwise, Triton crashes: MuJoCo loads OSMesa when it is imported."""
    pytest.importorskip("triton")
    assert "triton" in imported_by(
        "from mjlab_dist import imports; imports.OPENGL_LIBRARIES['osmesa'] = 'libc.so.6',; "
        "imports.prepare_opengl({'MUJOCO_GL': 'osmesa'})"
    )


@pytest.mark.slow
def test_a_task_is_simulated_and_drawn_if_mujoco_gl_has_an_unknown_value() -> None:
    code = """
import mjlab_dist
with mjlab_dist.make("cartpole-balance", num_envs=2, quiet=True) as envs:
    assert envs.render().any()
"""
    environ = {**os.environ, "MUJOCO_GL": "vulkan"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "UserWarning: MUJOCO_GL vulkan: " in done.stderr
