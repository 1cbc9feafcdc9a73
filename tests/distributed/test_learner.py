"""Two, three and four ranks learn the same parameters as one process with the data of all ranks."""

from __future__ import annotations

from typing import Any

import learner_probe as probe
import pytest
import torch
from own_ranks import results_of
from rollouts import AGENT, difference

Results = list[dict[str, Any]]


def parameters(learned: dict[str, Any]) -> torch.Tensor:
    """Return all parameters of the policy and the value function in one vector."""
    named = learned["state"].items()
    return torch.cat([t.flatten().double() for name, t in named if ".mlp." in name or name.endswith("std_param")])


pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="2 ranks", marks=pytest.mark.long),
        pytest.param(3, id="3 ranks"),
        pytest.param(4, id="4 ranks", marks=pytest.mark.long),
    ],
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(probe.probe, tmp_path_factory.mktemp("ranks"), ranks=request.param)


@pytest.mark.parametrize("variant", [v for v in probe.VARIANTS if v != "bf16"])
def test_ranks_learn_what_one_process_learns(ranks: Results, variant: str) -> None:
    for iteration, expected in enumerate(probe.alone(variant, len(ranks))):
        for rank in ranks:
            done = rank[variant][iteration]
            largest, where = difference(done["state"], expected["state"])
            assert largest < 1e-9, where
            assert done["kl"] == pytest.approx(expected["kl"], rel=1e-9)
        for loss in expected.keys() - {"state", "kl"}:
            mean = sum(rank[variant][iteration][loss] for rank in ranks) / len(ranks)
            assert mean == pytest.approx(expected[loss], rel=1e-9, abs=1e-12)
    if variant != "clipped":
        assert ranks[0][variant][-1]["state"]["learning_rate"] != AGENT.learning_rate, "else the schedule is not tested"


def test_ranks_learn_in_bf16_what_one_process_learns_in_bf16(ranks: Results) -> None:
    """Bf16 rounds. Allow a difference from the one process that is smaller than the difference from fp32."""
    expected = probe.alone("bf16", len(ranks))[0]
    exact = parameters(ranks[0]["fp32"][0])
    here, alone = parameters(ranks[0]["bf16"][0]), parameters(expected)
    assert 0 < (here - alone).norm() < (alone - exact).norm()
    assert (here - alone).norm() < 0.01 * alone.norm()
    assert ranks[0]["bf16"][0]["kl"] == pytest.approx(expected["kl"], rel=0.05)
    assert ranks[0]["bf16"][0]["state"]["learning_rate"] == expected["state"]["learning_rate"]


@pytest.mark.parametrize("variant", [*probe.VARIANTS, "compressed"])
def test_ranks_stay_bit_identical(ranks: Results, variant: str) -> None:
    for rank in ranks[1:]:
        for mine, first in zip(rank[variant], ranks[0][variant], strict=True):
            assert all(torch.equal(t, first["state"][name]) for name, t in mine["state"].items())


@pytest.mark.parametrize(("name", "bits"), [("none", 24), ("bf16", 8), ("fp16", 11)])
def test_gradients_are_averaged_not_summed(ranks: Results, name: str, bits: int) -> None:
    for rank in ranks:
        expected = rank["reduced"][name]["ranks"].mean(dim=0)
        assert rank["reduced"][name]["buffer"].dtype == torch.float32
        error = (rank["reduced"][name]["buffer"] - expected).abs().max().item()
        assert error <= expected.abs().max() * len(ranks) * 2.0**-bits
        assert name == "none" or error > 0, "else nothing was compressed"


def test_compressed_gradients_learn_nearly_the_same(ranks: Results) -> None:
    exact = parameters(ranks[0]["fp32"][0])
    for name in ("compressed", "fsdp compressed") if len(ranks) == 4 else ("compressed",):
        difference = (exact - parameters(ranks[0][name][0])).norm() / exact.norm()
        assert 1e-5 < difference < 0.02


def test_local_updates_are_averaged(ranks: Results) -> None:
    """Check parameters, Adam's moments, learning rates and normalizers."""
    locals_ = [rank["local"] for rank in ranks]
    assert difference(locals_[0]["before"], locals_[1]["before"])[0] > 1e-3, "each rank should first learn on its own"
    exact = ranks[0]["rnd"][-1]["state"]
    for name, first in locals_[0]["before"].items():
        for rank in locals_:
            after = rank["after"][name]
            if "obs_normalizer" in name or "state_normalizer" in name:
                torch.testing.assert_close(after, exact[name], rtol=1e-9, atol=1e-9)
            elif name.endswith("step"):
                assert after == first
            else:
                mean = torch.stack([r["before"][name].double() for r in locals_]).mean(dim=0)
                torch.testing.assert_close(after.double(), mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["agreed", "fsdp 2 agreed", "fsdp 4 agreed"])
def test_ranks_that_differ_take_the_learner_of_rank_0(ranks: Results, name: str) -> None:
    if name != "agreed" and len(ranks) != 4:
        assert name not in ranks[0]
        return
    first = ranks[0][name]["before"]
    for rank in ranks:
        assert difference(rank[name]["after"], first)[0] == 0
    assert (difference(ranks[-1][name]["before"], first)[0] > 0) == (name != "fsdp 4 agreed")


def test_spread_is_the_distance_from_the_mean(ranks: Results) -> None:
    names = [n for n in ranks[0]["local"]["before"] if ".mlp." in n or ".predictor." in n or n.endswith("std_param")]
    for rank in ranks:
        gaps = [(rank["local"]["before"][n] - rank["local"]["after"][n]).square().sum() for n in names]
        assert rank["local"]["spread"] == pytest.approx(sum(gaps).item(), rel=1e-9)  # pyright: ignore[reportAttributeAccessIssue]
        assert rank["local"]["spread"] > 0


@pytest.mark.parametrize("name", ["fsdp 2", "fsdp 4", "fsdp lstm"])
def test_shards_learn_what_whole_copies_learn(ranks: Results, name: str) -> None:
    if len(ranks) != 4:
        assert name not in ranks[0]
        return
    whole = "lstm" if name == "fsdp lstm" else "rnd"
    for rank in ranks:
        assert "actor.mlp.2.weight" in rank[name][0]["sharded"]
        for mine, expected in zip(rank[name], rank[whole], strict=True):
            largest, where = difference(mine["state"], expected["state"])
            assert largest < 1e-9, where


@pytest.mark.parametrize("name", ["fsdp 2 loaded", "fsdp 4 loaded"])
def test_checkpoints_load_at_any_number_of_shards(ranks: Results, name: str) -> None:
    if len(ranks) != 4:
        assert name not in ranks[0]
        return
    for rank in ranks:
        assert difference(rank[name], rank["rnd"][-1]["state"])[0] < 1e-9
