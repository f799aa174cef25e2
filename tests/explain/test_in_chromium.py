"""The page in a browser, at a phone's and a desk's width; where none is installed, that the script finds its elements.

Which of the two was done is printed: `pytest -rA` shows it.
"""

import dataclasses
import importlib.resources
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from pytc.explain import explain
from tests.explain import in_chromium
from tests.explain.programs import update, update_arguments, with_figures
from tests.explain.test_text import reports

SCRIPT = importlib.resources.files("pytc").joinpath("explain/page/page.js").read_text("utf-8")


def small():
    args, kwargs = update_arguments()
    return explain(update, *args, **kwargs, device="cpu", memory=2**30)


def large():
    """5,000 leaves, and names as long as they get."""
    explanation = with_figures(small())
    long = dataclasses.replace(explanation.inputs[0], path="state" + "['a_name_that_is_rather_long']" * 8)
    return dataclasses.replace(explanation, inputs=(*reports(1250), long))


def tight():
    """One that does not fit."""
    return explain(lambda x: jnp.sin(x) @ x, jnp.ones((64, 64)), device="cpu", memory=1000)


def check_structure(text):
    """What the script looks for is there, once in the page."""
    for selector in re.findall(r'root\.querySelector\("([^"]+)"\)', SCRIPT):
        name, _, rest = selector.partition(".")
        kind = re.fullmatch(r"(\w+)\[(\w+)=(\w+)\]", selector)
        wanted = rf'<{kind[1]} {kind[2]}="{kind[3]}"' if kind else rf'<{name or "[a-z]+"} class="{rest}"'
        assert len(re.findall(wanted, text)) == 1, selector
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest", text)


@pytest.mark.parametrize("make", [small, large, tight])
def test_it_renders_fetches_nothing_raises_nothing_and_the_keyboard_works(make, tmp_path: Path):
    page = tmp_path / "report.html"
    make().save(page)
    if in_chromium.browser() is None:
        print("no browser is installed: the page's structure was checked")
        check_structure(page.read_text("utf-8"))
        return
    print(f"checked in {in_chromium.browser()}")
    for size, found in in_chromium.check(page).items():
        errors = found.pop("errors")
        assert errors == [], size
        assert all(found.values()), (size, found)
        assert len(found) >= 11


def test_what_is_checked_without_a_browser_holds(tmp_path: Path):
    page = tmp_path / "report.html"
    small().save(page)
    check_structure(page.read_text("utf-8"))


def test_a_broken_page_is_found(tmp_path: Path):
    page = tmp_path / "report.html"
    small().save(page)
    broken = page.read_text("utf-8").replace('class="reading"', 'class="gone"')
    if in_chromium.browser() is None:
        with pytest.raises(AssertionError):
            check_structure(broken)
        return
    page.write_text(broken.replace("<h2>", "<img src='http://localhost:9/x.png'><h2>", 1), "utf-8")
    found = in_chromium.check(page)["desk"]
    assert found["errors"]
