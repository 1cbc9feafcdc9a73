"""Configs of tasks, agents and runs: frozen dataclasses. Imports the standard library only."""

from mjlab_dist.config.agent import AgentConfig
from mjlab_dist.config.references import lazy_modules
from mjlab_dist.config.run import CheckpointConfig, PlayConfig, SyncConfig, TrainConfig
from mjlab_dist.config.task import (
    ActionConfig,
    ActuatorConfig,
    CaptureMode,
    EntityConfig,
    EnvConfig,
    EventConfig,
    ObservationConfig,
    OptionsConfig,
    ParamValue,
    RandomizationConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TerrainConfig,
    TerrainPartConfig,
)
from mjlab_dist.config.terms import event, observation, reward, term

__all__ = [
    "ActionConfig",
    "ActuatorConfig",
    "AgentConfig",
    "CaptureMode",
    "CheckpointConfig",
    "EntityConfig",
    "EnvConfig",
    "EventConfig",
    "ObservationConfig",
    "OptionsConfig",
    "ParamValue",
    "PlayConfig",
    "RandomizationConfig",
    "RewardConfig",
    "SimConfig",
    "SyncConfig",
    "TermConfig",
    "TerrainConfig",
    "TerrainPartConfig",
    "TrainConfig",
    "event",
    "lazy_modules",
    "observation",
    "reward",
    "term",
]
