"""Parameters of functions that build a model: flags, config files, and values that are refused before the start."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from configs import changed, typed

from mjlab_dist.config import EntityConfig, TrainConfig, registry
from mjlab_dist.config.checks import validate
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.serialization import from_plain, to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.sim import build_model

MODELS = '''
import mujoco


def leg(
    length: float = 0.3, sizes: tuple[float, ...] = (0.02, 0.03), mass: float | None = None, name="foot"
) -> mujoco.MjSpec:
    """Return a leg.

    Args:
        length: Length of the leg in m.
    """
    return mujoco.MjSpec.from_string(f"""
        <mujoco>
          <worldbody>
            <body name="leg">
              <joint name="hip"/>
              <geom type="capsule" fromto="0 0 0 0 0 -{length}" size="{sizes[0]}"/>
              <geom name="{name}" pos="0 0 -{length}" size="{sizes[1]}" mass="{mass or 0.1}"/>
            </body>
          </worldbody>
        </mujoco>""")


def ball(radius) -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(f'<mujoco><worldbody><geom name="ball" size="{radius}"/></worldbody></mujoco>')


def wall(block=0.1) -> mujoco.MjSpec:
    return ball(block)


def anything(**options) -> mujoco.MjSpec:
    return ball(options["radius"])
'''


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Return a config with a model and an entity that functions build."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "models_with_parameters.py").write_text(MODELS)
    ball = EntityConfig(model="models_with_parameters:ball", model_params={"radius": 0.1})
    base = registry.task_config("cartpole-balance")
    return with_sim(base, model="models_with_parameters:leg", entities={"it": ball})


def read(config: TrainConfig, folder: Path, *flags: str) -> TrainConfig:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config)))
    return typed("--config", str(file), *flags)


def with_sim(config: TrainConfig, **changes: Any) -> TrainConfig:
    return changed(config, "env.sim", dataclasses.replace(config.env.sim, **changes))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("length", ["0.5"], 0.5),
        ("sizes", ["0.05", "0.06"], (0.05, 0.06)),
        ("mass", ["2"], 2.0),
        ("mass", ["None"], None),
        ("name", ["toe"], "toe"),
    ],
)
def test_parameters_of_the_function_are_flags(
    default: TrainConfig, tmp_path: Path, name: str, values: list[str], expected: Any
) -> None:
    config = read(default, tmp_path, f"--env.sim.model-params.{name}", *values)
    assert config.env.sim.model_params == {name: expected}
    assert with_values(default, {f"env.sim.model_params.{name}": expected}) == config
    assert from_plain(yaml.safe_load(yaml.safe_dump(to_plain(config)))) == config
    validate(config)


def test_parameters_of_an_entity_are_flags(default: TrainConfig, tmp_path: Path) -> None:
    config = read(default, tmp_path, "--env.sim.entities.it.model-params.radius", "0.2")
    assert config.env.sim.entities["it"].model_params == {"radius": 0.2}


def test_help_shows_parameters_with_their_meaning(
    default: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(default, tmp_path, "--help", "env.sim.model-params")
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "--env.sim.model-params.length FLOAT Length of the leg in m. (default: 0.3)" in shown
    assert "--env.sim.model-params.sizes [FLOAT [FLOAT ...]] (default: 0.02 0.03)" in shown


def test_the_model_has_these_parameters(default: TrainConfig) -> None:
    config = with_sim(default, model_params={"length": 0.7, "name": "toe", "sizes": (0.01, 0.04)})
    model = build_model(config.env.sim)
    assert model.geom("toe").pos.tolist() == [0.0, 0.0, -0.7]
    assert model.geom("toe").size[0] == 0.04
    assert model.geom("it/ball").size[0] == 0.1
    assert build_model(default.env.sim).geom("foot").pos.tolist() == [0.0, 0.0, -0.3]


def test_a_function_with_keywords_takes_anything(default: TrainConfig) -> None:
    config = with_sim(default, model="models_with_parameters:anything", model_params={"radius": 0.3})
    validate(config)
    assert build_model(config.env.sim).geom("ball").size[0] == 0.3


def test_a_model_may_have_a_parameter_that_the_env_passes_to_terms(default: TrainConfig, tmp_path: Path) -> None:
    config = with_sim(default, model="models_with_parameters:wall")
    config = read(config, tmp_path, "--env.sim.model-params.block", "0.2")
    validate(config)
    assert build_model(config.env.sim).geom("ball").size[0] == 0.2


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("models_with_parameters:leg", {"lenght": 0.3}, r"\.lenght 0\.3: .* length\?$"),
        ("models_with_parameters:ball", {}, r"\.radius: .* requires this parameter"),
        ("mjlab_dist_tasks.cartpole:cartpole.xml", {"leg_length": 0.3}, r"\.leg-length 0\.3: .* not a function"),
        ("<mujoco/>", {"size": 1.0}, r"\.size 1\.0: .* not a function"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    default: TrainConfig, model: str, params: dict[str, float], message: str
) -> None:
    config = with_sim(default, model=model, model_params=params)
    for check in (lambda: validate(config), lambda: build_model(config.env.sim)):
        with pytest.raises(UserError, match=rf"^--env\.sim\.model-params{message}"):
            check()


def test_a_mistake_in_an_entity_names_its_flag(default: TrainConfig) -> None:
    config = with_sim(default, entities={"it": EntityConfig(model="models_with_parameters:ball")})
    with pytest.raises(UserError, match=r"^--env\.sim\.entities\.it\.model-params\.radius: "):
        validate(config)


def test_an_unknown_flag_is_refused(default: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--env\.sim\.model-params\.length\b"):
        read(default, tmp_path, "--env.sim.model-params.lenght", "0.3")
