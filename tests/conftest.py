"""Fixtures for tests that run the installed commands, for tests of every task, and for tests with SSH servers."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import psutil
import pytest
from processes import send_all

if TYPE_CHECKING:
    import mujoco
    from playwright.sync_api import Browser, Page
    from ssh_server import Add, SshServer

    from mjlab_dist.config import SimConfig
    from mjlab_dist.env import Env

BIN = Path(sys.executable).parent

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""One thread per library. More would not be faster with the small tensors of tests, and would slow other processes."""

TESTS = Path(__file__).parent

ABOUT_CONFIGS = {"test_parameters.py", "test_wrong_names.py"}
"""Files with tests of envs whose results do not depend on the engine."""

GPU_TESTS = TESTS / "gpu"
"""Tests that use GPUs. They run in a session of their own."""

HANG_S = 240
"""Seconds after which a test stops waiting. Everything that tests wait for is far faster, even on a busy machine."""

MARK = "MJLAB_DIST_TEST"
"""Environment variable that all processes of a test inherit. The test uses it to find processes that did not end."""

# Use the same examples in every run, so that a failure is caused by the tested change.
hypothesis.settings.register_profile("repeatable", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --timing."""
    parser.addoption("--timing", action="store_true", help="also check elapsed times; needs an idle machine")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, unless only tests/gpu was asked for. If coverage is measured, let ranks write their coverage data.

    Other tests are about CPU ranks, which must not differ on a machine with a GPU.
    """
    only_gpu_tests = all(Path(each.partition("::")[0]).absolute().is_relative_to(GPU_TESTS) for each in config.args)
    if not only_gpu_tests and any(Path("/dev").glob("nvidia[0-9]*")):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        folder = str(Path(__file__).parent / "subprocess_coverage")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def pytest_collection(session: pytest.Session) -> None:
    """Import torch and rsl_rl as ranks do: without torch's compiler, which takes a third of the import time."""
    if not session.config.pluginmanager.has_plugin("dsession"):  # xdist's main process, which runs no tests
        from mjlab_dist.imports import import_learner

        import_learner()


def pytest_collection_finish() -> None:
    """Let garbage collections during the tests skip the objects of the libraries and of pytest."""
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark long tests as slow too, so that -m "not slow" leaves them out."""
    if item.get_closest_marker("long") is not None:
        item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let a test draw the same random numbers in every run, whichever tests its process has run before."""
    from mjlab_dist.distributed.rank import seed_generators

    seed_generators(0)


@pytest.fixture
def assert_within(request: pytest.FixtureRequest) -> Callable[[float, float], None]:
    """Return a function that asserts, with --timing only, that a time in s is below a limit.

    Without --timing, tests must not fail because the machine is busy with other work.
    """

    def check(took_s: float, limit_s: float) -> None:
        print(f"took {took_s:.2f} s, limit {limit_s:g} s")
        if request.config.getoption("--timing"):
            assert took_s < limit_s

    return check


@dataclass
class Done:
    """Result of a command."""

    code: int
    out: str
    err: str
    took_s: float

    @property
    def warnings(self) -> list[str]:
        """The lines of the output that are warnings."""
        return [line for line in self.out.splitlines() if line.startswith("Warning: ")]


@pytest.fixture(autouse=True, scope="session")
def _signals_are_delivered() -> Iterator[None]:
    """Handle signals that this process ignores, for example under nohup, because commands would ignore them, too."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture(autouse=True, scope="module")
def _environment_is_restored() -> Iterator[None]:
    """Restore environment variables such as MUJOCO_GL, because commands of later tests inherit them."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def _environment_is_restored_after_a_test(_environment_is_restored: None) -> Iterator[None]:
    """Restore the environment after each test too."""
    with mock.patch.dict(os.environ):
        yield


NOT_INHERITED = ("OMP_NUM_THREADS", "TORCHRUNX_LOG_DIR", "PYTHONDONTWRITEBYTECODE")
"""Environment variables of the test process that installed commands do not inherit."""


def inherited() -> dict[str, str]:
    """Return the environment variables that installed commands inherit."""
    return {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}


class Command:
    """Runs installed commands for one test, and finds their processes by an environment variable."""

    def __init__(self, mark: str, cwd: Path) -> None:
        self.mark = mark
        self.cwd = cwd

    def program(self, name: str) -> str:
        """Return the path of an installed command."""
        return str(BIN / name)

    def start(self, *args: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a command in its own session. `options` are passed to Popen; by default, pipes collect the output."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [self.program(args[0]), *args[1:]],
            env={**inherited(), **(env or {}), MARK: self.mark, "COLUMNS": "200"},
            cwd=self.cwd,
            text=True,
            start_new_session=True,
            **(pipes | options),
        )

    def script(self, text: str) -> str:
        """Write a Python script, and return its path."""
        path = self.cwd / "script.py"
        path.write_text(f"#!{BIN / 'python'}\n{text}")
        path.chmod(0o700)
        return str(path)

    def __call__(self, *args: str, env: dict[str, str] | None = None, timeout_s: float = HANG_S) -> Done:
        return self.finish(self.start(*args, env=env), timeout_s)

    def here(self, *args: str) -> Done:
        """Run an installed command in this process, which has imported the libraries. Only for one process."""
        from mjlab_dist.cli import main

        run = {
            "train": main.train,
            "play": main.play,
            "list-tasks": main.list_tasks,
            "mjlab-dist": main.umbrella,
        }
        start = time.monotonic()
        code: str | int | None = 0
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(_into_file(descriptor)) for descriptor in (1, 2))
            stack.enter_context(contextlib.chdir(self.cwd))
            stack.enter_context(mock.patch.dict(os.environ, {MARK: self.mark, "COLUMNS": "200"}))
            stack.enter_context(mock.patch.multiple(sys, argv=list(args), stdout=sys.stdout, stderr=sys.stderr))
            stack.enter_context(mock.patch("gc.freeze"))  # a command that ends needs no further collections
            # Signals, which train handles until its process ends
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                stack.callback(signal.signal, each, signal.getsignal(each))
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(-1))
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            try:
                run[args[0]]()
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            sys.stderr.flush()
            return Done(code if isinstance(code, int) else 1, out(), err(), time.monotonic() - start)

    def finish(self, process: subprocess.Popen[str], timeout_s: float = HANG_S) -> Done:
        """Wait until a command ends. The measured time starts with this call."""
        start = time.monotonic()
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{process.args} hung\n{out}\n{err}")
        return Done(process.returncode, out, err, time.monotonic() - start)

    def processes(self) -> list[psutil.Process]:
        """Return the processes that the commands of this test started and that have not ended."""
        found: list[psutil.Process] = []
        for folder in Path("/proc").glob("[0-9]*"):  # psutil is ten times slower, and tests call this in a loop
            with contextlib.suppress(OSError, psutil.Error):  # the process has just ended, or belongs to another user
                if self._variable in (folder / "environ").read_bytes().split(b"\0"):  # a zombie has no variables
                    found.append(psutil.Process(int(folder.name)))
        return found

    def leftovers(self) -> list[str]:
        """Return the names of the processes that have not ended."""
        names: list[str] = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # the process has just ended
                names.append(process.name())
        return names

    @property
    def _variable(self) -> bytes:
        return os.fsencode(f"{MARK}={self.mark}")


@contextlib.contextmanager
def _into_file(descriptor: int) -> Iterator[Callable[[], str]]:
    """Send what this process and its children write to a descriptor to a file. Yield a function that reads the file."""
    with tempfile.TemporaryFile("w+") as file:
        before = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)
        try:
            yield lambda: (file.seek(0), file.read())[1]
        finally:
            os.dup2(before, descriptor)
            os.close(before)


@pytest.fixture
def command(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Command]:
    """Run installed commands. If any of their processes has not ended after the test, kill it, and fail."""
    runner = Command(f"{os.getpid()}-{request.node.name}", tmp_path)
    yield runner
    left = runner.leftovers()
    send_all(runner.processes(), signal.SIGKILL)
    assert not left, f"left running: {left}"


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary directory with a short path. With a long path, ranks cannot be forked, so they start slowly."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def slow_training(command: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let ranks import slow_logger:Slow. Training with this logger is slow until the returned file is deleted."""
    import slow_logger

    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    file = command.cwd / slow_logger.FILE
    file.touch()
    return file


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds, or fail."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"did not happen within {HANG_S} s")
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the program chromium (Debian: apt-get install chromium)")
    from browsing import ARGS
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def tabs(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Open a viewer's page in a tab. Fail if the page reports an error or sends a request to another machine."""
    from browsing import FEW_FRAMES, FEW_PIXELS, SMALL_ENVIRONMENT, WAIT_MS

    context = browser.new_context(viewport={"width": 800, "height": 600})
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(FEW_FRAMES + SMALL_ENVIRONMENT)
    requests: list[str] = []
    errors: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    context.on("weberror", lambda error: errors.append(str(error.error)))

    def open_one(url: str) -> Page:
        tab = context.new_page()
        tab.on("websocket", lambda socket: requests.append(socket.url))
        tab.goto(f"{url}{FEW_PIXELS}")
        tab.get_by_text("Connected", exact=True).wait_for()
        return tab

    yield open_one
    context.close()
    assert not [
        url for url in requests if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))
    ]
    assert not errors


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Open a viewer's page in a tab of this test: see :func:`tabs`."""
    with tabs(browser) as open_one:
        yield open_one


@pytest.fixture(scope="session")
def build_env() -> Callable[[str], Env]:
    """Return a function that builds four envs of a task on the CPU. Tests share the envs, which may be in any state."""
    import torch
    from every_task import config_of

    from mjlab_dist.env import Env
    from mjlab_dist.sim import simulation, start_warp

    start_warp("cpu")
    built: dict[tuple[str, str], Env] = {}

    def build(task: str) -> Env:
        config = config_of(task).env
        key = task, simulation.choose_engine(config.sim, "cpu", None)  # tests replace this function
        if key not in built:
            torch.manual_seed(0)
            built[key] = Env(config, 4, "cpu")
        return built[key]

    return build


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """The user's private SSH key."""
    from ssh_server import make_key

    return make_key(tmp_path / "key")


@pytest.fixture
def known_hosts(tmp_path: Path) -> Path:
    """The user's file of known host keys."""
    file = tmp_path / "known_hosts"
    file.touch()
    return file


@pytest.fixture
def ssh_config(tmp_path: Path, known_hosts: Path) -> Path:
    """The SSH config file. Keys and known hosts of the person who runs the tests have no effect."""
    file = tmp_path / "ssh_config"
    file.write_text(f"UserKnownHostsFile {known_hosts}\nGlobalKnownHostsFile none\nIdentitiesOnly yes\n")
    return file


@pytest.fixture
def add_host(
    ssh_config: Path, key_file: Path, known_hosts: Path, tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> Iterator[Add]:
    """Start a host and add it to the SSH config file."""
    from ssh_server import SshServer, host_entry

    servers: list[SshServer] = []

    def add(host: str, *, is_known: bool = True, paths: dict[str, str] | None = None) -> SshServer:
        directory = tmp_path / f"host{len(servers)}"
        directory.mkdir()
        server = SshServer(directory, key_file, paths=paths)
        servers.append(server)
        with ssh_config.open("a") as file:
            file.write(host_entry(host, server.port, key_file))
        if is_known:
            with known_hosts.open("a") as file:
                file.write(f"[127.0.0.1]:{server.port} {server.public_key}\n")
        wait_for(server.is_on)
        return server

    yield add
    for server in servers:
        server.switch_off()


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let every env use this engine if its config does not name one. See :func:`pytest_generate_tests`."""
    from mjlab_dist.sim.engine_choice import choose_engine

    def choose(config: SimConfig, device: str, model: mujoco.MjModel) -> str:
        if config.engine == "auto":
            config = dataclasses.replace(config, engine=request.param)
        return choose_engine(config, device, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mjlab_dist.sim.simulation.choose_engine", choose)
        yield request.param


@pytest.fixture
def engine_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let envs on the CPU use the engine that they would use on a GPU, where no step waits for the device."""
    monkeypatch.setattr("mjlab_dist.sim.simulation.choose_engine", lambda *_: "warp")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests of envs and tasks with both engines, except those about GPUs, and about configs alone."""
    path = metafunc.definition.path
    if path.parent in {TESTS / "unit" / "env", TESTS / "unit" / "tasks"} and path.name not in ABOUT_CONFIGS:
        metafunc.fixturenames.insert(0, "engine")
        engines = ["warp"] if "engine_of_gpus" in metafunc.fixturenames else ["warp", "mujoco"]
        metafunc.parametrize("engine", engines, indirect=True, scope="module")
