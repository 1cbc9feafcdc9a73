"""Read the network files of learned motors."""

from __future__ import annotations

import pickle
import warnings

import torch

from mjlab_dist.errors import UserError
from mjlab_dist.sim.scene import find_file

_CONVERT = 'torch.save(torch.jit.load("motor.pt").state_dict(), "weights.pt")'


def read_layers(flag: str, file: str, num_inputs: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Read the linear layers of a network with one output, as weights (outputs, inputs) and biases (outputs,).

    Only tensors are read. A TorchScript or ONNX file is a program, and the file may come from somebody else.

    Args:
        flag: The flag and its value, for messages.
        file: Path of a state dict, or ``package.module:file``.
        num_inputs: Number of inputs.

    Raises:
        UserError: If there is no such file, or its network has the wrong form.
    """
    path = find_file(flag, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # before torch refuses TorchScript, it also warns
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, pickle.UnpicklingError, EOFError) as error:
        raise UserError(
            f"{flag}: is not a state dict; write one with torch.save, from TorchScript with {_CONVERT}"
        ) from error
    if not isinstance(state, dict) or not all(map(_is_plain, state.values())):
        raise UserError(f"{flag}: is not a state dict of numbers; write it with torch.save(network.state_dict(), file)")
    tensors = [tensor.detach().float() for tensor in state.values()]
    weights, biases = tensors[::2], tensors[1::2]
    widths = [num_inputs, *(bias.numel() for bias in biases)]
    fits = len(weights) == len(biases) > 0 and widths[-1] == 1 and all(bias.dim() == 1 for bias in biases)
    if not fits or [weight.shape for weight in weights] != list(zip(widths[1:], widths[:-1], strict=True)):
        found = " ".join("x".join(map(str, tensor.shape)) for tensor in tensors) or "none"
        raise UserError(
            f"{flag}: its tensors are {found}; use linear layers with biases, with {num_inputs} inputs (two per entry "
            "of history) and 1 output"
        )
    return list(zip(weights, biases, strict=True))


def _is_plain(value: object) -> bool:
    """Return whether a value is a dense tensor of floating-point numbers; torch also reads sparse and empty ones."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.strided and value.device.type == "cpu" and value.is_floating_point()
