"""The copies of the learner on all ranks. They are averaged or, if ranks round differently, replaced by rank 0's copy.

Ranks compute the same update from the same gradients. Their results are equal bit for bit if their devices round in
the same way: GPUs of one model, or CPUs with the same instruction set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch

from mjlab_dist.distributed.exchange import describe_device
from mjlab_dist.distributed.group import checksum, gather, overwrite_by_main, sum_over_ranks, world_size
from mjlab_dist.distributed.rank import in_words
from mjlab_dist.learn.metrics import Clock
from mjlab_dist.learn.moments import NormalizerMoments
from mjlab_dist.learn.update import Adam, make_adam

# Adam's state of a parameter, except the number of steps, which is the same on all ranks
MOMENTS = ("exp_avg", "exp_avg_sq")


class Replicas:
    """This rank's copy of the learner, with the operations that make the copies of all ranks equal.

    Attributes:
        unlike_ranks: Ranks that round differently from rank 0, in ascending order; the same list on all ranks.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        optimizers: Sequence[Adam],
        rate: torch.Tensor,
        normalizers: Mapping[str, NormalizerMoments],
        *,
        clock: Clock,
        equal: Sequence[torch.Tensor] = (),
    ) -> None:
        """Store references to the parts of a learner, and compare how ranks round. This is a collective.

        Tensors in ``equal`` differ between ranks only if ranks round differently.
        """
        size = sum(p.numel() for p in parameters)
        self.unlike_ranks = find_unlike_ranks(size, str(rate.device)) if world_size() > 1 else []
        self._parameters = parameters
        self._optimizers = optimizers
        self._rate = rate
        self._normalizers = normalizers
        self._clock = clock
        self._equal = equal

    def difference(self) -> str:
        """Return one line about the ranks that round differently."""
        verb = "rounds" if len(self.unlike_ranks) == 1 else "round"
        return (
            f"{in_words(self.unlike_ranks)} {verb} differently from rank 0, because devices or instruction sets "
            "differ; after every update, rank 0 therefore copies its learner to all ranks."
        )

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum tensors of one dtype over ranks, in place, in one collective."""
        if not any(tensor.numel() for tensor in tensors) or world_size() == 1:
            return
        with self._clock.waiting():
            total = sum_over_ranks(torch.cat([t.flatten() for t in tensors]))
        for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def average(self) -> torch.Tensor:
        """Average parameters, Adam's moments and learning rates over ranks, and merge the observation normalizers.

        Returns:
            Squared Euclidean distance of this rank's parameters from their mean over ranks, a scalar.
        """
        before = torch.cat([p.detach().flatten() for p in self._parameters])
        # Parameters, Adam's moments, learning rate
        tensors = list(self._averaged().values())
        for tensor in tensors:
            tensor.div_(world_size())
        self.sum(tensors)
        # Observation normalizers
        self.sum([moments.pending for moments in self._normalizers.values()])
        for normalizer in self._normalizers.values():
            normalizer.apply()
        self.agree()
        return (before - torch.cat([p.detach().flatten() for p in self._parameters])).square().sum()

    def agree(self) -> None:
        """Make all copies equal for the next iteration. If any rank rounds differently, rank 0 sends its copy to all.

        Call this after :meth:`NormalizerMoments.apply`.
        """
        if self.unlike_ranks:
            normalizers = [t for moments in self._normalizers.values() for t in moments.normalized()]
            with self._clock.waiting():
                overwrite_by_main([self._rate, *normalizers, *self._equal, *self.learned(self._parameters)])
        for moments in self._normalizers.values():
            moments.rebase()

    def learned(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return parameters, each with its Adam moments if an optimizer updates it."""
        states = self._states()
        return [t for p in parameters for t in (p.detach(), *(states[p][key] for key in MOMENTS if p in states))]

    def own(self) -> dict[str, torch.Tensor]:
        """Return, by name, copies of all tensors that ranks change independently between two averages."""
        return {name: tensor.clone() for name, tensor in self._differing().items()}

    def restore(self, own: Mapping[str, torch.Tensor]) -> None:
        """Restore the tensors that :meth:`own` copied."""
        for name, tensor in self._differing().items():
            tensor.copy_(own[name])

    def _states(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        return {p: state for optimizer in self._optimizers for p, state in optimizer.state.items()}

    def _averaged(self) -> dict[str, torch.Tensor]:
        moments = [state[key] for state in self._states().values() for key in MOMENTS]
        return {
            **{f"parameter/{i}": p.detach() for i, p in enumerate(self._parameters)},
            **{f"moment/{i}": moment for i, moment in enumerate(moments)},
            "learning_rate": self._rate,
        }

    def _differing(self) -> dict[str, torch.Tensor]:
        normalizers = {
            f"{network}/{name}": tensor
            for network, moments in self._normalizers.items()
            for name, tensor in moments.state().items()
        }
        return {**self._averaged(), **normalizers}


def find_unlike_ranks(size: int, device: str) -> list[int]:
    """Return the ranks that round differently from rank 0. This is a collective.

    The function compares the device, the instruction set and the results of some operations.
    """
    info = describe_device(device, None)
    instructions = torch.backends.cpu.get_cpu_capability() if device == "cpu" else ""
    name = f"{info.name}, {info.capability}, {instructions}".encode()
    digest = torch.tensor(int.from_bytes(hashlib.blake2b(name, digest_size=7).digest()), device=device)
    own, *others = gather(torch.stack([digest, checksum(_sample_results(size, device))])).tolist()
    return [rank for rank, other in enumerate(others, 1) if other != own]


def _sample_results(size: int, device: str) -> torch.Tensor:
    """Apply the operations of an update to fixed numbers, and return the results, (results,) in fp32."""
    # Numbers between -0.5 and 0.5. They are computed from integers, because all devices convert these exactly.
    integers = torch.arange(max(size, 64 * 64), device=device) * 2654435761 % 2**32
    numbers = (integers.double() / 2**32 - 0.5).float()
    # Norms of tensors with several alignments, because some libraries choose instructions by the alignment of a tensor,
    # and alignments differ between networks.
    norms = torch.stack([numbers[start:].dot(numbers[start:]).sqrt() for start in range(8)])
    matrix = numbers[: 64 * 64].view(64, 64)
    # Two steps of Adam
    parameters = numbers.flip(0).requires_grad_()
    parameters.grad = numbers / (norms[0] + 1e-6)
    optimizer = make_adam([parameters], torch.full((), 1e-3, device=device))
    for _ in range(2):
        optimizer.step()
    return torch.cat([norms, (matrix @ matrix).flatten(), parameters.detach()])
