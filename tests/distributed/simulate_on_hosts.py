"""Program for a host: compare a simulation in this process with one on ranks of two hosts, and kill or stop a rank."""

from __future__ import annotations

import sys

import simulation_policies
from simulation_sessions import differing, make, session

from mjlab_dist.errors import RankError

if __name__ == "__main__":
    ssh_config, policy = sys.argv[1:]
    with make(1) as alone:
        expected = list(session(alone))
        state = alone.state()
    # Host b has twice as many ranks as host a
    with make(1, hosts=("a", "b:2"), ssh_config=ssh_config, hang_timeout=5.0) as envs:
        print("differ:", differing(envs, expected))
        envs.set_state(state)
        try:
            envs.rollout(getattr(simulation_policies, policy), 3)
        except RankError as error:
            print(error)
