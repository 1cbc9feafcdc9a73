"""Write docs/terms.md, the list of all terms, from the signatures and docstrings of the terms.

With --check, the script writes nothing, and ends with exit code 1 if the page is out of date.

uv run python scripts/terms_table.py
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from generated_page import write_or_check

from mjlab_dist.config.signatures import documented
from mjlab_dist.errors import listed

PAGE = Path(__file__).parents[1] / "docs" / "terms.md"

HEAD = """# All terms

After reading this page, you can choose the observations, rewards and other terms of your task: the
page lists all of them, with their parameters, shapes and units.
[task-reference.md](task-reference.md) shows how a config uses them. The page is generated from the
source by `uv run python scripts/terms_table.py`.

- A parameter `joint` with the default `root` is the name of the free joint of a floating base. You
  can omit the parameter if the joint is called `root`.
- A tuple of names, such as `joints`, takes regular expressions. A single name is taken literally.
- `entity` is the name of an entity of the scene. If it is given, all other names belong to this
  entity, and have no prefix. An empty string stands for the MJCF of `sim.model`. By default, names
  belong to the whole scene, and have prefixes.
- `Range` is a tuple (low, high).
- Parameters are also flags: `--env.terminations.tilted.params.max-rad 0.8`.
- A term is a function or a class. Names of classes start with a capital letter. A
  [curriculum](task-reference.md#schedules) can change every number among the parameters of a
  function. For a class, the table names the parameters that a curriculum can change.
"""

SECTIONS = (
    ("Observations", "observations", "An observation returns one row per env."),
    ("Height scans", "height_scan", "A height scan is an observation, or a sensor that several terms read."),
    ("Rewards", "rewards", "A reward returns one number per env. In a config, a cost has a negative weight."),
    ("Terminations", "terminations", "An episode ends in the envs for which a termination returns true."),
    ("Events", "events", "An event changes the state of some envs: at startup, at each reset, or at intervals."),
    ("Commands", "commands", "A command is a goal for the policy. Observations and rewards read it."),
    (
        "Actions",
        "actions",
        "The policy outputs one number per action. From each number, an action term computes a value:\n"
        "offset + scale * clip(number). It then turns the values into inputs of actuators.",
    ),
    ("Motors", "motors", "These actions compute torques in every physics step."),
    ("Sensors", "sensors", "Once per control step, a sensor measures quantities that several terms read."),
    ("Curricula", "curricula", "A curriculum changes the task during the training, often as the policy improves."),
    (
        "Motions to imitate",
        "motion",
        "With these terms, a robot learns motions: a command, an event, and terms that read the command.",
    ),
)
"""Title, module of ``mjlab_dist.mdp`` and introduction of each section."""

IN_HEAD = {'`joint: str = "root"`', "`entity: str | None = None`", '`joints: tuple[str, ...] = (".*",)`'}
"""Parameters that HEAD describes for all terms."""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for title, name, introduction in SECTIONS:
        module = importlib.import_module(f"mjlab_dist.mdp.{name}")
        parts.append(
            f"## {title}: `{module.__name__}`\n{introduction}\n\n| term | meaning | parameters |\n|---|---|---|"
        )
        listed_before: dict[tuple[str, ...], str] = {}
        parts += [_row(name, term, listed_before) for name, term in _terms(module)]
        parts[-1] += "\n"
    return "\n".join(parts).rstrip("\n") + "\n"


def _terms(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the terms of a module in its order: its public functions and classes whose first parameter is ``env``."""
    for name, term in vars(module).items():
        is_own = callable(term) and getattr(term, "__module__", "") == module.__name__
        if is_own and not name.startswith("_") and next(iter(inspect.signature(term).parameters), "") == "env":
            yield name, term


def _row(name: str, term: Callable[..., Any], listed_before: dict[tuple[str, ...], str]) -> str:
    """Return a term with its parameters as a row of a table.

    Args:
        name: Name of the term.
        term: The term.
        listed_before: Dict from several parameters, as they are written, to the first term that has them; it grows.
    """
    text, described = _documentation(term)
    parameters = [p for p in inspect.signature(term).parameters.values() if p.name not in ("env", "mask", "block")]
    written = list[str]()
    for parameter in parameters:
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        signature = f"`{parameter.name}: {_type(parameter)}{default}`"
        meaning = "" if signature in IN_HEAD else described.get(parameter.name, "")
        written.append(f"{signature}: {meaning}" if meaning else signature)
    if len(written) > 3 and (first := listed_before.setdefault(tuple(written), name)) != name:
        written = [f"as for `{first}`"]
    if changes := getattr(term, "schedulable", ()):
        written.append(f"A curriculum can change {listed(f'`{name}`' for name in changes)}.")
    cells = (f"**`{name}`**", text, "<br>".join(written))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(parameter: inspect.Parameter) -> str:
    return str(parameter.annotation).replace("'", '"')


def _documentation(term: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a term, and the description of each documented parameter."""
    docstring = inspect.getdoc(term) or ""
    text = " ".join(re.split(r"\n(?=(?:Args|Returns|Raises|Attributes|Example):\n)", docstring)[0].split())
    parameters = documented(docstring)
    if inspect.isclass(term):
        parameters |= documented(inspect.getdoc(term.__init__) or "")
    text = re.sub(r"^(Return|Reward:|Termination:|Event:) ", "", text)
    text = re.sub(r"^[a-z]+(?= )", lambda match: match[0].capitalize(), text)
    return _plain(text), {name: _plain(meaning) for name, meaning in parameters.items()}


def _plain(text: str) -> str:
    """Turn the markup of docstrings into Markdown."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")


if __name__ == "__main__":
    write_or_check(PAGE, page())
