"""Properties of kept checkpoints: they include the newest and the best, and are not more than the config allows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mjlab_dist.config import CheckpointConfig
from mjlab_dist.learn.checkpoint import CheckpointStore, load
from mjlab_dist.run_dir import METRICS_FILE, find_best, find_checkpoint, list_checkpoints

returns = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), -float("inf"), 1.0])

saves = st.lists(st.tuples(st.integers(1, 50), returns, st.booleans()), min_size=1, max_size=8)
"""For each checkpoint: iterations since the previous one, mean return, and whether the run is resumed afterwards."""


@settings(max_examples=30)
@given(saves=saves, keep_last=st.integers(0, 3), keep_best=st.integers(0, 2))
def test_the_newest_and_the_best_are_kept_and_not_many_more(
    saves: list[tuple[int, float | None, bool]], keep_last: int, keep_best: int
):
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory)
        config = CheckpointConfig(keep_last=keep_last, keep_best=keep_best)
        store = CheckpointStore(run_dir, config)
        saved: dict[int, float | None] = {}
        for iterations, mean_return, is_resumed in saves:
            iteration = max(saved, default=0) + iterations
            saved[iteration] = mean_return
            with (run_dir / METRICS_FILE).open("a") as metrics:
                metrics.write(json.dumps({"iteration": iteration, "mean_return": mean_return}) + "\n")
            store.save(iteration, {"iteration": iteration}, mean_return)
            store.check()
            if is_resumed:
                store.close()
                store = CheckpointStore(run_dir, config)
                newest = store.read_newest()
                assert newest is not None
                assert load(newest[1], "cpu") == {"iteration": iteration}
        store.close()

        kept = list(list_checkpoints(run_dir))
        newest = sorted(saved)[-keep_last:]
        assert set(newest) <= set(kept) <= set(saved)
        assert load(find_checkpoint(run_dir), "cpu") == {"iteration": max(saved)}
        assert len(kept) <= keep_last + keep_best or not keep_last
        assert keep_last or kept == sorted(saved), "0 keeps all"
        finite = {n: value for n, value in saved.items() if value is not None and abs(value) < float("inf")}
        if finite and keep_best:
            best = load(find_best(run_dir), "cpu")["iteration"]
            assert finite[best] == max(finite.values())
