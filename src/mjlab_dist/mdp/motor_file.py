"""Read the network files of learned motors."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mjlab_dist.errors import UserError
from mjlab_dist.sim.scene import find_file

if TYPE_CHECKING:
    import onnx

FUNCTIONS = {
    "softsign": torch.nn.functional.softsign,
    "elu": torch.nn.functional.elu,
    "relu": torch.nn.functional.relu,
    "tanh": torch.tanh,
}
"""Activations by name."""


def read_layers(flag: str, file: str, num_inputs: int, activation: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Read the linear layers of a network with one output, as weights (outputs, inputs) and biases (outputs,).

    Args:
        flag: The flag and its value, for messages.
        file: Path of a TorchScript module, an ONNX file (``.onnx``) or a state dict, or ``package.module:file``.
        num_inputs: Number of inputs.
        activation: Activation between the layers, a key of :data:`FUNCTIONS`. The layers with this activation must
            compute the same outputs as the TorchScript module or the ONNX file.

    Raises:
        UserError: If there is no such file, or its network has the wrong form.
    """
    # Layers
    path = find_file(flag, file)
    evaluate, tensors = _read_onnx(flag, path) if path.suffix == ".onnx" else _read_torch(flag, path)
    weights, biases = tensors[::2], tensors[1::2]
    widths = [num_inputs, *(len(bias) for bias in biases)]
    fits = len(weights) == len(biases) > 0 and widths[-1] == 1
    shapes = zip(widths[1:], widths[:-1], strict=True)
    if (
        not fits
        or [tuple(weight.shape) for weight in weights] != list(shapes)
        or any(bias.dim() != 1 for bias in biases)
    ):
        found = " ".join("x".join(map(str, tensor.shape)) for tensor in tensors) or "none"
        raise UserError(
            f"{flag}: its tensors are {found}; use linear layers with biases, with {num_inputs} inputs (two per entry "
            "of history) and 1 output"
        )
    layers = list(zip(weights, biases, strict=True))
    # Compare the output of the layers with that of the network
    if evaluate is not None:
        # Small inputs, at which most activations are nearly linear, and large ones
        scales = torch.logspace(-1.0, 1.0, 20).view(-1, 1)
        x = scales * torch.randn(20, num_inputs, generator=torch.Generator().manual_seed(0))
        y = x
        for i, (weight, bias) in enumerate(layers):
            y = torch.nn.functional.linear(y, weight, bias)
            y = y if i + 1 == len(layers) else FUNCTIONS[activation](y)
        if not torch.allclose(evaluate(x), y, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"{flag}: linear layers with activation {activation} do not reproduce the outputs of this network; set "
                "activation to the network's own"
            )
    return layers


def _read_torch(flag: str, path: Path) -> tuple[Callable[[torch.Tensor], torch.Tensor] | None, list[torch.Tensor]]:
    """Return the TorchScript module, or None for a state dict, and the tensors in the order of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, but most published networks are TorchScript
        try:
            module = torch.jit.load(path, map_location="cpu").eval()
            state = module.state_dict()
        except RuntimeError:
            module = None
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
            except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
                raise UserError(
                    f"{flag}: is neither TorchScript nor a state dict; use torch.jit.save or torch.save"
                ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise UserError(f"{flag}: is neither TorchScript nor a state dict; use torch.jit.save or torch.save")
    return module, [tensor.detach().float() for tensor in state.values()]


def _read_onnx(flag: str, path: Path) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[torch.Tensor]]:
    """Return a function that evaluates an ONNX file, and the weight and bias of each linear layer, first to last."""
    # Read the file
    try:
        import onnx  # noqa: PLC0415 (an optional package)
        from google.protobuf.message import DecodeError  # noqa: PLC0415
    except ImportError as error:
        raise UserError(f"{flag}: an ONNX file needs the package onnx; run uv pip install onnx") from error
    try:
        model = onnx.load(path)
        constants = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise UserError(f"{flag}: is not an ONNX file, or its data is missing; export the network again") from error
    # A linear layer is a Gemm node, or a MatMul node and an Add node. Other nodes are not read, because read_layers
    # compares the outputs. The comparison fails if the network has other nodes than layers and activations.
    tensors: list[np.ndarray] = []
    product = ""
    for node in model.graph.node:
        numbers = [constants[name] for name in node.input if name in constants]
        if node.op_type == "Gemm":
            is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            tensors += [one if one.ndim != 2 or is_transposed else one.T for one in numbers]
        elif node.op_type == "MatMul":
            tensors += [one.T for one in numbers]
            product = node.output[0]
        elif node.op_type == "Add" and product in node.input:
            tensors += numbers
    # Function that evaluates the network
    inputs = [one for one in model.graph.input if one.name not in constants]
    if len(inputs) != 1:
        raise UserError(f"{flag}: has {len(inputs)} inputs; use a network with one input")
    evaluate = functools.partial(_evaluate_onnx, flag, model, inputs[0])
    return evaluate, [torch.from_numpy(np.array(tensor)).float() for tensor in tensors]


def _evaluate_onnx(flag: str, model: onnx.ModelProto, given: onnx.ValueInfoProto, rows: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a model, (n, 1), for rows of its input, (n, k)."""
    import onnx  # noqa: PLC0415 (an optional package)
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

    kind = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
    # An exported network may accept only a fixed number of rows. Each row is repeated to reach this number.
    sizes = [size.dim_value for size in given.type.tensor_type.shape.dim]
    num_rows = sizes[0] if sizes and sizes[0] else 1
    outputs: list[torch.Tensor] = []
    try:
        evaluator = ReferenceEvaluator(model)
        for row in rows:
            results = evaluator.run(None, {given.name: row.expand(num_rows, -1).numpy().astype(kind)})
            assert isinstance(results, list)
            outputs.append(torch.from_numpy(np.asarray(results[0], dtype=np.float32)).reshape(num_rows, -1)[0])
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"{flag}: cannot be evaluated: {str(error).splitlines()[0]}; export it as TorchScript"
        ) from error
    return torch.stack(outputs)
