"""Convert exported policies to the contents of files, and run such files."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mujoco
import numpy as np
import torch

from mjlab_dist.imports import start_up
from mjlab_dist.play.export_network import ExportedPolicy

# Version of ONNX's set of operators, from December 2022
OPSET = 18

# Name of the description inside a TorchScript file
DESCRIPTION = "description.json"


# Function that computes one control step of n envs with an exported policy, from its inputs
Runner = Callable[..., list[torch.Tensor]]


def to_onnx(exported: ExportedPolicy, description: Mapping[str, Any]) -> bytes:
    """Return a policy as an ONNX file.

    The inputs are ``obs`` and ``state``, the outputs ``actions``, ``targets`` and ``next_state``. A policy without a
    state has neither ``state`` nor ``next_state``. Each row is one env, and any number of rows is allowed.
    """
    import onnx  # an extra

    has_state = exported.num_states > 0
    num_rows = torch.export.Dim("rows")
    with _quietly(), start_up():  # start_up speeds up the imports: this call imports many modules of torch
        program = torch.onnx.export(
            exported,
            _example(exported),
            dynamo=True,
            opset_version=OPSET,
            input_names=["obs", "state"][: 1 + has_state],
            output_names=["actions", "targets", "next_state"][: 2 + has_state],
            dynamic_shapes=({0: num_rows}, {0: num_rows})[: 1 + has_state],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    # The oldest format with these operators, so that older runtimes can read the file
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    texts = {name: json.dumps(value, allow_nan=False) for name, value in description.items()}
    onnx.helper.set_model_props(model, texts)
    # Remove the source lines that torch stores at every node, because they name directories of this machine
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def run_onnx(contents: bytes) -> Runner:
    """Return a function that runs an ONNX file with ONNX Runtime, on one core."""
    import onnxruntime  # an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs = session.run(None, dict(zip(names, (one.numpy() for one in inputs), strict=True)))
        return [torch.from_numpy(np.asarray(one)) for one in outputs]

    return run


def to_torchscript(exported: ExportedPolicy, description: Mapping[str, Any]) -> bytes:
    """Return a policy as a TorchScript file, with the inputs and outputs of the ONNX file."""
    file = io.BytesIO()
    with _quietly(), torch.no_grad():
        traced = torch.jit.trace(exported, _example(exported), check_trace=False)
        torch.jit.save(traced, file, _extra_files={DESCRIPTION: json.dumps(description, allow_nan=False)})
    return file.getvalue()


def run_torchscript(contents: bytes) -> Runner:
    """Return a function that runs a TorchScript file with torch."""
    with _quietly():
        module = torch.jit.load(io.BytesIO(contents))

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(module(*inputs))

    return run


def to_mjb(model: mujoco.MjModel) -> bytes:
    """Return a model as the contents of an MJB file, with all meshes. Only the same version of MuJoCo can read it."""
    buffer = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def _example(exported: ExportedPolicy) -> tuple[torch.Tensor, ...]:
    """Return inputs with two rows, because with one row, torch would treat the number of rows as a constant."""
    obs = torch.zeros(2, exported.num_inputs)
    return (obs, torch.zeros(2, exported.num_states)) if exported.num_states else (obs,)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide torch's warnings about its own code and about the future of TorchScript."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
