"""Settings that apply to every command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_every_command_orders_gpus_by_pci_bus_unless_the_user_sets_an_order(order: str | None):
    code = (
        "import os, sys; from mjlab_dist.cli import main; sys.argv = ['mjlab-dist', 'list-tasks']; main.umbrella(); "
        "print(os.environ['CUDA_DEVICE_ORDER'])"
    )
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_ORDER"}
    environ |= {"CUDA_DEVICE_ORDER": order} if order else {}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == (order or "PCI_BUS_ID")


@pytest.mark.parametrize("imported", ["torch", "onnx", "triton"])
def test_the_shutdown_searches_for_cycles_only_if_a_library_reports_what_is_left(imported: str):
    code = (
        "import gc, sys; from mjlab_dist.cli import main; sys.argv = ['list-tasks']; "
        f"sys.modules[{imported!r}] = sys; main.list_tasks(); print(gc.get_freeze_count() > len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(imported == "torch")
