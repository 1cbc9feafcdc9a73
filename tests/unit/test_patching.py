"""A replaced attribute is restored exactly."""

from __future__ import annotations

import types

import pytest

from mjlab_dist.imports import patched


class Base:
    def inherited(self) -> str:
        return "inherited"


class Library(Base):
    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    def method(self) -> str:
        return "method"


def test_an_attribute_of_a_module_is_replaced_and_restored() -> None:
    module = types.ModuleType("library")
    original = module.__dict__["launch"] = lambda: "launched"
    with patched(module, "launch", lambda: "refused"):
        assert module.launch() == "refused"
    assert module.launch is original


@pytest.mark.parametrize("name", ["static", "of_class", "method", "inherited"])
def test_static_and_class_methods_keep_their_kind(name: str) -> None:
    before = dict(vars(Library))
    with patched(Library, name, lambda *_: "replaced"):
        assert getattr(Library(), name)() == "replaced"
    assert dict(vars(Library)) == before
    assert getattr(Library(), name)() == ("Library" if name == "of_class" else name)


def test_a_patched_object_falls_back_to_its_class_afterwards() -> None:
    library = Library()
    with patched(library, "method", lambda: "replaced"):
        assert library.method() == "replaced"
        assert Library().method() == "method"
    assert vars(library) == {}
    assert library.method() == "method"


def test_an_attribute_is_restored_after_an_error() -> None:
    before = dict(vars(Library))
    with pytest.raises(RuntimeError, match="inside"), patched(Library, "method", None):
        raise RuntimeError("inside")
    assert dict(vars(Library)) == before


def test_patches_nest() -> None:
    library = Library()
    with patched(library, "method", lambda: "outer"):
        with patched(library, "method", lambda: "inner"):
            assert library.method() == "inner"
        assert library.method() == "outer"
    assert library.method() == "method"


def test_a_name_that_does_not_exist_is_an_error_and_changes_nothing() -> None:
    library = Library()
    with pytest.raises(AttributeError, match="renamed"), patched(library, "renamed", None):
        pass
    assert vars(library) == {}
