"""What holds of pytc's modules as files."""

import importlib
import pathlib
import re

import pytest


@pytest.mark.parametrize("name", ["pytc", "pytc.explain", "pytc.jax_compat"])
def test_every_module_is_on_the_map_of_its_package(name):
    package = importlib.import_module(name)
    folder = pathlib.Path(package.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules - {"__init__"} - {*re.findall(r"\w+", package.__doc__)} == set()
