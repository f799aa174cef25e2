"""The page: whole, self-contained, and safe for whatever stands in a path."""

import dataclasses
import functools
import html.parser
import json
import re

import jax.numpy as jnp

from pytc.explain import Explanation, explain
from tests.explain.programs import update, update_arguments, with_figures

VOID = {"meta", "input", "br", "line", "rect", "polygon", "polyline", "path"}


class Page(html.parser.HTMLParser):
    """Reads a page, and minds that every element is closed in its place."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []
        self.texts = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(((self.open or [""])[-1], data))

    def text(self, tag):
        """The first text right inside of such an element."""
        return next(data for name, data in self.texts if name == tag)

    def find(self, tag, **wanted):
        return [a for name, a in self.elements if name == tag and all(a.get(k) == v for k, v in wanted.items())]


@functools.cache
def explained() -> Explanation:
    args, kwargs = update_arguments()
    return with_figures(explain(update, *args, **kwargs))


def test_a_saved_page_is_a_whole_document(tmp_path):
    explained().save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text.removeprefix("<!doctype html>\n"))
    assert page.find("meta", charset="utf-8")
    assert page.find("meta", name="viewport")
    assert page.text("title") == "update: where its memory goes"
    assert page.text("h1") == "update: 1.0 MiB reused, 132 B kept"


def test_nothing_is_fetched(tmp_path):
    explained().save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"https?:|@import|url\(", text)
    page = Page(text.removeprefix("<!doctype html>\n"))
    assert not [a for _, a in page.elements if {"src", "href", "srcset", "data", "action"} & set(a)]
    (policy,) = page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in policy["content"]


def test_a_notebook_gets_the_same_without_the_document():
    fragment = explained()._repr_html_()
    page = Page(fragment)
    assert not page.find("html")
    first, second = re.findall(r'id="(pytc-explain-\d+)"', fragment + explained()._repr_html_())
    assert first != second  # two in one notebook do not meet
    assert f'getElementById("{first}")' in fragment


def test_every_leaf_has_a_row_with_its_bytes():
    page = Page(explained()._repr_html_())
    paths = [data for tag, data in page.texts if tag == "code"]
    assert {each.path for each in explained().inputs} < set(paths)
    sizes = [int(cell["data-value"]) for cell in page.find("td") if "data-value" in cell]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(paths)


def test_the_timeline_can_be_read_without_a_pointer():
    page = Page(explained()._repr_html_())
    (timeline,) = [a for _, a in page.elements if a.get("class") == "timeline"]
    assert timeline["tabindex"] == "0"
    assert timeline["role"] == "slider"
    assert "if nothing were reused" in timeline["aria-label"]
    (data,) = [text for tag, text in page.texts if tag == "script" and text.startswith("[")]
    steps = json.loads(data)
    assert len(steps) == len(explained().timeline) == int(timeline["aria-valuemax"]) + 1
    assert len(steps[0]) == 3 + 5 + 1


def test_the_flow_draws_a_band_for_what_crosses_over():
    page = Page(explained()._repr_html_())
    bands = [a["class"] for a in page.find("path")]
    once = ["band passed-through"] * 2 + ["band reused"] * 2
    assert sorted(bands) == sorted(once * 2)  # for wide windows and for narrow ones


def test_passes_show_what_went():
    def dead(x):
        jnp.cos(x) * 5  # nobody reads it
        return jnp.sin(x)

    fragment = explain(dead, jnp.ones(8))._repr_html_()
    assert re.search(r'<span class="went">- v\d+:f32\[8\] = cos v\d+ <i>test_page.py:\d+ ', fragment)
    assert re.search(r'<span class="same">. v\d+:f32\[8\] = sin v\d+ ', fragment)


def test_names_cannot_break_the_page():
    evil = "</script><b onclick='x'>&<"

    def step(state):
        return {evil: state[evil] + 1}

    step.__name__ = evil
    explanation = explain(step, {evil: jnp.ones((8, 8))})
    odd = dataclasses.replace(explanation.timeline[0], source=evil)
    vars(explanation)["timeline"] = (odd, *explanation.timeline[1:])
    page = Page(explanation._repr_html_())
    assert not page.find("b", onclick="x")
    assert page.text("h1").startswith(evil[:10])
    (data,) = [text for tag, text in page.texts if tag == "script" and text.startswith("[")]
    assert json.loads(data)[0][2] == evil


def test_thousands_of_leaves():
    first = next(each for each in explained().inputs if each.verdict == "reused")
    many = tuple(dataclasses.replace(first, path=f"state[{i}].w{'x' * (i % 7)}") for i in range(5000))
    fragment = dataclasses.replace(explained(), inputs=many)._repr_html_()
    assert fragment.count("<tr>") >= 5000
    assert len(fragment) < 3_000_000
    assert fragment.count("<rect") < 60


def test_nothing_in_and_nothing_out_are_fine():
    assert "There is nothing on one of the two sides." in explain(lambda x: "nothing", jnp.ones(3))._repr_html_()
