"""SLURM's lists of hosts are expanded. If SLURM's own program is installed, it computes the expected results."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mjlab_dist.distributed.rank import JOB_HOSTS, named_hosts, slurm_hosts
from mjlab_dist.errors import UserError


def expanded(text: str) -> list[str]:
    return list(slurm_hosts({JOB_HOSTS: text}, JOB_HOSTS))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node7", "node7"),
        ("node[01-03,7]", "node01 node02 node03 node7"),
        ("n[9-11],m", "n9 n10 n11 m"),
        ("n[099-101]", "n099 n100 n101"),
        ("n[1-2]-x[01-02]", "n1-x01 n1-x02 n2-x01 n2-x02"),
        ("localhost,192.0.2.[7-8]", "localhost 192.0.2.7 192.0.2.8"),
        ("n[1-2].cluster", "n1.cluster n2.cluster"),
    ],
)
def test_a_list_is_expanded(text: str, hosts: str):
    assert expanded(text) == hosts.split()


@pytest.mark.parametrize(
    "text", ["", "n[", "n[1", "n]1", "n[]", "n[a-b]", "n[3-1]", "n[1,,2]", "a,,b", ",a", "n[1-2-3]"]
)
def test_another_text_is_refused(text: str):
    with pytest.raises(UserError, match=rf"^{JOB_HOSTS} ") as caught:
        expanded(text)
    assert "\n" not in str(caught.value)


@st.composite
def entries(draw: st.DrawFn) -> str:
    """Draw one entry of a list of hosts: a name, then up to two lists of numbers with a text between them."""
    text = draw(st.sampled_from(["n", "gpu-", "rack1-n", "192.0.2."]))
    for _ in range(draw(st.integers(0, 2))):
        pieces = []
        for _ in range(draw(st.integers(1, 3))):
            first, width = draw(st.integers(0, 120)), draw(st.integers(1, 4))
            last = first + draw(st.integers(0, 9))
            pieces.append(f"{first:0{width}d}-{last:0{width}d}" if last > first else f"{first:0{width}d}")
        text += f"[{','.join(pieces)}]"
        if draw(st.booleans()):
            return text
        text += draw(st.sampled_from(["-m", "s"]))
    return text.rstrip("-ms")  # SLURM accepts no text after the last list


@given(parts=st.lists(entries(), min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_list_is_expanded_as_by_slurm(parts: list[str], tmp_path: Path):
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        pytest.skip("needs scontrol (Debian: apt-get install slurm-client)")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    text = ",".join(parts)
    command = [scontrol, "show", "hostnames", text]
    shown = subprocess.run(command, env={"SLURM_CONF": str(conf)}, capture_output=True, text=True, check=True)
    assert expanded(text) == shown.stdout.split()


def test_slurm_names_the_hosts_of_the_job():
    environ = {JOB_HOSTS: "node[07-08]"}
    assert named_hosts(("slurm",), environ) == ("node07", "node08")
    assert named_hosts(("localhost", "slurm"), environ) == ("localhost", "slurm"), (
        "after another host, slurm is the name of a machine"
    )
    assert named_hosts((), environ) == ()


def test_outside_of_a_job_slurm_is_refused():
    with pytest.raises(UserError, match=rf"^--hosts slurm: {JOB_HOSTS} .*sbatch"):
        named_hosts(("slurm",), {})
