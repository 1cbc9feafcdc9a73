"""The notebook runs from top to bottom with the Python of these tests. The file in git has outputs of such a run."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import Command

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "cartpole.ipynb"

PARAMETERS = {"NUM_ENVS": 16, "ITERATIONS": 33}
"""Values for a short run. It needs at least 32 iterations, because the first episodes end in iteration 32."""

SECONDS = "seconds=4,", "seconds=0.1,"
"""The notebook's argument for a video of 4 s, and the argument for 0.1 s that replaces it."""

MP4 = b"ftyp"
"""Bytes 4 to 7 of every MP4 file."""

PNG = b"\x89PNG"


def code_cells(path: Path) -> dict[str, dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return {cell["id"]: cell for cell in cells if cell["cell_type"] == "code"}


def printed(cell: Mapping[str, Any]) -> str:
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def picture(cell: Mapping[str, Any]) -> bytes:
    (encoded,) = (output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {}))
    return base64.b64decode(encoded)


def test_the_stored_outputs_are_of_one_run_of_all_cells() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    nbformat.validate(notebook)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert {key for cell in notebook["cells"] for key in cell["metadata"]} <= {"execution"}
    cells = code_cells(NOTEBOOK)
    assert [cell["execution_count"] for cell in cells.values()] == list(range(1, len(cells) + 1))
    check_outputs(cells, "Trained 100 iterations")
    assert not re.search(r"\s/\w+/", "".join(map(printed, cells.values()))), "names a path of one machine"


def check_outputs(cells: Mapping[str, Mapping[str, Any]], last_line: str) -> None:
    assert last_line in printed(cells["train"])
    assert picture(cells["curves"]).startswith(PNG)
    (html,) = (output["data"]["text/html"] for output in cells["play"]["outputs"] if "data" in output)
    video = re.search(r'src="data:video/mp4;base64,([^"]+)"', "".join(html))
    assert video
    assert base64.b64decode(video[1])[4:8] == MP4
    assert len(re.findall(r"angle .* rad: action ", printed(cells["policy"]))) == 3
    # Output of child processes is in the notebook
    assert "Wrote " in printed(cells["export"])
    difference = re.search(r"largest difference: (\S+)", printed(cells["export"]))
    assert difference
    assert float(difference[1]) < 1e-5


def with_parameters(text: str) -> str:
    for name, value in PARAMETERS.items():
        text, count = re.subn(rf'"{name} = \d+', f'"{name} = {value}', text)
        assert count == 1, name
    assert text.count(SECONDS[0]) == 1
    return text.replace(*SECONDS)


@pytest.mark.slow
@pytest.mark.long
def test_the_notebook_runs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # this variable would hide the output of child processes
    (command.cwd / NOTEBOOK.name).write_text(with_parameters(NOTEBOOK.read_text()))
    # Kernels and settings of the user have no effect
    own = ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    # Use one thread: with tensors as small as these, more threads are not faster
    env = {name: str(command.cwd / name.lower()) for name in own} | {"OMP_NUM_THREADS": "1"}
    done = command("jupyter-execute", "--inplace", "--startup_timeout=240", NOTEBOOK.name, env=env)
    assert done.code == 0, done.err

    check_outputs(code_cells(command.cwd / NOTEBOOK.name), f"Trained {PARAMETERS['ITERATIONS']} iterations")


@pytest.mark.slow
def test_a_mistake_is_one_line(command: Command) -> None:
    done = command("ipython", "--no-banner", "--colors=NoColor", "-c", "import mjlab_dist; mjlab_dist.train('cartpol')")
    (line,) = done.out.splitlines()
    assert line.startswith("UserError: unknown task cartpol: ")
