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


def test_a_finished_command_does_not_search_its_objects_for_cycles():
    code = "import gc, sys; from mjlab_dist.cli import main; sys.argv = ['list-tasks']; main.list_tasks(); "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(len(gc.get_objects()), gc.get_freeze_count())"],
        capture_output=True,
        text=True,
        check=True,
    )
    found, frozen = map(int, done.stdout.splitlines()[-1].split())
    assert found < frozen / 100
