"""Compilation of kernels for the CPU: all threads and later programs use one precompiled header."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warp as wp

from mjlab_dist.messages import listening
from mjlab_dist.sim import recorder, start_warp

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An initially empty cache of kernels, and an empty directory for temporary files."""
    start_warp("cpu")
    cache, temporary = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wp.config, "kernel_cache_dir", str(cache))
        patch.setattr(tempfile, "tempdir", str(temporary))
        yield cache


def program(*values: int, module: str | None = None) -> tuple[Callable[[], None], wp.array[int]]:
    """Return a program that adds up numbers, and the array with its sum.

    Without `module`, each kernel has its own module.
    """
    total = wp.zeros(1, dtype=int, device="cpu")

    def kernel_of(value: int) -> wp.Kernel:
        def add(total: wp.array(dtype=int)):  # pyright: ignore[reportInvalidTypeForm]
            total[0] += wp.static(value)

        return wp.Kernel(add, key=f"add_{value}", module=wp.get_module(f"{__name__}.{module or value}"))

    launched = [kernel_of(value) for value in values]

    def launch() -> None:
        for kernel in launched:
            wp.launch(kernel, dim=1, inputs=[total], device="cpu")

    return launch, total


def result(*values: int, module: str | None = None) -> int:
    """Compile the kernels of a program, and return the sum that it computes."""
    launch, total = program(*values, module=module)
    recorder.prepare("cpu", launch)
    launch()
    return int(total.numpy()[0])


def test_one_header_is_precompiled_and_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wp.config, "log_level", wp.LOG_DEBUG)
    assert result(1, 2, 3) == 6
    assert capfd.readouterr().out.count("Generating precompiled header") == 1
    (header,) = cache.glob("wp_headers_*/*")
    assert result(10, 20) == 30
    assert "Generating precompiled header" not in capfd.readouterr().out
    assert [*cache.glob("wp_headers_*/*")] == [header]
    assert not list(Path(tempfile.gettempdir()).iterdir()), "no temporary files, which a killed rank could not delete"


@pytest.mark.usefixtures("cache")
def test_a_loaded_module_is_compiled_again_only_if_a_kernel_was_added() -> None:
    events: list[str] = []
    with listening(lambda event: events.append(event["kind"])):
        assert result(7, module="shared") == 7
        assert set(events) == {"compiling"}
        events.clear()
        added, total = program(8, module="shared")
        recorder.prepare("cpu", added)
        assert set(events) == {"compiling"}
        events.clear()
        recorder.prepare("cpu", added)
        assert events == []
    added()
    assert total.numpy() == 8


def test_damaged_and_unfinished_headers_are_replaced(cache: Path) -> None:
    assert result(4) == 4
    (header,) = cache.glob("wp_headers_*/*")
    header.write_bytes(header.read_bytes()[:1000])
    header.with_name("header.pch.tmp").touch()
    assert result(5) == 5
    assert result(6) == 6
    assert [*cache.glob("wp_headers_*/*")] == [header]
    assert header.stat().st_size > 1000
