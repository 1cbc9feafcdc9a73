"""Shard large parameters over ranks: FSDP2's ``fully_shard`` on a mesh of (replicas, shards)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from mjlab_dist.distributed.group import overwrite_by_main, world_size

# FSDP2 takes half a second to import, and few runs use it. Functions that need FSDP2 therefore import it themselves.
if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ShardedParameter:
    """Parameter that is split over ranks."""

    # Key in the model's state dict, with the prefix actor. or critic..
    name: str
    # The parameter in the module, which FSDP2 has replaced with a DTensor
    parameter: DTensor
    # This rank's part, which shares memory with the DTensor; the optimizer updates it
    local: nn.Parameter
    dim: int
    # Size of the whole parameter, in MiB
    size_mb: float


class Sharding:
    """Sharded parameters, and conversion between whole tensors and this rank's parts.

    Attributes:
        sharded: Sharded parameters by the DTensor's id; empty if no parameter is large enough, or ``num_devices`` is 1.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        num_devices: int,
        min_size_mb: float,
        device: str,
        reduce_dtype: torch.dtype | None,
    ) -> None:
        """Shard all parameters that are large enough."""
        self.sharded: dict[int, ShardedParameter] = {}
        self._modules: list[Any] = []
        self._num_devices = num_devices
        if num_devices == 1:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        # Mesh of (replicas, shards)
        self._mesh = init_device_mesh(
            torch.device(device).type,
            (world_size() // num_devices, num_devices),
            mesh_dim_names=("batch", "fsdp"),
        )
        # Shard each module that has large parameters
        policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
        for prefix, model in models.items():
            for path, module in list(model.named_modules()):
                self._shard_module(f"{prefix}.{path}", module, min_size_mb, policy)

    def _shard_module(self, path: str, module: nn.Module, min_size_mb: float, policy: Any) -> None:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Shard

        # Parameters of this module that are large enough, with the dimension to split
        own = dict(module.named_parameters(recurse=False))
        dims = {name: self._dim(parameter, min_size_mb) for name, parameter in own.items()}
        large = {id(own[name]): dim for name, dim in dims.items() if dim is not None}
        if not large:
            return
        # Apply FSDP2. Whole parameters are kept from a forward pass to its backward pass, and during a rollout.
        wrapped = fully_shard(
            module,
            mesh=self._mesh,
            reshard_after_forward=False,
            shard_placement_fn=lambda parameter: Shard(large[id(parameter)]),
            mp_policy=policy,
            ignored_params={p for p in own.values() if id(p) not in large},
        )
        self._modules.append(wrapped)

        # Record the DTensors that replaced these parameters
        for name, parameter in module.named_parameters(recurse=False):
            dim = dims[name]
            if dim is None:
                continue
            assert isinstance(parameter, DTensor)
            self.sharded[id(parameter)] = ShardedParameter(
                name=f"{path}.{name}",
                parameter=parameter,
                local=nn.Parameter(parameter.to_local()),
                dim=dim,
                size_mb=parameter.numel() * 4 / MIB,
            )

    def _dim(self, parameter: nn.Parameter, min_size_mb: float) -> int | None:
        """Return the dimension to split, the largest that divides evenly over the devices; None to split nothing."""
        if parameter.dim() < 2 or parameter.numel() * 4 < min_size_mb * MIB:
            return None
        divisible = [d for d in range(parameter.dim()) if parameter.shape[d] % self._num_devices == 0]
        return max(divisible, key=lambda d: parameter.shape[d], default=None)

    def optimized(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the tensor that the optimizer updates: the parameter, or this rank's part of it if it is sharded."""
        entry = self.sharded.get(id(parameter))
        return entry.local if entry else parameter

    def reshard(self) -> None:
        """Free the whole parameters after a forward pass, so that each rank holds only its own parts again."""
        for module in self._modules:
            module.reshard()

    def collect_gradients(self, prefix: str) -> list[torch.Tensor]:
        """Move sharded gradients, which FSDP2 has reduced, to the tensors that the optimizer updates."""
        parts: list[torch.Tensor] = []
        for entry in self.sharded.values():
            if entry.name.startswith(prefix):
                gradient: Any = entry.parameter.grad
                part: torch.Tensor = gradient.to_local()
                entry.local.grad, entry.parameter.grad = part, None
                parts.append(part)
        return parts

    def sum_over_shards(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks that together hold one replica of the parameters, in place, and return it."""
        dist.all_reduce(value, group=self._mesh.get_group("fsdp"))
        return value

    def overwrite_by_first_replica(self, parts: Sequence[torch.Tensor]) -> None:
        """Overwrite this rank's parts with the copies of these parts on the first replica, in one message."""
        if parts:
            overwrite_by_main(parts, self._mesh.get_group("batch"))

    def whole(self, parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """Return the whole tensor of which this rank has a part. If it is sharded, all ranks must call this method.

        Args:
            local: This rank's part of the parameter, or of a tensor of the same shape such as an Adam moment.
        """
        entry = self.sharded.get(id(parameter))
        if entry is None:
            return local
        return self._as_parts(local, entry).full_tensor()

    def part(self, parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole tensor, or the tensor itself if the parameter is not sharded."""
        entry = self.sharded.get(id(parameter))
        if entry is None:
            return whole
        # Contiguous, because fused Adam assumes that all its tensors have the same memory layout
        return whole.chunk(self._num_devices, entry.dim)[self._mesh.get_local_rank("fsdp")].contiguous()

    def whole_state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return a module's state dict with whole tensors. If a parameter is sharded, all ranks must call this."""
        self.reshard()
        state = module.state_dict(keep_vars=True)
        return {name: self.whole(t, self.optimized(t)).detach() for name, t in state.items()}

    def load_state(self, module: nn.Module, state: dict[str, torch.Tensor], strict: bool) -> None:
        """Load a state dict with whole tensors into a module."""
        self.reshard()
        own = module.state_dict(keep_vars=True)
        placed: dict[str, torch.Tensor] = {}
        for name, whole in state.items():
            entry = self.sharded.get(id(own.get(name)))
            placed[name] = self._as_parts(self.part(entry.parameter, whole), entry) if entry else whole
        module.load_state_dict(placed, strict=strict)

    def _as_parts(self, local: torch.Tensor, entry: ShardedParameter) -> DTensor:
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, self._mesh, entry.parameter.placements)

    def table(self, min_size_mb: float) -> str:
        """Return a text that lists the sharded parameters, for printing."""
        if not self.sharded:
            return (
                f"Nothing is sharded: no parameter has two or more dimensions, {min_size_mb:g} MiB or more, and a "
                f"dimension divisible by {self._num_devices}."
            )
        kept = 1 - 1 / self._num_devices
        lines = [
            f"  {e.name}  {tuple(e.parameter.shape)}  dimension {e.dim} over {self._num_devices} ranks  "
            f"{e.size_mb:.1f} MiB"
            for e in self.sharded.values()
        ]
        total = sum(e.size_mb for e in self.sharded.values())
        # 4 tensors per parameter: the parameter, its gradient and two Adam moments
        saved = (
            f"Memory saved on every rank while parameters are not in use: {4 * total * kept:.1f} MiB of parameters, "
            "gradients and Adam moments."
        )
        return "\n".join(["Sharded parameters:", *lines, saved])
