"""Read the parameters of terms from source code.

Help shows these parameters, but must not import the modules of terms, because that would import torch.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mjlab_dist.config.terms import resolve
from mjlab_dist.errors import UserError, did_you_mean, listed

# Value of Parameter.default if a parameter has no default
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a function or class that a config can name."""

    # Its default, or REQUIRED
    default: Any
    # Its type, as written in the source; empty if there is none
    annotation: str
    # Its meaning, from the section Args of the docstring; empty if there is none
    text: str

    @property
    def can_be_none(self) -> bool:
        """Whether the parameter may be None."""
        return self.default is None or bool(re.search(r"\bNone\b|\bOptional\b", self.annotation))


_PASSED = ("self", "env", "mask", "block")

# Keys: the fields of configs that contain parameters. Values: the field of the same config that names the function or
# class that takes these parameters.
PARAMETERS = {"params": "func", "model_params": "model"}


def parameters_of(config: Any, field: str) -> dict[str, Parameter]:
    """Return the parameters that a field of a config may contain, with their names as keys.

    Args:
        config: The config of a term, the simulation or an entity.
        field: A key of :data:`PARAMETERS`.
    """
    reference = getattr(config, PARAMETERS[field], "")
    if field == "params":
        return parameters(reference)
    return parameters(reference, passed=("self",)) if is_function(reference) else {}


def is_function(model: str) -> bool:
    """Return whether the model of a simulation or entity names a function; otherwise, it is a file or XML.

    Args:
        model: Value of ``model``.
    """
    _, colon, name = model.rpartition(":")
    return bool(colon) and name.isidentifier() and not model.lstrip().startswith("<")


def check_model_params(flag: str, model: str, params: Mapping[str, Any]) -> None:
    """Raise if the source code of a model's function shows that it does not accept the given parameters.

    Args:
        flag: Flag of the simulation or entity, for messages.
        model: Value of ``model``.
        params: Value of ``model_params``.
    """
    if not is_function(model):
        for name, value in params.items():
            raise UserError(
                f"{_flag(flag, name)} {value}: the model is not a function, so it takes no parameters; remove this one "
                f"or set {flag}.model to package.module:function"
            )
        return
    found = definition(*model.split(":", 1))
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return
    known = parameters(model, passed=("self",))
    for name, value in params.items():
        if name not in known and found[1].args.kwarg is None:
            near = did_you_mean(name, known, f"it has {listed(list(known)) or 'none'}")
            raise UserError(f"{_flag(flag, name)} {value}: {model} has no such parameter; {near}")
    for name, parameter in known.items():
        if parameter.default is REQUIRED and name not in params:
            raise UserError(f"{_flag(flag, name)}: {model} requires this parameter; set it")


def _flag(flag: str, name: str) -> str:
    return f"{flag}.model-params.{name.replace('_', '-')}"


def parameters(reference: str, passed: Collection[str] = _PASSED) -> dict[str, Parameter]:
    """Return the parameters of a function or class, with their names as keys.

    Args:
        reference: Function or class, as package.module:name. For a module without readable source, or a name that
            cannot be found in it, the result is empty.
        passed: Names of parameters that a config cannot give; by default, those that the env passes to terms: the
            env itself, a mask, and the term's block (columns) of the actions.
    """
    module, _, name = reference.partition(":")
    found = definition(module, name)
    if found is None:
        return {}
    where, node = found
    docstring = ast.get_docstring(node) or ""
    function = node
    if isinstance(node, ast.ClassDef):
        constructor = member(where, node, "__init__")
        if constructor is None:
            return {}
        where, function = constructor
        docstring = ast.get_docstring(function) or docstring
    assert isinstance(function, ast.FunctionDef)
    meanings = documented(docstring)
    return {
        argument.arg: Parameter(
            default=default if default is REQUIRED else _value(reference, argument.arg, default),
            annotation=ast.unparse(argument.annotation) if argument.annotation else "",
            text=meanings.get(argument.arg, ""),
        )
        for argument, default in _arguments(function.args)
        if argument.arg not in passed
    }


def _arguments(args: ast.arguments) -> list[tuple[ast.arg, Any]]:
    positional = [*args.posonlyargs, *args.args]
    defaults = [REQUIRED] * (len(positional) - len(args.defaults)) + list(args.defaults)
    named = [default or REQUIRED for default in args.kw_defaults]
    return [*zip(positional, defaults, strict=True), *zip(args.kwonlyargs, named, strict=True)]


def _value(reference: str, name: str, default: ast.expr) -> Any:
    try:
        # Infinity has no literal, but a number that is too large for a float is infinite.
        return ast.literal_eval(re.sub(r"\bmath\.inf\b", "1e999", ast.unparse(default)))
    except ValueError:
        # A constant or an expression, whose value is known only after the module is imported
        return inspect.signature(resolve(reference)).parameters[name].default


def definition(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """Return the module that defines a function or class, and the syntax tree of the definition. Import nothing.

    Args:
        module: The module's name; it may import the function or class from another module.
        name: Name of the function or class in this module.

    Returns:
        None for a module without readable source, or if no statement of the module defines or imports the name.
    """
    for node in _statements(_tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(_absolute(module, node), alias.name)
    return None


def made_from(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """Return what a module wraps under a name: a lambda, or the ``far`` of ``near = functools.partial(far, x=1)``.

    Args:
        module: The module's name. It is not imported.
        name: Name in this module.

    Returns:
        As :func:`definition`; a lambda as a function without a body. None for every other assignment.
    """
    for node in _statements(_tree(module)):
        if not isinstance(node, ast.Assign) or name not in map(ast.unparse, node.targets):
            continue
        match node.value:
            case ast.Lambda(args=args):
                return module, ast.FunctionDef(name=name, args=args, body=[], decorator_list=[])
            case ast.Call(func=func, args=[wrapped]) if ast.unparse(func).rpartition(".")[2] == "partial":
                return _resolve(module, wrapped)
    return None


def member(module: str, node: ast.ClassDef, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """Return a method or class of a class, which may be inherited, and the module that defines it.

    Args:
        module: Module of the class.
        node: The class.
        name: Name of the method or class.
    """
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and part.name == name:
            return module, part
    for base in node.bases:
        found = _resolve(module, base)
        if found is not None and isinstance(found[1], ast.ClassDef):
            inherited = member(found[0], found[1], name)
            if inherited is not None:
                return inherited
    return None


def _resolve(module: str, expression: ast.expr) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """Return the definition of a name in a module, such as ``far`` or ``terms.far``."""
    *outer, name = ast.unparse(expression).split(".")
    if not outer:
        return definition(module, name)
    for node in _statements(_tree(module)):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name).split(".")[0] == outer[0]:
                first = alias.name if alias.asname else outer[0]
                package = f"{_absolute(module, node)}." if isinstance(node, ast.ImportFrom) else ""
                return definition(f"{package}{'.'.join([first, *outer[1:]])}", name)
    return None


def _statements(tree: ast.AST | None) -> Iterator[ast.AST]:
    """Yield the statements of a module, including those in ``if`` and ``try``, but not in functions and classes."""
    for node in ast.iter_child_nodes(tree) if tree is not None else ():
        yield node
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _statements(node)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """Return the absolute name of the module that an import statement names, even if the statement is relative."""
    spec = find_module(module)
    assert spec is not None
    try:
        return importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", spec.parent)
    except ImportError:
        return ""  # the relative import goes beyond the top-level package


@functools.cache
def _tree(module: str) -> ast.Module | None:
    spec = find_module(module)
    if spec is None or not spec.has_location or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    with open(spec.origin, encoding="utf-8") as file:  # noqa: PTH123 (pathlib would have to be imported)
        try:
            return ast.parse(file.read())
        except SyntaxError:
            return None  # the later import of the module reports the error and its line


def find_module(module: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module. Unlike ``importlib.util.find_spec``, this does not import the module's parent packages.

    Args:
        module: Full name of the module.

    Returns:
        None if there is no such module.
    """
    package, *names = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for name in names:
        if spec is None or spec.submodule_search_locations is None:
            return None
        package += f".{name}"
        spec = _find_inside(package, spec.submodule_search_locations)
    return spec


def _find_inside(module: str, folders: Iterable[str]) -> importlib.machinery.ModuleSpec | None:
    """Find a module of a package. ``PathFinder`` would fail in namespace packages that are not imported."""
    parts: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(module) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        parts += spec.submodule_search_locations or () if spec is not None else ()
    if not parts:
        return None
    namespace = importlib.machinery.ModuleSpec(module, None, is_package=True)
    namespace.submodule_search_locations = parts
    return namespace


def documented(docstring: str) -> dict[str, str]:
    """Return the meanings of parameters from the section Args of a docstring, each in one line.

    Args:
        docstring: The docstring, without indentation.
    """
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", docstring, re.MULTILINE)
    if section is None:
        return {}
    entries = re.split(r"^ {4}(?=\w+:)", section[1], flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (entry.partition(":") for entry in entries)}
