"""Fork server for tests: import the libraries once, and fork a process for each command that a test starts.

Importing torch, Warp and rsl_rl takes most of the CPU time of a short command. This program imports them once. Each
fork sets itself up as exec would: session, file descriptors, signals, working directory, environment, arguments
(including those shown in /proc) and standard streams. If PYTHONPATH contains another copy of the package, the command
imports this copy.

Commands start more processes: a command with several ranks starts an agent, which starts a fork server or ranks;
torchrun starts ranks; and training in one process starts a process that makes videos (video process). Each of these
processes would import the libraries again. To avoid this, processes are forked in advance, before the command starts
(reserved processes). They later become agents, ranks of torchrun and video processes. Agents fork their fork server and
ranks themselves.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import builtins
import contextlib
import contextvars
import ctypes
import fcntl
import gc
import io
import logging
import mmap
import os
import random
import re
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

from start_message import AGENT, HOST_SERVER, SIZE, Start, receive, send

PACKAGES = ("mjlab_dist", "mjlab_dist_tasks")
"""Packages of this project."""

MODULES = (
    *("cli.main", "cli.train", "cli.evaluate", "cli.play", "cli.console"),
    *("launch.train", "launch.agent_group", "launch.ranks", "launch.signals"),
    *("worker", "learner", "distributed.group", "learn", "env"),
)
"""Modules of the package that launchers, agents and ranks import."""

KERNELS_OF = ("cartpole-balance", "quadruped-velocity-flat")
"""Tasks whose kernels are loaded before a fork."""

FILM = ["-P", "-m", "mjlab_dist.play.film"]
"""First arguments of Python for the video process."""

SHARDING_MODULES = ("torch._dynamo", "torch.distributed.fsdp")
"""Modules that ranks import if they shard parameters. An agent imports them once for all of its ranks."""

FORKED_PROGRAMS = ("from multiprocessing.forkserver import main", "from multiprocessing.spawn import spawn_main")
"""First lines of the `python -c` programs that an agent starts. The processes of these programs are forked."""

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 1, 15, 35, 14
"""Operations of prctl(2)."""

HUGE_PAGE = 2**21
"""Size of a huge page in bytes."""

MADV_COLLAPSE = 25
"""Advice of madvise(2)."""

PRIVATE_MEMORY = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?$")
"""Matches a line of /proc/self/maps for private, writable memory that belongs to no file."""

UNSET = 2**32 - 1
"""File descriptor -1 as an unsigned number."""

OUT_OF_THE_WAY = 900
"""First descriptor of a command's connections to reserved processes. Lower numbers are free for the command's files."""

LIBC = ctypes.CDLL(None, use_errno=True)


def import_libraries(names: Sequence[str]) -> None:
    """Import libraries and the package as commands do, in a process that can be forked."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in cli/main.py; OpenMP reads it only when it is loaded
    from mjlab_dist.imports import import_learner, start_up

    import_learner()
    with start_up():
        for name in (*names, *(f"mjlab_dist.{name}" for name in MODULES)):
            __import__(name)
    load_kernels()
    for _, name in (AGENT[-2:], FILM[-2:]):  # Python warns if a module that -m names is already imported
        sys.modules.pop(name, None)
    gc.freeze()  # garbage collections in forks would copy this memory
    gc.get_freeze_count = lambda: 1  # counting visits all objects; callers only compare with 0
    os.environ.pop("GOMP_SPINCOUNT")
    use_huge_pages()


def load_kernels() -> None:
    """Build envs of tasks that tests use often, so that their MuJoCo Warp kernels are already loaded in the forks."""
    from mjlab_dist import registry
    from mjlab_dist.env import Env
    from mjlab_dist.sim import start_warp

    start_warp("cpu")
    for task in KERNELS_OF:
        Env(registry.task_config(task).env, 4, "cpu")


def use_huge_pages() -> None:
    """Move this process's memory to huge pages, so that a fork copies far fewer entries of page tables.

    A fork and its exit then take 7 ms of CPU time instead of 24 ms. Kernels older than Linux 6.1 ignore this request.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := PRIVATE_MEMORY.match(line):
            start, end = (int(each, 16) for each in found.groups())
            start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def serve(connection: socket.socket) -> Start:
    """Fork for each message. Returns only in the forks."""
    while message := receive(connection):
        start, descriptors = message
        read, write = os.pipe()
        # Fork twice and end the first fork, so that the second fork becomes a child of the test process (a subreaper)
        if (between := os.fork()) == 0:
            own = os.getpid()
            if os.fork() == 0:
                while os.getppid() == own:  # wait until the first fork has ended
                    os.sched_yield()
                os.close(connection.detach())
                return command(start, descriptors, write)
            os._exit(0)
        os.waitpid(between, 0)
        # The new process sends its process ID as soon as it can run the command. Forward this ID. If the process ended
        # without sending it, forward 0
        os.close(write)
        connection.sendall(os.read(read, SIZE.size) or SIZE.pack(0))
        for each in (read, *descriptors):
            os.close(each)
    os._exit(0)


def command(start: Start, descriptors: Sequence[int], ready: int) -> Start:
    """Become a command, or a process that the command will start. The command sends its process ID."""
    os.setsid()
    launcher = os.getpid()
    reserved: list[tuple[socket.socket, int]] = []
    for position in range(num_reserved(start.argv)):
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            for each in (ours, *(connection for connection, _ in reserved)):
                each.close()
            for each in (*descriptors, ready):
                os.close(each)
            return reserve(theirs, launcher, SHARDING_MODULES if "--fsdp-devices" in start.argv else ())
        theirs.close()
        own = fcntl.fcntl(ours.detach(), fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY + position)
        reserved.append((socket.socket(fileno=own), pid))
    if reserved:
        replace_fork_exec(lambda *args: start_reserved(reserved, args))
    elif start.argv[: len(AGENT)] == AGENT:
        replace_fork_exec(start_helper)
    become(start, descriptors, ready, *(connection.fileno() for connection, _ in reserved))
    os.write(ready, SIZE.pack(os.getpid()))
    os.close(ready)
    return start


def num_reserved(argv: Sequence[str]) -> int:
    """Return how many processes to reserve for agents, video processes and ranks of torchrun."""
    if Path(argv[0]).name == "torchrun":
        words = [word for each in argv for word in each.split("=", 1)]
        return int(words[words.index("--nproc-per-node") + 1])
    if Path(argv[0]).name == HOST_SERVER:
        return 0
    is_script = argv[0].endswith(".py")
    if is_script or "--max-restarts" in argv or argv[1:2] in (["verify"], ["scaling"]):
        return 5 if argv[1:2] == ["scaling"] else 3
    evaluates = argv[1:2] == ["evaluate"]
    has_agent = "--hosts" in argv or ("--cpu-ranks" in argv[:-1] and argv[argv.index("--cpu-ranks") + 1] != "1")
    if has_agent and not evaluates:
        return 1
    if "--video-interval" in argv:
        return 2  # the video process is started again if it is killed
    return int(evaluates or "--resume" in argv or "--config" in argv)  # the run may have used several ranks


def reserve(connection: socket.socket, launcher: int, modules: Sequence[str]) -> Start:
    """Wait until the command starts an agent, a rank or a video process, and become that process.

    This process exits if the command exits first.

    Args:
        connection: Socket on which the command sends the start message.
        launcher: ID of the command's process.
        modules: Modules that the agent's ranks need, in addition to the libraries.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(0)
    # Ignore signals until this process becomes the agent, rank or video process
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    before = {each: signal.signal(each, signal.SIG_IGN) for each in signals}
    message = receive(connection)
    if message is None:
        os._exit(0)
    LIBC.prctl(PR_SET_PDEATHSIG, 0)
    connection.close()
    for each, handler in before.items():
        signal.signal(each, handler or signal.SIG_DFL)
    os.setsid()
    for name in modules:
        __import__(name)
    gc.freeze()
    replace_fork_exec(start_helper)
    become(*message)
    return message[0]


def replace_fork_exec(function: Callable[..., int | None]) -> None:
    """Let Python call a function to start a child process. If the function returns None, Python starts it as usual."""
    original = _posixsubprocess.fork_exec

    def fork_exec(*args: Any) -> int:
        return function(*args) or original(*args)

    _posixsubprocess.fork_exec = fork_exec
    subprocess._fork_exec = fork_exec  # pyright: ignore[reportAttributeAccessIssue]


def start_reserved(reserved: list[tuple[socket.socket, int]], args: Sequence[Any]) -> int | None:
    """Turn a reserved process into the local agent, a video process or a rank of torchrun, and return its ID.

    Return None if no reserved process is left, or if the program is a different one.
    """
    argv, _, _, _, cwd, environ, stdin, _, _, stdout, _, stderr = args[:12]
    argv = [os.fsdecode(each) for each in argv]
    is_module = any(argv[1 : 1 + len(module)] == module for module in (AGENT, FILM))
    if not reserved or not (is_module or Path(argv[0]).name == "train"):
        return None
    connection, pid = reserved.pop(0)  # the oldest process, because tests sort agents by age
    variables = dict(os.fsdecode(each).split("=", 1) for each in environ)
    if not is_module:
        argv[0] = shutil.which(argv[0], path=variables.get("PATH")) or argv[0]
    descriptors = [each if each >= 0 else own for own, each in enumerate((stdin, stdout, stderr))]
    try:
        with connection:
            send(connection, Start.here(argv[is_module:], variables, cwd), descriptors)
    except OSError:
        return None  # the reserved process was killed
    return pid


def start_helper(*args: Any) -> int | None:
    """Fork the agent's fork server, or a rank that the agent spawns."""
    argv, _, _, passed = args[:4]
    argv = [os.fsdecode(each) for each in argv]
    if "-c" not in argv or not argv[argv.index("-c") + 1].startswith(FORKED_PROGRAMS):
        return None
    program, *arguments = argv[argv.index("-c") + 1 :]
    if pid := os.fork():
        return pid
    code = 1
    try:
        keep_only({0, 1, 2, *passed})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Reset the state of logging and multiprocessing that was inherited from the agent
        logging.getLogger().handlers.clear()  # its socket is closed, and another one may get the number
        logging.setLogRecordFactory(logging.LogRecord)
        forkserver._forkserver.__init__()  # pyright: ignore[reportAttributeAccessIssue]
        resource_tracker._resource_tracker.__init__()  # pyright: ignore[reportAttributeAccessIssue]
        process.current_process()._config.pop("tempdir", None)  # pyright: ignore[reportAttributeAccessIssue]
        show_in_proc([sys.executable, *argv[1:]], dict(os.environ))
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        # Use an empty context: in the agent's context, messages would go to the agent
        contextvars.Context().run(exec, program, new_main().__dict__)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        os._exit(code)


def become(start: Start, descriptors: Sequence[int], *kept: int) -> None:
    """Set up this process as exec would, but keep some descriptors open."""
    # Descriptors
    for own, each in enumerate([os.dup(each) for each in descriptors]):  # copies are above 2, because 0 to 2 are open
        os.dup2(each, own)
    keep_only({0, 1, 2, *kept})
    # Signals and cores
    for each in start.ignored:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)
    os.sched_setaffinity(0, start.cores)
    # Directory and environment
    os.chdir(start.cwd)
    os.umask(start.umask)
    earlier = python_path(os.environ)
    unload_packages_replaced_by(set(python_path(start.environ)) - set(earlier))
    os.environ.clear()
    os.environ.update(start.environ)
    show_in_proc([sys.executable, *start.argv], start.environ)
    # Python's options, arguments and paths
    options, argv = set[str](), list(start.argv)
    while argv[0] in ("-P", "-u", "-W"):
        options.add(argv[0])
        if argv.pop(0) == "-W":
            sys.warnoptions.append(option := argv.pop(0))
            action, _, message = option.partition(":")
            warnings.filterwarnings(action, message=message)  # pyright: ignore[reportArgumentType]
    sys.orig_argv[:] = [sys.executable, *start.argv]
    is_module = argv[0] == "-m"
    sys.argv = argv[1:] if is_module else argv
    first = [] if "-P" in options else [start.cwd if is_module else os.path.dirname(argv[0])]  # noqa: PTH120
    rest = [each for each in sys.path[1:] if each not in earlier]
    sys.path[:] = [*first, *dict.fromkeys([*python_path(start.environ), *rest])]
    # Streams
    unbuffered = "-u" in options or bool(start.environ.get("PYTHONUNBUFFERED"))
    for own, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open_stream(own, getattr(sys, name), unbuffered=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    # Seed again the random generators that were seeded at import
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def unload_packages_replaced_by(folders: Collection[str]) -> None:
    """Remove this project's packages from sys.modules if any folder contains another copy of one of them.

    Folders that contain the imported packages themselves have no effect. They are common, because the launcher passes
    its whole sys.path to agents as PYTHONPATH.
    """
    loaded = [sys.modules[name] for name in PACKAGES if name in sys.modules]
    imported = {os.path.realpath(path) for package in loaded for path in package.__path__}
    copies = [os.path.join(folder, name) for folder in folders for name in PACKAGES]  # noqa: PTH118
    if any(os.path.isdir(copy) and os.path.realpath(copy) not in imported for copy in copies):  # noqa: PTH112
        for name in [each for each in sys.modules if each.partition(".")[0] in PACKAGES]:
            del sys.modules[name]


def python_path(environ: Mapping[str, str]) -> list[str]:
    """Return the directories of PYTHONPATH."""
    return [os.path.abspath(each) for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]  # noqa: PTH100


def keep_only(descriptors: set[int]) -> None:
    """Close all descriptors except these."""
    for each in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 (only the numbers)
        if each not in descriptors:
            with contextlib.suppress(OSError):  # the descriptor of the listing is already closed
                os.close(each)


def open_stream(descriptor: int, like: io.TextIOWrapper, *, unbuffered: bool) -> io.TextIOWrapper:
    """Open a standard stream as Python does at startup."""
    mode = "w" if descriptor > 0 else "r"
    buffering = 0 if unbuffered and mode == "w" else -1
    file = builtins.open(descriptor, f"{mode}b", buffering, closefd=False)  # noqa: SIM115
    setattr(getattr(file, "raw", file), "name", like.name)  # noqa: B010 (a property for the type checker)
    stream = io.TextIOWrapper(
        file,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=not unbuffered and (descriptor == 2 or os.isatty(descriptor)),
        write_through=unbuffered,
    )
    stream.mode = mode  # pyright: ignore[reportAttributeAccessIssue]
    return stream


_shown: list[mmap.mmap] = []
"""Memory with the arguments and the environment that /proc shows. It must stay mapped until the process ends."""


def show_in_proc(argv: Sequence[str], environ: dict[str, str]) -> None:
    """Set the arguments, the environment and the name that other processes see in /proc.

    Raises:
        OSError: If the kernel refuses.
    """
    arguments = b"".join(os.fsencode(each) + b"\0" for each in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    memory = mmap.mmap(-1, len(arguments) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(arguments + variables)
    _shown.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = start + len(arguments)
    # Fields of /proc/self/stat after the name, which may contain spaces. The first of them is field 3
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code_start, code_end, stack, data_start, data_end, heap = (int(stat[n - 3]) for n in (26, 27, 28, 45, 46, 47))
    LIBC.sbrk.restype = ctypes.c_void_p
    fields = (code_start, code_end, data_start, data_end, heap, LIBC.sbrk(0), stack)
    packed = struct.pack("12Q2I", *fields, start, end, end, end + len(variables), 0, 0, UNSET)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    if LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, buffer, ctypes.c_ulong(len(packed)), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")
    script = argv[1] if len(argv) > 1 and not argv[1].startswith("-") else argv[0]
    LIBC.prctl(PR_SET_NAME, os.fsencode(Path(script).name[:15]))


def new_main() -> ModuleType:
    """Replace the main module with an empty one."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def run(start: Start) -> None:
    """Run the program. Its exceptions, including SystemExit, end this process as in a normal Python process."""
    argv = start.argv[start.argv.index("-m") + 1 :] if "-m" in start.argv[:5] else start.argv
    main = new_main()
    # Let tracebacks start in the program, not in this function
    sys.excepthook = lambda kind, error, trace: sys.__excepthook__(
        kind, error.with_traceback(trace and trace.tb_next and trace.tb_next.tb_next), error.__traceback__
    )
    code = 1
    try:
        if argv is not start.argv:
            runpy._run_module_as_main(argv[0])  # pyright: ignore[reportAttributeAccessIssue]
        else:
            main.__file__ = argv[0]
            exec(compile(Path(argv[0]).read_bytes(), argv[0], "exec"), main.__dict__)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:
        code = None  # Python ends itself with SIGINT
        raise
    finally:
        _ending.update({os.getpid(): code})


_ending: dict[int, int | None] = {}
"""Dict from the process ID to the exit code of the finished program. A fork has another ID, so it does not use the exit
code of its parent."""


@atexit.register  # registered first, so that it runs last
def end_now() -> None:
    """Skip the rest of the interpreter's shutdown, because freeing all objects of the libraries takes half a second."""
    code = _ending.get(os.getpid())
    if code is None:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return  # Python reports the error
    LIBC.fflush(None)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    show_in_proc([sys.executable, *sys.argv], dict(os.environ))  # raises if the kernel refuses
    import_libraries(sys.argv[2:])
    start = serve(socket.socket(fileno=int(sys.argv[1])))
    if Path(start.argv[0]).name == HOST_SERVER:
        from warm_host import serve_host

        start = command(*serve_host(int(start.argv[1])))
    run(start)
