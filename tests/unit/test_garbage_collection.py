"""The garbage collector is paused, and its state is restored afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mjlab_dist.imports import frozen, no_gc


@pytest.fixture(autouse=True)
def _enable_collector() -> Iterator[None]:
    """Start with an enabled collector and no frozen objects.

    After the test, enable the collector again, and freeze all objects if some were frozen before the test.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()
    if was_frozen:
        gc.freeze()


def is_in(generation: int, wanted: object) -> bool:
    return any(found is wanted for found in gc.get_objects(generation))


@pytest.mark.parametrize("was_enabled", [True, False])
@pytest.mark.parametrize("promotes", [True, False])
def test_the_collector_is_paused_and_then_restored(was_enabled: bool, promotes: bool) -> None:
    if not was_enabled:
        gc.disable()
    with no_gc(promotes=promotes):
        assert not gc.isenabled()
        with no_gc(promotes=promotes):
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner pause ended the outer one"
    assert gc.isenabled() == was_enabled


def test_the_pause_ends_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), no_gc():
        raise RuntimeError("inside")
    assert gc.isenabled()


@pytest.mark.parametrize("promotes", [True, False])
def test_new_objects_are_promoted_if_requested(promotes: bool) -> None:
    with no_gc(promotes=promotes):
        made = [object()]
        assert is_in(0, made)
    assert is_in(2, made) == promotes


def test_objects_that_the_user_froze_stay_frozen() -> None:
    made = [object()]
    gc.freeze()
    with no_gc(promotes=True):
        pass
    assert not any(is_in(generation, made) for generation in range(3))


@pytest.mark.slow
def test_only_new_objects_are_collected_while_others_are_frozen() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    old = weakref.ref(Node())
    with frozen():
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
        assert old() is not None
    gc.collect()
    assert old() is None
