"""Hosts of a SLURM job or step, from its variables. Imports no torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from mjlab_dist.errors import UserError

# Variable with the hosts of a job
JOB_HOSTS = "SLURM_JOB_NODELIST"

# Variable with the hosts of a step. One call of srun starts one step.
STEP_HOSTS = "SLURM_STEP_NODELIST"

# Matches one entry of a host list, such as `node[01-03,7]`. Commas inside brackets do not separate entries.
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]+\])+")


# Value of --hosts that stands for the hosts of the SLURM job
SLURM = "slurm"


def slurm_hosts(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """Return the hosts that a variable of SLURM lists, in the same order.

    ``scontrol show hostnames`` prints the same list, but containers often lack this program.
    """
    text = environ[variable]
    parts = _PART.findall(text)
    if not parts or ",".join(parts) != text:
        raise UserError(f"{variable} {text}: is not a list of hosts in SLURM's format, such as node[01-03,7]; unset it")
    try:
        return tuple(host for part in parts for host in _expand(part))
    except ValueError as error:
        raise UserError(f"{variable} {text}: is not a list of hosts in SLURM's format ({error}); unset it") from error


def named_hosts(hosts: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the value of ``--hosts`` with ``slurm`` replaced by the hosts of this job."""
    if hosts != (SLURM,):
        return hosts
    if JOB_HOSTS not in environ:
        raise UserError(
            f"--hosts {SLURM}: {JOB_HOSTS} is not set, so this is not a SLURM job; start the command with sbatch, "
            "or name the machines"
        )
    return slurm_hosts(environ, JOB_HOSTS)


def _expand(part: str) -> Iterator[str]:
    """Yield the hosts of one entry. For example, ``n[1-2]m[3,4]`` yields n1m3, n1m4, n2m3, n2m4."""
    pieces = re.split(r"\[([^\[\]]+)\]", part)  # text, content of brackets, text, ...
    choices = [list(_numbers(piece)) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    for chosen in itertools.product(*choices):
        yield "".join(chosen)


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers of a list such as ``01-03,7``: 01, 02, 03, 7.

    The numbers of a range have at least as many digits as its lower bound.
    """
    for piece in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{piece!r} is not a range of numbers")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{number:0{len(match[1])}d}"
