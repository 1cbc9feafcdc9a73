"""Write the page of the GPU report, docs/gpu.md, from the results of the report's parts."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_commands import ROOT

Result = dict[str, Any]
"""Status and data of a part."""

DRY_RUN = """**This was a dry run on a CPU, with small sizes. It proves nothing about GPUs:** it only shows that
every part of the report can be run."""

GOAL_DEVICE = "H200"
"""GPU for which the goals are defined."""

SPEED_GOALS = (("speed-cartpole", "4096", 1.5e6), ("speed-quadruped-flat", "4096", 4e5))
"""Each goal for the speed has the name of a part, a number of envs, and the env-steps/s to reach."""

PHYSICS_GOAL = 0.8
"""In the last entry of :data:`SPEED_GOALS`, physics should take at least this share of the time of a rollout."""

SHARES = ("physics", "env layer", "policy", "update", "waiting")

TAIL_CHARS = 3000
"""Maximum number of characters that the page shows of a failure."""

Lines = list[str]


def write_page(output: Path, results: Mapping[str, Result], data_dir: Path, dry_run: bool) -> Path:
    """Write the page.

    Args:
        output: Directory of the page. The page shows pictures from the directory ``pictures`` inside it.
        results: Status and data by part, in the order of the page. A part without a status has not been run.
        data_dir: Directory of the data. The page does not show its path, because the path names this machine's user.
        dry_run: Whether nothing was run on a GPU.

    Returns:
        Path of the page.
    """
    lines = ["# On a GPU", ""]
    if dry_run:
        lines += [DRY_RUN, ""]
    lines += [
        "`uv run python scripts/gpu_report.py` has run each part in separate processes, and has written this page.",
        "Speeds and times are medians over all iterations except the first three. Parentheses contain the minimum",
        "and maximum.",
    ]
    for title, names, render in SECTIONS:
        found = {name: result for name, result in results.items() if any(name.startswith(n) for n in names)}
        if render is _render_parts or render is _render_goals:
            found = dict(results)
        lines += ["", f"## {title}"]
        try:
            lines += render(found)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            # Incomplete data of one part must not prevent the page from showing the other parts.
            lines.append(f"This section could not be written: {type(error).__name__} {error}.")
        lines += _failures(found) if render is not _render_parts and render is not _render_goals else []
        lines += _pictures(output, title)
    output.mkdir(parents=True, exist_ok=True)
    page = output / "gpu.md"
    page.write_text(_anonymous("\n".join(lines) + "\n", data_dir))
    return page


def _anonymous(text: str, data_dir: Path) -> str:
    """Replace the machine's name and paths, which outputs of failed commands contain, by placeholders."""
    names = {str(data_dir.resolve()): "DATA", str(ROOT): ".", str(Path.home()): "~"}
    host = platform.node()
    if len(host) > 3:
        names[host] = "HOST"
    for name, short in names.items():
        if name not in ("", "/"):
            text = text.replace(name, short)
    return text


def _pictures(output: Path, title: str) -> Lines:
    pictures = {"Speed": ("gpu-speed", "gpu-shares"), "Trainings": ("gpu-trainings",)}
    found = [name for name in pictures.get(title, ()) if (output / "pictures" / f"{name}.png").is_file()]
    return [line for name in found for line in ("", f"![{PICTURES[name]}](pictures/{name}.png)")]


PICTURES = {
    "gpu-speed": "Env-steps per second by number of envs",
    "gpu-shares": "Shares of an iteration's time",
    "gpu-trainings": "Mean return and velocity tracking by minutes of training",
}


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Lines:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(_cell(value) for value in row) + " |" for row in rows)]


def _cell(value: object) -> str:
    return str("" if value is None else value).replace("|", "\\|").replace("\n", " ")


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _failures(found: Mapping[str, Result]) -> Lines:
    """Return lines on the parts of a section that failed, were skipped or have not been run."""
    lines: Lines = []
    for name, result in found.items():
        status = result.get("status")
        if status == "failed":
            reason = str(result["reason"])
            cut = reason if len(reason) <= TAIL_CHARS else f"...{reason[-TAIL_CHARS:]}"
            lines += ["", f"`{name}` **failed**:", "```", cut.replace("```", "'''"), "```"]
        elif status == "skipped":
            lines += ["", f"`{name}` was skipped: {result['reason']}."]
        elif status is None:
            lines += ["", f"`{name}` has not been run."]
    return lines


def _data(found: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    """Return the data of each part. Parts without data are left out."""
    return {name: result["data"] for name, result in found.items() if result.get("data")}


# Functions that write the sections of the page


def _render_machine(found: Mapping[str, Result]) -> Lines:
    machine = _data(found).get("machine")
    if not machine:
        return []
    gpus = [
        f"{g['name']}, {g['memory_gb']:.0f} GB, compute capability {g['capability']}, {g['multiprocessors']} SMs"
        for g in machine["gpus"]
    ]
    rows = [
        ("GPUs", "; ".join(gpus) or "none was used"),
        ("driver", machine.get("driver")),
        ("CUDA of the driver, torch, Warp", ", ".join(str(machine.get(k)) for k in CUDA_VERSIONS)),
        ("NCCL", machine.get("nccl")),
        ("power limit", machine.get("power_limit_w") and f"{machine['power_limit_w']:.0f} W"),
        ("maximum SM clock", machine.get("clock_mhz") and f"{machine['clock_mhz']} MHz"),
        ("CPU", f"{machine['cpu']}, {machine['cpu_cores']} cores, {machine['memory_gb']:.0f} GB"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("packages", ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)),
    ]
    wrong = [f"{c['name']}: {c['status']}" for c in machine.get("doctor", []) if c["status"] != "ok"]
    rows.append(("`mjlab-dist doctor`", "; ".join(wrong) or "all checks are ok"))
    return _table(("", ""), [row for row in rows if row[1]])


CUDA_VERSIONS = ("driver_cuda", "torch_cuda", "warp_cuda")


def _render_parts(results: Mapping[str, Result]) -> Lines:
    rows = [
        (
            f"`{name}`",
            result.get("status", "not run"),
            _number(result.get("seconds"), 0 if result.get("seconds", 0) > 10 else 1),
            result.get("started"),
            result.get("commit"),
        )
        for name, result in results.items()
    ]
    total = sum(result.get("seconds", 0.0) for result in results.values())
    return [*_table(("part", "result", "seconds", "started", "commit"), rows), "", f"{total / 60:.1f} minutes in all."]


def _render_goals(results: Mapping[str, Result]) -> Lines:
    data = _data(results)
    rows: list[tuple[str, ...]] = []
    for part, num_envs, wanted in SPEED_GOALS:
        measured = _sizes(data.get(part)).get(num_envs, {}).get("steps_per_s")
        rows.append((f"`{part}`, {num_envs} envs, env-steps/s", *_compare(wanted, measured, _number)))
    part, num_envs, _ = SPEED_GOALS[-1]
    share = _collection_share(_sizes(data.get(part)).get(num_envs, {}))
    goal = f"`{part}`, {num_envs} envs, share of a rollout's time that physics takes"
    rows.append((goal, *_compare(PHYSICS_GOAL, share, _percent)))
    lines = _table(("goal", "wanted at least", "measured", ""), rows)
    gpus = data.get("machine", {}).get("gpus", [])
    if not any(GOAL_DEVICE in gpu["name"] for gpu in gpus):
        lines += ["", f"The goals are for an {GOAL_DEVICE}, and this machine has no {GOAL_DEVICE}."]
    return lines


def _compare(wanted: float, measured: float | None, show: Callable[[float], str]) -> tuple[str, str, str]:
    if measured is None:
        return show(wanted), "", "not measured"
    return show(wanted), show(measured), "reached" if measured >= wanted else "not reached"


def _sizes(data: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    return (data or {}).get("sizes", {})


def _collection_share(figures: Mapping[str, Any]) -> float | None:
    """Return the share of a rollout's time that physics takes; None if it was not measured."""
    if "physics_s" not in figures or "collect_s" not in figures:
        return None
    return figures["physics_s"] * figures["steps_per_env"] / figures["collect_s"]


def _render_tests(found: Mapping[str, Result]) -> Lines:
    lines: Lines = []
    for name, data in _data(found).items():
        tests = data.get("tests", [])
        outcomes = ("passed", "failed", "skipped", "started")
        counts = [str(sum(test["outcome"] == outcome for test in tests)) for outcome in outcomes]
        lines += ["", f"`{name}`:", "", *_table(("passed", "failed", "skipped", "did not end"), [counts]), ""]
        rows = [
            (f"`{test['test'].rpartition('::')[2]}`", _outcome(test["outcome"]), _number(test["seconds"], 1), why)
            for test in tests
            for why in [test["reason"][:200]]
        ]
        lines += _table(("test", "outcome", "seconds", "why"), rows) if rows else []
    return lines


def _outcome(outcome: str) -> str:
    return "did not end" if outcome == "started" else outcome


def _render_cold(found: Mapping[str, Result]) -> Lines:
    rows = [
        (task, {"cold": "to compile", "warm": "compiled"}[kind], f["modules"], _number(f["first_iteration_s"], 1))
        for data in _data(found).values()
        for task, kinds in data.items()
        for kind, f in kinds.items()
    ]
    return _table(("task", "kernels", "modules compiled", "seconds to the end of the first iteration"), rows)


SPEED_HEAD = ("env-steps/s", "by the wall clock", "collection", "update", "envs that overflowed", "note")


def _speed(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a short training run. If the run failed, only the last cell has text."""
    if "steps_per_s" not in figures:
        return ("", "", "", "", "", "failed, see below")
    low, high = figures["min_steps_per_s"], figures["max_steps_per_s"]
    notes = [*figures.get("warnings", [])]
    if "step_error" in figures:
        notes.insert(0, "training with capture mode `step` failed; the figures are for mode `physics`")
    return (
        f"{_number(figures['steps_per_s'])} ({_number(low)} to {_number(high)})",
        _number(figures["wall_steps_per_s"]),
        f"{1e3 * figures['collect_s']:.1f} ms",
        f"{1e3 * figures['learn_s']:.1f} ms",
        str(figures["overflowed_envs"]),
        "; ".join(notes),
    )


def _render_capture(found: Mapping[str, Result]) -> Lines:
    rows = [
        (task, mode, figures.get("num_envs"), *_speed(figures))
        for data in _data(found).values()
        for task, modes in data.items()
        for mode, figures in modes.items()
    ]
    return _table(("task", "`--env.sim.capture`", "envs", *SPEED_HEAD), rows)


def _render_speed(found: Mapping[str, Result]) -> Lines:
    speeds: list[tuple[object, ...]] = []
    shares: list[tuple[object, ...]] = []
    for data in _data(found).values():
        for num_envs, figures in _sizes(data).items():
            speeds.append((data["task"], num_envs, figures.get("capture"), *_speed(figures)))
            if "shares" not in figures:
                continue
            shares.append(
                (
                    *(data["task"], num_envs, *(_percent(figures["shares"][name]) for name in SHARES)),
                    *(_percent(_collection_share(figures)), f"{1e3 * figures['physics_s']:.3f} ms"),
                    f"{1e3 * figures['env_step_s']:.3f} ms{'' if figures['recorded'] else ', not recorded'}",
                    _number(figures.get("memory_gb"), 1),
                )
            )
    head = ("task", "envs", *SHARES, "physics / collection", "physics per step", "env step", "GB in use")
    return [
        *_table(("task", "envs", "capture", *SPEED_HEAD), speeds),
        "",
        "`env-steps/s` is the number of env-steps divided by the time of collection (rollouts) and update, like",
        "`steps_per_s` in metrics.jsonl. For the column `by the wall clock`, the number of env-steps is divided by a",
        "time that also includes metrics, the writing of files, and checkpoints.",
        "",
        "Shares of an iteration's time:",
        "",
        *_table(head, shares),
        "",
        "How shares are measured: `train` measures the times of collection, update and waiting with CUDA events, and",
        "this page uses their medians. A second process measures the env alone, with random actions. It measures",
        "physics in control steps without CUDA graphs, and the whole env step by replaying its recorded CUDA graphs.",
        "The time of the env layer is the time of the whole env step minus the time of physics. The time of the",
        "policy, which includes the storage of samples, is the time of collection minus the time of the env steps. In",
        "the second process, random actions lead to other contacts than the policy does in training. Therefore, small",
        "differences between shares mean nothing, and a share can be slightly negative.",
    ]


def _render_ranks(found: Mapping[str, Result]) -> Lines:
    data = _data(found)
    lines: Lines = []
    # Two ranks on one device
    if shared := data.get("two-ranks"):
        share = shared["wait_s"] / (shared["collect_s"] + shared["learn_s"])
        rows = [(shared["task"], shared["num_envs"], *_speed(shared), _percent(share))]
        lines += ["Two ranks on one device, through gloo:", ""]
        lines += [*_table(("task", "envs on both ranks", *SPEED_HEAD, "waiting"), rows), ""]
    # Faults
    if broken := data.get("nccl-faults"):
        rows = [
            (
                *(fault, f["code"], f["expected_code"], "yes" if f["names_rank"] else "no"),
                *(", ".join(f["left"]) or "nothing", _number(f["seconds"], 1)),
                "as expected" if f["as_expected"] else "not as expected",
            )
            for fault, f in broken.items()
        ]
        head = ("fault of rank 1", "exit code", "expected", "output names rank", "left running", "total seconds", "")
        lines += ["Faults with NCCL (in a dry run: gloo on the CPU):", "", *_table(head, rows), ""]
    # Weak scaling
    if scaled := data.get("nccl-scaling"):
        runs = {ranks: figures for ranks, figures in scaled.items() if ranks.isdecimal()}
        base = runs["1"]["steps_per_s"]
        rows = [(n, f["num_envs"], *_speed(f), f"{f['steps_per_s'] / base:.2f}") for n, f in runs.items()]
        lines += [f"Weak scaling of {scaled['task']}, with the same number of envs on every rank:", ""]
        lines += _table(("ranks", "envs on all ranks", *SPEED_HEAD, "speed relative to one rank"), rows)
    return lines


def _render_trainings(found: Mapping[str, Result]) -> Lines:
    rows = [
        (
            data["task"],
            data["num_envs"],
            _number(data["iterations"]),
            f"{data['total_steps'] / 1e6:.1f} M",
            _number(data["minutes"], 1),
            _number(data["mean_return"], 1),
            _number(data.get("walking_after_min"), 1) or "not reached",
            *_walk(data.get("walk")),
            "; ".join(data.get("warnings", [])),
        )
        for data in _data(found).values()
        if "iterations" in data
    ]
    head = (
        *(
            "task",
            "envs",
            "iterations",
            "steps",
            "minutes",
            "mean return",
            "minutes until 80% with exploration",
        ),
        *("tracking without exploration", "worst robot", "speed", "fell", "walks", "note"),
    )
    return [
        *_table(head, rows),
        "",
        "Minutes do not include start-up. `minutes until 80% with exploration` ends with the first iteration in which",
        "the reward per step for the linear velocity is at least 80% of its maximum, and the mean episode length is at",
        "least 95% of its maximum. The next columns are measured by `scripts/follow_velocity.py` on the CPU, without",
        "exploration and with commands of 0.5 to 1.0 m/s: `tracking without exploration` is the reward for the linear",
        "velocity, as a share of its maximum. A policy walks if this share is at least 80%, and at most one robot in",
        "twenty falls.",
    ]


def _walk(walk: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not walk:
        return ("",) * 5
    return (
        _percent(walk["tracking"]),
        _percent(walk["worst_tracking"]),
        f"{walk['speed_m_s']:.2f} m/s, command {walk['told_m_s']:.2f}",
        f"{walk['fell']} of {walk['robots']}",
        "yes" if walk["walks"] else "no",
    )


def _render_mjlab(found: Mapping[str, Result]) -> Lines:
    rows = [
        (
            *(peer_task, _number(f["peer"]["steps_per_s"]), f["task"], _number(f["ours"]["steps_per_s"])),
            f"{f['ours']['steps_per_s'] / f['peer']['steps_per_s']:.2f}",
        )
        for data in _data(found).values()
        for peer_task, f in data.items()
    ]
    head = ("mjlab's task", "env-steps/s", "ours", "env-steps/s", "ratio")
    return _table(head, rows) if rows else []


Render = Callable[[Mapping[str, Result]], Lines]

SECTIONS: tuple[tuple[str, tuple[str, ...], Render], ...] = (
    ("Machine", ("machine",), _render_machine),
    ("Goals", (), _render_goals),
    ("Parts", (), _render_parts),
    ("Tests", ("tests", "sync"), _render_tests),
    ("Cold start", ("cold-start",), _render_cold),
    ("Capture", ("capture",), _render_capture),
    ("Speed", ("speed-",), _render_speed),
    ("Several ranks", ("two-ranks", "nccl-"), _render_ranks),
    ("Trainings", ("train-",), _render_trainings),
    ("Comparison with mjlab", ("mjlab",), _render_mjlab),
)
"""Title of each section, prefixes of the names of its parts, and the function that writes it."""
