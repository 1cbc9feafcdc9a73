"""Properties of lists of hosts: each address of this machine is recognized, and no other address is."""

from __future__ import annotations

import dataclasses
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import UserError
from mjlab_dist.launch.hosts.host_checks import choose_hosts
from mjlab_dist.launch.hosts.ssh import HERE, is_this_machine

CONFIG = registry.task_config("cartpole-balance")

here = st.one_of(
    st.ip_addresses(v=4, network="127.0.0.0/8").map(str), st.sampled_from(["localhost", "::1", "0:0:0:0:0:0:0:1"])
)

# Addresses that no machine has, because they are reserved for documentation.
elsewhere = st.one_of(
    *(st.ip_addresses(network=network).map(str) for network in ("198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"))
)


CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")


def chosen(*hosts: str) -> tuple[str, ...]:
    made = choose_hosts(dataclasses.replace(CONFIG, hosts=hosts), {}, (CPU,))
    return tuple(host.name for host in made)


@given(host=here)
def test_this_machine_alone_needs_no_other(host: str):
    assert is_this_machine(host)
    assert chosen(host) == chosen() == (HERE,)


@given(address=elsewhere, exploded=st.booleans())
def test_another_address_is_not_this_machine(address: str, exploded: bool):
    assert not is_this_machine(ipaddress.ip_address(address).exploded if exploded else address)


@given(hosts=st.lists(elsewhere, min_size=1, max_size=3, unique=True), own=here, data=st.data())
def test_this_machine_must_be_the_first(hosts: list[str], own: str, data: st.DataObject):
    hosts.insert(data.draw(st.integers(1, len(hosts))), own)
    with pytest.raises(UserError) as refusal:
        chosen(*hosts)
    assert str(refusal.value).startswith(f"--hosts {' '.join(hosts)}: ")
    assert "localhost" in str(refusal.value).removeprefix(f"--hosts {' '.join(hosts)}: ")


@given(own=st.lists(here, min_size=2, max_size=2, unique=True), others=st.lists(elsewhere, max_size=2), data=st.data())
def test_two_names_of_this_machine_are_both_named(own: list[str], others: list[str], data: st.DataObject):
    first, again = own
    others.insert(data.draw(st.integers(0, len(others))), again)
    with pytest.raises(UserError) as refusal:
        chosen(first, *others)
    assert str(refusal.value).startswith(f"--hosts {' '.join([first, *others])}: {first} and {again} ")
