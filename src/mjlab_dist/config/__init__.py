"""Configs of tasks, agents and runs: frozen dataclasses. Imports the standard library only."""

from mjlab_dist.config.agent import AgentConfig
from mjlab_dist.config.references import lazy_modules
from mjlab_dist.config.run import CheckpointConfig, PlayConfig, SyncConfig, TrainConfig
from mjlab_dist.config.sensors import ContactConfig, DistanceConfig
from mjlab_dist.config.task import (
    ActionConfig,
    ActuatorConfig,
    CaptureMode,
    EntityConfig,
    EnvConfig,
    EventConfig,
    MetricConfig,
    ObservationConfig,
    OptionsConfig,
    ParamValue,
    RandomizationConfig,
    Reduction,
    RewardConfig,
    SimConfig,
    TermConfig,
    TerminationConfig,
    TerrainConfig,
    TerrainPartConfig,
)
from mjlab_dist.config.terms import action, event, metric, observation, reward, term, termination

__all__ = [
    "ActionConfig",
    "ActuatorConfig",
    "AgentConfig",
    "CaptureMode",
    "CheckpointConfig",
    "ContactConfig",
    "DistanceConfig",
    "EntityConfig",
    "EnvConfig",
    "EventConfig",
    "MetricConfig",
    "ObservationConfig",
    "OptionsConfig",
    "ParamValue",
    "PlayConfig",
    "RandomizationConfig",
    "Reduction",
    "RewardConfig",
    "SimConfig",
    "SyncConfig",
    "TermConfig",
    "TerminationConfig",
    "TerrainConfig",
    "TerrainPartConfig",
    "TrainConfig",
    "action",
    "event",
    "lazy_modules",
    "metric",
    "observation",
    "reward",
    "term",
    "termination",
]
