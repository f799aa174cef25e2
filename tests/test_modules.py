"""What holds of pytc's modules as files."""

import ast
import importlib
import pathlib
import re

import pytest

import pytc

FOLDER = pathlib.Path(pytc.__file__).parent

UNSTABLE = re.compile(r"jax\.(_src|core|experimental|extend|interpreters|lib)\b")
"""Modules of JAX that its own documentation does not promise to keep as they are."""
OF_OBJECTS = {"_cache_size", "client", "debug_info", "live_arrays", "name_stack", "node_data", "xla_metadata"}
"""What objects of JAX's have that it promises as little."""


@pytest.mark.parametrize("name", ["pytc", "pytc.arguments", "pytc.calls", "pytc.explain", "pytc.jax_compat"])
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
