"""The policy's distribution: rsl_rl's Gaussian, with a bounded standard deviation and without checks on the device."""

from __future__ import annotations

import torch
from rsl_rl.modules.distribution import GaussianDistribution
from torch.distributions import Normal

# Upper bound of the standard deviation, as in rsl_rl. The lower bound is `min_std` here, and 1e-6 in rsl_rl.
MAX_STD = 1e6


class BoundedGaussian(GaussianDistribution):
    """Gaussian whose standard deviation does not depend on the observation and stays in its range."""

    def __init__(self, output_dim: int, init_std: float, min_std: float, std_type: str) -> None:
        """Create the parameter of the standard deviation."""
        super().__init__(output_dim, init_std=init_std, std_range=(min_std, MAX_STD), std_type=std_type)

    def update(self, mlp_output: torch.Tensor) -> None:
        """Set the mean, (num_envs, output_dim), and the current standard deviation.

        Unlike in rsl_rl, the standard deviation is not clamped in this method: the gradient of a clamp is zero at the
        bound, so the standard deviation could not grow again. :meth:`project` keeps it in its range instead.
        """
        self._distribution = Normal(mlp_output, self.current_std())

    def current_std(self) -> torch.Tensor:
        """Return the standard deviation, (output_dim,)."""
        return self.std_param if self.std_type == "scalar" else self.log_std_param.exp()

    @torch.no_grad()
    def sample(self) -> torch.Tensor:
        """Draw actions, (num_envs, output_dim).

        This is ``torch.normal`` without its check that no standard deviation is negative or NaN. On a GPU, a failed
        check would make the CUDA context of the process unusable. Without the check, training finds the NaN in the
        actions and reports it.
        """
        return self.mean + self.std * torch.randn_like(self.mean)

    @torch.no_grad()
    def project(self) -> None:
        """Move the parameter back into its range. Call this after each optimizer step and after loading."""
        if self.std_type == "scalar":
            self.std_param.clamp_(*self.std_range)
        else:
            self.log_std_param.clamp_(*self.log_std_range)
