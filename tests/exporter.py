"""Import all modules that an export to ONNX needs, so that forks of this process do not import them again.

Torch imports most of them only during an export. Therefore, this module exports a small network. It does not import
onnxruntime, because onnxruntime starts a thread, and only a process with a single thread can be forked.
"""

import logging
import warnings

import torch
import tqdm

interval, tqdm.tqdm.monitor_interval = tqdm.tqdm.monitor_interval, 0  # start no monitor thread
logging.disable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(torch.nn.Linear(1, 1).eval(), (torch.ones(1, 1),), dynamo=True, verbose=False)
logging.disable(logging.NOTSET)
tqdm.tqdm.monitor_interval = interval
