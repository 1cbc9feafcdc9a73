"""Weights & Biases is refused before the run where it would stop to ask for an account."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mjlab_dist import registry
from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.launch.preflight import check_logger


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory, so that this machine's own login does not count."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def config() -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), logger="wandb")


def write_login(file: Path, host: str) -> None:
    file.write_text(f"machine {host}\n  login user\n  password {'0' * 40}\n")


def refused(config: TrainConfig, environ: dict[str, str]) -> bool:
    try:
        check_logger(config, environ)
    except UserError as error:
        message = str(error)
        assert message.startswith("--logger wandb:")
        assert "\n" not in message
        for mend in ("wandb login", "WANDB_API_KEY", "WANDB_MODE=offline"):
            assert mend in message
        return True
    return False


@pytest.mark.parametrize("environ", [{}, {"WANDB_API_KEY": ""}, {"WANDB_MODE": "online"}, {"WANDB_MODE": ""}])
def test_wandb_without_an_account_is_refused(config: TrainConfig, environ: dict[str, str]):
    assert refused(config, environ)


def test_tensorboard_needs_no_account(config: TrainConfig):
    check_logger(dataclasses.replace(config, logger="tensorboard"), {})


def test_a_key_is_an_account(config: TrainConfig):
    assert not refused(config, {"WANDB_API_KEY": "0" * 40})


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_offline_needs_no_account(config: TrainConfig, mode: str):
    assert not refused(config, {"WANDB_MODE": mode})


def test_a_login_in_the_home_directory_is_an_account(config: TrainConfig, home: Path):
    write_login(home / ".netrc", "api.wandb.ai")
    assert not refused(config, {})


def test_a_login_in_the_file_that_netrc_names_is_an_account(config: TrainConfig, tmp_path: Path):
    file = tmp_path / "logins"
    write_login(file, "api.wandb.ai")
    assert refused(config, {})
    assert not refused(config, {"NETRC": str(file)})


def test_netrc_beats_the_home_directory(config: TrainConfig, home: Path):
    write_login(home / ".netrc", "api.wandb.ai")
    assert refused(config, {"NETRC": str(home / "absent")})


def test_a_login_elsewhere_is_no_account(config: TrainConfig, home: Path):
    write_login(home / ".netrc", "github.com")
    assert refused(config, {})


def test_the_account_is_looked_up_at_the_server_that_is_set(config: TrainConfig, home: Path):
    write_login(home / ".netrc", "wandb.example.org")
    assert refused(config, {})
    assert not refused(config, {"WANDB_BASE_URL": "https://wandb.example.org:8443"})


def test_a_damaged_netrc_is_no_account(config: TrainConfig, home: Path):
    (home / ".netrc").write_text("machine\nnonsense here\n")
    assert refused(config, {})
