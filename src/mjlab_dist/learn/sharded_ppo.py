"""PPO whose large parameters are split over ranks: FSDP2's ``fully_shard`` on a mesh of (replicas, shards)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from mjlab_dist.distributed.group import overwrite_by_main, world_size
from mjlab_dist.distributed.synchronizer import FORMATS
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.replicas import MOMENTS
from mjlab_dist.learn.update import make_adam

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Part:
    """This rank's part of a parameter that is split over ranks."""

    # Key in the model's state dict, with the prefix actor. or critic..
    name: str
    # The parameter in the module, which FSDP2 has replaced with a DTensor
    parameter: DTensor
    # This rank's part, which shares memory with the DTensor; the optimizer updates it
    local: nn.Parameter

    @property
    def dim(self) -> int:
        """The dimension that is split."""
        placement = self.parameter.placements[-1]
        assert isinstance(placement, Shard)
        return placement.dim

    def as_dtensor(self, local: torch.Tensor) -> DTensor:
        """Return parts of this parameter's shape, such as those of an Adam moment, as one tensor over all ranks."""
        return DTensor.from_local(local, self.parameter.device_mesh, self.parameter.placements)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a tensor of the whole parameter's shape."""
        mesh = self.parameter.device_mesh
        # Contiguous, because fused Adam assumes that all its tensors have the same memory layout
        return whole.chunk(mesh.size(1), self.dim)[mesh.get_local_rank("fsdp")].contiguous()


class ShardedPPO(PPO):
    """PPO with policy and value function split over groups of ``fsdp_devices`` ranks.

    A parameter is split if it has two or more dimensions, is large enough, and one of its dimensions divides evenly.
    FSDP2 gathers and frees whole parameters, and reduces their gradients. The optimizer updates this rank's parts.
    :meth:`save` and :meth:`load` exchange whole tensors, with any number of shards.

    Attributes:
        parts: The parameters that are split, by their number in the optimizer.
    """

    def _make_optimizer(self) -> list[list[nn.Parameter]]:
        # Split each module that has large parameters
        num_devices = self._config.fsdp_devices
        shape = (world_size() // num_devices, num_devices)
        self._mesh = init_device_mesh(torch.device(self.device).type, shape, mesh_dim_names=("batch", "fsdp"))
        for model in self.models.values():
            for module in list(model.modules()):
                self._shard(module)
        # Optimizer of this rank's parts, and of whole parameters
        self.parts: dict[int, Part] = {}
        optimized: list[nn.Parameter] = []
        whole: dict[str, list[nn.Parameter]] = {name: [] for name in self.models}
        for name, model in self.models.items():
            for path, parameter in model.named_parameters():
                if isinstance(parameter, DTensor):
                    local = nn.Parameter(parameter.to_local())
                    self.parts[len(optimized)] = Part(name=f"{name}.{path}", parameter=parameter, local=local)
                    optimized.append(local)
                else:
                    whole[name].append(parameter)
                    optimized.append(parameter)
        self.optimizer = make_adam(optimized, self.rate)
        if self.parts:
            # The update reuses the parameters that FSDP2 gathers in a rollout, so they must not be inference tensors.
            self.no_grad = torch.no_grad
            # FSDP2 allocates and gathers parameters in each forward pass, which a CUDA graph cannot contain.
            self.can_capture = False
        return list(whole.values())

    def _shard(self, module: nn.Module) -> None:
        """Split the large parameters of a module, without those of its children."""
        own = list(module.parameters(recurse=False))
        dims = {p: dim for p in own if (dim := self._dim(p)) is not None}
        if dims:
            # Whole parameters are kept from a forward pass to its backward pass, and during a rollout.
            fully_shard(
                module,
                mesh=self._mesh,
                reshard_after_forward=False,
                shard_placement_fn=lambda parameter: Shard(dims[parameter]),
                mp_policy=MixedPrecisionPolicy(reduce_dtype=FORMATS[self._config.sync.compression]),
                ignored_params={p for p in own if p not in dims},
            )

    def _dim(self, parameter: nn.Parameter) -> int | None:
        """Return the dimension to split, the largest that divides evenly over the devices; None to split nothing."""
        if parameter.dim() < 2 or parameter.numel() * 4 < self._config.sync.fsdp_min_size_mb * MIB:
            return None
        divisible = [d for d in range(parameter.dim()) if parameter.shape[d] % self._mesh.size(1) == 0]
        return max(divisible, key=lambda d: parameter.shape[d], default=None)

    def _clip(self) -> None:
        for name, gradients in zip(self.models, self._gradients.groups, strict=False):
            # Move gradients, which FSDP2 has reduced, to the tensors that the optimizer updates
            parts: list[torch.Tensor] = []
            for part in self.parts.values():
                if part.name.startswith(f"{name}."):
                    reduced = part.parameter.grad
                    assert isinstance(reduced, DTensor)
                    part.local.grad, part.parameter.grad = reduced.to_local(), None
                    parts.append(part.local.grad)
            # Clip by the norm over all parts
            squares = gradients.dot(gradients)
            if parts:
                sharded = torch.stack([g.square().sum() for g in parts]).sum()
                dist.all_reduce(sharded, group=self._mesh.get_group("fsdp"))
                squares += sharded
            factor = self._clip_factor(squares)
            for gradient in (gradients, *parts):
                gradient.mul_(factor)

    def agree(self) -> None:
        """Make the learners of all ranks equal: parts too become those of the first replica."""
        super().agree()
        if self.replicas.unlike_ranks:
            parts = self.replicas.learned(part.local for part in self.parts.values())
            with self.clock.waiting():
                overwrite_by_main(parts, self._mesh.get_group("batch"))

    def network_state(self, name: str) -> dict[str, torch.Tensor]:
        """Return the whole tensors of the network ``name``. This is a collective."""
        state = super().network_state(name)
        return {key: t.full_tensor() if isinstance(t, DTensor) else t for key, t in state.items()}

    def save(self) -> dict[str, Any]:
        """Return the learner's state as unmodified rsl_rl does, with whole tensors. This is a collective."""
        state = super().save()
        moments = state["optimizer_state_dict"]["state"]
        for i, part in self.parts.items():
            if i in moments:
                joined = {key: part.as_dtensor(moments[i][key]).full_tensor() for key in MOMENTS}
                moments[i] = {**moments[i], **joined}
        return state

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Load the result of :meth:`save`, of PPO or of unmodified rsl_rl, as :meth:`PPO.load` does."""
        loaded = dict(loaded_dict)
        parts = {part.name: part for part in self.parts.values()}
        for name in self.models:
            tensors: Mapping[str, torch.Tensor] = loaded[f"{name}_state_dict"]
            loaded[f"{name}_state_dict"] = {
                key: part.as_dtensor(part.of(t)) if (part := parts.get(f"{name}.{key}")) else t
                for key, t in tensors.items()
            }
        if load_cfg is None or load_cfg.get("optimizer"):
            saved = loaded["optimizer_state_dict"]
            moments = dict(saved["state"])
            for i, part in self.parts.items():
                if i in moments:
                    moments[i] = {**moments[i], **{key: part.of(moments[i][key]) for key in MOMENTS}}
            loaded["optimizer_state_dict"] = {**saved, "state": moments}
        return super().load(loaded, load_cfg, strict)

    def notes(self) -> list[str]:
        """Return lines about the learner for the user, with a table of the parameters that are split."""
        num_devices = self._config.fsdp_devices
        if not self.parts:
            nothing = (
                "Nothing is sharded: no parameter has two or more dimensions, "
                f"{self._config.sync.fsdp_min_size_mb:g} MiB or more, and a dimension divisible by {num_devices}."
            )
            return [nothing, *super().notes()]
        lines = [
            f"  {part.name}  {tuple(part.parameter.shape)}  dimension {part.dim} over {num_devices} ranks  "
            f"{part.parameter.numel() * 4 / MIB:.1f} MiB"
            for part in self.parts.values()
        ]
        # 4 tensors of 4 bytes per number: the parameter, its gradient and two Adam moments
        total = 16 * sum(part.parameter.numel() for part in self.parts.values()) / MIB
        saved = (
            f"Memory saved on every rank while parameters are not in use: {total * (1 - 1 / num_devices):.1f} "
            "MiB of parameters, gradients and Adam moments."
        )
        return ["\n".join(["Sharded parameters:", *lines, saved]), *super().notes()]
