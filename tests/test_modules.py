"""What holds of pytc's modules as files."""

import ast
import importlib
import pathlib
import re
import types

import pytest

import pytc

FOLDER = pathlib.Path(pytc.__file__).parent

UNSTABLE = re.compile(r"jax\.(_src|core|experimental|extend|interpreters|lib)\b")
"""Modules of JAX that its own documentation does not promise to keep as they are."""
OF_OBJECTS = {"_cache_size", "client", "debug_info", "live_arrays", "name_stack", "node_data", "xla_metadata"}
"""What objects of JAX's have that it promises as little."""


PACKAGES = [".".join(path.parent.relative_to(FOLDER.parent).parts) for path in sorted(FOLDER.rglob("__init__.py"))]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_module_is_on_the_map_of_its_package(name):
    package = importlib.import_module(name)
    folder = pathlib.Path(package.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules - {"__init__"} - {*re.findall(r"\w+", package.__doc__)} == set()


def used(node):
    """What a part of the source names of JAX's less stable API."""
    match node:
        case ast.Import(names=names):
            told = [name.name for name in names]
        case ast.ImportFrom(module=module, names=names):
            told = [f"{module}.{name.name}" for name in names]
        case ast.Attribute(attr=name):
            told = [ast.unparse(node)]
            if name in OF_OBJECTS:
                return [name]
        case _:
            return []
    return [each for each in told if UNSTABLE.match(each)]


def test_what_is_less_stable_of_jax_is_in_jax_compat():
    found = []
    for file in sorted(FOLDER.rglob("*.py")):
        path = file.relative_to(FOLDER).as_posix()
        if path.startswith("jax_compat/"):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            found += [f"pytc/{path}:{node.lineno}: {name}" for name in used(node)]
    assert found == []


LAZY = {"map", "filter"} | {f"itertools.{name}" for name in ("starmap", "filterfalse", "takewhile", "dropwhile")}
OF_C = {"value.__dict__.get", "fun"}
"""What is written in C, though a module does not tell; `interrupt.call_into` says so of its `fun`."""
MEANT = {"entered"}
"""What is called by C code to see what that looks like."""


def is_of_python(name, module):
    try:
        function = eval(name, vars(module))
    except (NameError, AttributeError):
        return name not in OF_C | MEANT
    return isinstance(function, types.FunctionType)


def test_no_handler_ends_an_iteration():
    """A handler of signals that raises `StopIteration` in a function that `map` calls would leave out what comes
    behind it. (`explain` only tells.)"""
    found = []
    for file in sorted(FOLDER.rglob("*.py")):
        path = file.relative_to(FOLDER)
        if path.parts[0] == "explain" or path.stem == "__main__":
            continue
        module = importlib.import_module(".".join(["pytc", *path.with_suffix("").parts]).removesuffix(".__init__"))
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LAZY:
                name = ast.unparse(node.args[0])
                if is_of_python(name, module):
                    found.append(f"pytc/{path}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
