"""Import what an export to ONNX needs. Otherwise torch imports most of it during an export.

This module does not import onnxruntime, which starts a thread: only a process with a single thread can be forked.
"""

import logging
import warnings

import torch
import tqdm

interval, tqdm.tqdm.monitor_interval = tqdm.tqdm.monitor_interval, 0  # tqdm's monitor is a thread
logging.disable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(torch.nn.Linear(1, 1).eval(), (torch.ones(1, 1),), dynamo=True, verbose=False)
logging.disable(logging.NOTSET)
tqdm.tqdm.monitor_interval = interval
