"""Compare training of cartpole-balance with mjlab_dist and with mjlab, on the CPU.

Both programs use the same substeps, network, rollout and PPO settings. In each round, both programs train in turn. The
script prints env-steps/s and the time from the start of the command to the end of its first iteration: medians over
rounds, with minimum and maximum. mjlab pins other versions of packages, so it needs its own virtual environment:
`uv venv peer && uv pip install --python peer mjlab==1.6.0`.

    uv run python scripts/bench_peer.py --peer-python peer/bin/python
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from timed import LIKE_PEER, Timed, run_ours, run_peer, spread

ONE = ("--gpu-ids", "None")
TWO = ("--gpu-ids", "None", "--cpu-ranks", "2")

CASES = {
    64: {"1 rank of 64": (*ONE, "--num-envs", "64")},
    1024: {"1 rank of 1024": (*ONE, "--num-envs", "1024"), "2 ranks of 512": (*TWO, "--num-envs", "512")},
    4096: {"2 ranks of 2048": (*TWO, "--num-envs", "2048")},
}


def main() -> None:
    """Print one table per number of envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, required=True, help="interpreter of the environment with mjlab")
    parser.add_argument("--sizes", type=int, nargs="+", choices=CASES, default=list(CASES), help="total number of envs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    for num_envs in args.sizes:
        ours = CASES[num_envs]
        peer: list[Timed] = []
        results: dict[str, list[Timed]] = {name: [] for name in ours}
        for _ in range(args.rounds):
            peer.append(run_peer(args.peer_python.absolute(), num_envs, args.iterations))
            for name, flags in ours.items():
                results[name].append(run_ours(*flags, *LIKE_PEER, "--max-iterations", str(args.iterations)))
        report(num_envs, peer, results)


def report(num_envs: int, peer: list[Timed], results: dict[str, list[Timed]]) -> None:
    """Print the speeds and times of the first iteration, and the ratios of our medians to mjlab's medians."""
    base = statistics.median(t.steps_per_s for t in peer)
    wait = statistics.median(t.first_iteration_s for t in peer)
    print(f"{num_envs} envs")
    print(f"  mjlab, 1 process   {spread([t.steps_per_s for t in peer])} steps/s", end="")
    print(f"   first iteration after {spread([t.first_iteration_s for t in peer], 1)} s")
    for name, runs in results.items():
        speed = statistics.median(t.steps_per_s for t in runs)
        first = statistics.median(t.first_iteration_s for t in runs)
        print(
            f"  ours, {name:<16} {spread([t.steps_per_s for t in runs])} steps/s = {speed / base:.1f} x mjlab", end=""
        )
        print(
            f"   first iteration after {spread([t.first_iteration_s for t in runs], 1)} s = {first / wait:.2f} x mjlab"
        )


if __name__ == "__main__":
    main()
