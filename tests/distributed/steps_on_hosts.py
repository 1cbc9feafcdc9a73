"""Program for a host: step envs on ranks of two hosts until a fault stops them, and print the error.

Fields of the config, as field=value, may follow the other arguments.
"""

from __future__ import annotations

import sys

from simulation_sessions import make

from mjlab_dist.errors import RankError, UserError

if __name__ == "__main__":
    ssh_config, hang_timeout, *others = sys.argv[1:]
    fields = dict(other.split("=") for other in others)
    try:
        with make(1, hosts=("a", "b"), ssh_config=ssh_config, hang_timeout=float(hang_timeout), **fields) as envs:
            envs.reset(seed=1)
            while True:
                envs.step([[0.0] * envs.num_actions] * envs.num_envs)
                print("step", flush=True)
    except (RankError, UserError, KeyboardInterrupt) as error:
        print(f"{type(error).__name__}: {error}")
