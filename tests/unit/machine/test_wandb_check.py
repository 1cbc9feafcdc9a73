"""The check of the access to Weights & Biases."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjlab_dist.machine import Status
from mjlab_dist.machine.wandb_check import WANDB_SERVER, check_wandb, has_wandb_account

KEY = "0" * 40


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory and no proxies, so that logins and network settings of this machine have no effect."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server() -> Iterator[str]:
    """Address of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """Address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def write_login(file: Path, host: str) -> None:
    file.write_text(f"machine {host}\n  login user\n  password {KEY}\n")


@pytest.mark.parametrize("environ", [{"WANDB_MODE": "online"}, {"WANDB_API_KEY": "", "WANDB_MODE": ""}])
def test_wandb_without_an_account_causes_a_warning(environ: dict[str, str]):
    finding = check_wandb(environ, 0)
    assert finding.status is Status.WARNING
    assert all(part in finding.fix for part in ("uv run wandb login", "WANDB_API_KEY", "`uv run wandb sync`"))


def test_a_wandb_server_that_does_not_answer_causes_a_warning(closed: str):
    finding = check_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://{closed}"}, 5)
    assert finding.status is Status.WARNING
    assert finding.figure.startswith(f"http://{closed} ")
    assert "Connection refused" in finding.figure
    assert KEY not in finding.figure


def test_a_server_that_never_answers_times_out():
    with socket.socket() as silent:  # accepts no connection; the connections below fill its queue
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = silent.getsockname()
        with socket.create_connection(address), socket.socket() as waiting:
            waiting.setblocking(False)
            waiting.connect_ex(address)
            finding = check_wandb(
                {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{address[1]}"}, timeout_s=0.5
            )
    assert finding.status is Status.WARNING
    assert finding.figure.endswith(" 0.5 s")


def test_a_wandb_server_that_answers_passes(server: str):
    finding = check_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://{server}"}, 5)
    assert (finding.name, finding.status, finding.fix) == ("--logger wandb", Status.OK, "")
    assert server in finding.figure


@pytest.mark.parametrize("user", ["http://user:word@", ""])
def test_the_proxy_for_wandb_must_answer(server: str, closed: str, user: str, monkeypatch: pytest.MonkeyPatch):
    environ = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://{closed}"}
    monkeypatch.setenv("HTTP_PROXY", f"{user}{server}")
    finding = check_wandb(environ, 5)
    assert finding.status is Status.OK
    assert server in finding.figure
    monkeypatch.setenv("no_proxy", "example.org, 127.0.0.1")
    assert check_wandb(environ, 5).status is Status.WARNING


@pytest.mark.parametrize("url", ["nonsense", "http://host:port"])
def test_a_server_without_a_valid_url_causes_a_warning(url: str):
    finding = check_wandb({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": url}, 5)
    assert finding.status is Status.WARNING
    assert finding.figure.startswith(f"{url} ")


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_offline_needs_no_account(mode: str):
    assert check_wandb({"WANDB_MODE": mode}, 0).status is Status.OK


@pytest.mark.parametrize("where", [".config/wandb/settings", "wandb/settings"])
def test_settings_of_wandb_are_respected(home: Path, where: str, server: str):
    file = home / where
    file.parent.mkdir(parents=True)
    file.write_text("[default]\nmode = offline\n")
    assert "offline" in check_wandb({}, 0).figure
    file.write_text(f"[default]\nbase_url = http://{server}\n")
    assert "wandb login" in check_wandb({}, 5).fix
    write_login(home / ".netrc", server)
    assert server in check_wandb({}, 5).figure
    file.write_text("no settings")
    assert "wandb login" in check_wandb({}, 5).fix, "without settings, wandb uses its usual server, which needs a login"


@pytest.mark.usefixtures("home")
def test_without_settings_the_server_is_that_of_wandb(monkeypatch: pytest.MonkeyPatch):
    import wandb

    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    assert wandb.Settings().base_url == WANDB_SERVER


def test_a_login_in_the_file_that_netrc_names_is_an_account(tmp_path: Path):
    file = tmp_path / "logins"
    write_login(file, "api.wandb.ai")
    assert not has_wandb_account({})
    assert has_wandb_account({"NETRC": str(file)})


OTHER_SERVER = {"WANDB_BASE_URL": "https://wandb.example.org:8443"}


@pytest.mark.parametrize(
    ("host", "environ", "is_account"),
    [
        ("api.forge.coreweave.com", {}, True),
        ("api.wandb.ai", {}, True),
        ("api.wandb.ai", OTHER_SERVER, False),
        ("wandb.example.org", OTHER_SERVER, True),
        ("wandb.example.org:8443", OTHER_SERVER, True),
        ("wandb.example.org", {}, False),
        ("wandb.example.org", {"WANDB_API_KEY": KEY}, True),
        ("wandb.example.org", {"WANDB_IDENTITY_TOKEN_FILE": KEY}, True),
        ("api.wandb.ai", {"NETRC": "absent"}, False),
    ],
)
def test_an_account_is_a_variable_or_a_login_for_the_server(
    home: Path, host: str, environ: dict[str, str], is_account: bool
):
    write_login(home / ".netrc", host)
    assert has_wandb_account(environ) is is_account


def test_a_damaged_netrc_is_not_an_account(home: Path):
    (home / ".netrc").write_text("machine\nnonsense here\n")
    assert not has_wandb_account({})
