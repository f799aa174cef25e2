"""compile: the decorator, the call path, and everything that must be as with `jax.jit`."""

from __future__ import annotations

import _thread
import collections
import concurrent.futures
import dataclasses
import functools
import gc
import inspect
import itertools
import logging
import operator
import os
import queue
import subprocess
import sys
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import pytc
from pytc.passes.verify import same
from tests import interpreters


@pytest.fixture
def x():
    return jnp.arange(4.0)


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


# -- what the decorator returns ---------------------------------------------------------------------------------------


def test_it_is_a_plain_function_with_the_name_doc_and_signature():
    def step(state, *, rate: float = 0.1):
        """One step."""
        return state * rate

    for compiled in (pytc.compile(step), pytc.compile()(step), pytc.compile(donate="none")(step)):
        assert inspect.isfunction(compiled)
        assert (compiled.__name__, compiled.__doc__, compiled.__wrapped__) == ("step", "One step.", step)
        assert inspect.signature(compiled) == inspect.signature(step)
        assert inspect.signature(compiled, follow_wrapped=False) == inspect.signature(step)
        assert inspect.getfullargspec(compiled) == inspect.getfullargspec(jax.jit(step))


def test_help_on_a_function_without_a_docstring_shows_nothing_of_ours():
    step = pytc.compile(lambda x: x)
    assert inspect.getdoc(step) is None
    assert inspect.getcomments(step) is None


def test_what_has_no_name_is_called_after_its_function_or_class(x):
    class Scale:
        def __call__(self, x):
            return x * 2

    named = functools.partial(jnp.add, 1.0)
    named.__name__ = "add_one"
    odds = (
        (functools.partial(functools.partial(jnp.add), 1.0), "add"),
        (named, "add_one"),
        (functools.partial(named), "add_one"),
        (Scale(), "Scale"),
    )
    for odd, name in odds:
        compiled = pytc.compile(odd)
        assert (compiled.__name__, compiled.__qualname__, compiled.__wrapped__) == (name, name, odd)
        assert pytc.stage(compiled, x).name == name
        assert f"name={name}\n" in str(jax.make_jaxpr(compiled)(x))


def test_it_binds_as_a_method(x):
    class Trainer:
        def __init__(self, rate):
            self.rate = rate

        @pytc.compile
        def step(self, state):
            return state * self.rate

        @staticmethod
        @pytc.compile
        def double(state):
            return state * 2

        @classmethod
        @pytc.compile
        def name(cls, state):
            return state + len(cls.__name__)

    trainer = Trainer(3.0)
    np.testing.assert_array_equal(trainer.step(x), x * 3)
    np.testing.assert_array_equal(Trainer(4.0).step(x), x * 4)
    np.testing.assert_array_equal(trainer.double(x), x * 2)
    np.testing.assert_array_equal(trainer.name(x), x + 7)
    np.testing.assert_array_equal(pytc.compile(trainer.step.__wrapped__)(trainer, x), x * 3)


@pytest.mark.parametrize("odd", [functools.partial(jnp.add, 1.0), jnp.sin, jax.nn.relu, np.shape, operator.neg])
def test_odd_callables_are_compiled(odd, x):
    jitted = jax.jit(lambda x: odd(x))  # by itself it has no use for what there can be no weak reference to
    assert jax.tree.all(jax.tree.map(same, pytc.compile(odd)(x), jitted(x)))


def test_a_function_that_tells_no_signature_raises_what_it_raises_under_jit(x):
    for compiled in (jax.jit(max), pytc.compile(max)):
        with pytest.raises(jax.errors.TracerBoolConversionError):
            compiled(x[0], x[1])


def test_a_partial_and_a_callable_object_run(x):
    class Scale:
        def __call__(self, x):
            return x * 2

    np.testing.assert_array_equal(pytc.compile(functools.partial(jnp.add, 1.0))(x), x + 1)
    np.testing.assert_array_equal(pytc.compile(Scale())(x), x * 2)


def test_a_callable_without_weak_references_is_compiled_more_than_once(x):
    class Scale:
        __slots__ = ("by",)

        def __init__(self, by):
            self.by = by

        def __call__(self, x, *, plus=0.0):
            return x * self.by + plus

    scale = Scale(2.0)
    for _ in range(3):
        compiled = pytc.compile(scale, donate={"x": "all"})
        np.testing.assert_array_equal(compiled(x + 0, plus=1.0), x * 2 + 1)
        np.testing.assert_array_equal(jax.vmap(compiled)(x), x * 2)
        np.testing.assert_array_equal(compiled.lower(x).compile()(x + 0), x * 2)


@pytest.mark.parametrize("wrong", [3, "f", (), None])
def test_what_is_no_function_is_refused(wrong):
    """Nor is None, which is what comes of a function that has forgotten to return one."""
    for take in (pytc.compile, pytc.pmap, pytc.stage, pytc.explain):
        with pytest.raises(TypeError, match=f"^pytc.{take.__name__} takes a function, not "):
            take(wrong)


@pytest.mark.parametrize("outer", [staticmethod, classmethod, property])
def test_what_makes_a_method_of_a_function_is_put_above(outer):
    for take in (pytc.compile, pytc.pmap):
        with pytest.raises(TypeError, match=f"put @{outer.__name__} above @pytc.{take.__name__}$"):
            take(outer(lambda x: x))

    class Holder:
        @staticmethod
        @pytc.compile
        def double(x):
            return x * 2

        @classmethod
        @pytc.compile
        def named(cls, x):
            return {cls.__name__: x * 2}

        @property
        @functools.partial(pytc.compile, static_argnums=0)
        def three(self):
            return jnp.arange(3)

    assert Holder.double(1) == Holder().double(1) == 2
    assert Holder.named(1) == Holder().named(1) == {"Holder": 2}
    assert [*Holder().three] == [0, 1, 2]


# -- retracing --------------------------------------------------------------------------------------------------------


def test_it_retraces_when_and_only_when_something_changed(x):
    traces = []

    @pytc.compile
    def f(tree, mode):
        traces.append(mode)
        return jax.tree.map(lambda v: v + 1, tree)

    calls = [
        (({"a": x}, "m"), True),
        (({"a": x + 1}, "m"), False),
        (({"a": jnp.arange(5.0)}, "m"), True),
        (({"a": x}, "m"), False),
        (({"a": jnp.arange(5.0)}, "m"), False),
        (({"a": x.astype(jnp.int32)}, "m"), True),
        (({"a": np.arange(4.0, dtype=np.float32)}, "m"), False),
        (({"b": x}, "m"), True),
        (([x], "m"), True),
        (([x], "n"), True),
        (([x], "m"), False),
        (({"a": x, "b": x + 1}, "m"), True),
    ]
    for args, expected in calls:
        before = len(traces)
        result = f(*args)
        assert (len(traces) > before) == expected, args
        assert jax.tree.structure(result) == jax.tree.structure(args[0])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b + 1), result, args[0])


@pytest.mark.parametrize("options", [{}, {"static_argnames": "how"}, {"donate": "all"}, {"inline": True}])
def test_one_trace_serves_calls_and_transformations(x, options):
    traces = []

    @pytc.compile(**options)
    def f(tree, how="square"):
        traces.append(how)
        return (tree["x"] ** (2 if how == "square" else 3)).sum()

    for how, expected in (("square", ["square"]), ("cube", ["square", "cube"])):
        f({"x": x + 0}, how=how)
        jax.grad(f)({"x": x}, how=how)
        jax.vmap(lambda v, how=how: f({"x": v}, how=how))(jnp.stack([x, x]))
        jax.jit(lambda v, how=how: f({"x": v}, how=how))(x)
        jax.linearize(lambda v, how=how: f({"x": v}, how=how), x)
        pytc.explain(f, {"x": x}, how=how)
        f({"x": x + 1}, how=how)
        assert traces == expected
    f.clear_cache()
    jax.grad(f)({"x": x}, how="cube")
    f({"x": x}, how="cube")
    assert traces == ["square", "cube", "cube"]


@pytest.mark.parametrize("make", [jax.jit, pytc.compile])
def test_the_number_of_compiled_signatures_is_told_as_by_jax(x, make):
    f = make(lambda x, n: x * n, static_argnums=1)
    counts = [f._cache_size()]
    for x_, n in ((x, 2), (x + 1, 2), (x, 3), (x[:2], 3), (x, 2)):
        f(x_, n)
        counts.append(f._cache_size())
    with jax.debug_nans(True):
        f(x, 4)
    f.clear_cache()
    assert (counts, f._cache_size()) == ([0, 1, 1, 2, 3, 3], 0)


def test_nothing_is_left_of_a_trace_that_keeps_arrays_alive(x):
    table = jnp.arange(16.0).reshape(4, 4)
    captured = [table]

    @pytc.compile
    def f(x):
        return x @ captured[0], "matrix"

    f(x)
    captured.clear()
    held = weakref.ref(table)
    del table
    gc.collect()
    assert held() is None


def test_a_first_call_leaves_no_garbage_to_collect():
    def first_call():
        f = pytc.compile(lambda x: (jnp.tanh(x) * 2 + x).sum() + x)
        return f, jax.block_until_ready(f(jnp.ones((8, 8))))

    first_call()
    gc.collect()
    gc.disable()
    try:
        kept = first_call()
        assert gc.collect() == 0
        del kept
    finally:
        gc.enable()


def test_the_shape_of_an_unused_argument_is_part_of_the_signature(x):
    f = pytc.compile(lambda x, unused: x * unused.shape[0])
    for n in (3, 5, 3, 7):
        np.testing.assert_array_equal(f(x, jnp.zeros(n)), x * n)


def test_alternating_signatures_are_told_apart_without_retracing(x):
    traces = []

    @pytc.compile
    def f(x, y, z):
        traces.append((x.shape, y.shape, z.dtype))
        return x.sum() + y.sum() + z.sum()

    variants = [
        (jnp.ones(a), jnp.ones(b), jnp.ones(2, d)) for a in (1, 2) for b in (3, 4) for d in (jnp.int32, jnp.float32)
    ]
    for _ in range(3):
        for args in variants:
            assert float(f(*args)) == sum(a.size for a in args)
    assert len(traces) == len(variants)


def test_contexts_that_change_the_trace_are_told_apart(x):
    traces = []

    @pytc.compile
    def f(x):
        traces.append(None)
        return x @ x

    for _ in range(3):
        f(x)
        with jax.default_matmul_precision("highest"):
            f(x)
        with jax.enable_x64(True):
            f(x)
    assert len(traces) == 3


def test_clearing_jaxs_caches_and_our_own(x):
    f = pytc.compile(lambda x: x + 1)
    for clear in (jax.clear_caches, f.clear_cache, jax.clear_caches):
        np.testing.assert_array_equal(f(x), x + 1)
        clear()
    for _ in range(20):
        f(x)
        jax.clear_caches()
    (layout,) = f.__pytc__.lookup.layouts.values()
    (signatures,) = layout
    assert len(signatures.newest) <= 8


# -- donation by promise ----------------------------------------------------------------------------------------------


def test_none_donates_nothing(x):
    f = pytc.compile(lambda x: x + 1, donate="none")
    y = f(x)
    y2 = f(y)
    assert not x.is_deleted()
    assert not y.is_deleted()
    np.testing.assert_array_equal(y2, np.arange(4.0) + 2)


def test_all_donates_what_is_usable_silently(x):
    f = pytc.compile(lambda a, b, c: (a + 1, jnp.sum(c)), donate="all")
    a, b, c = x + 0, x + 1, jnp.ones(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(a, b, c)
    assert [v.is_deleted() for v in (a, b, c)].count(True) == 1
    assert not c.is_deleted()


def test_all_passes_through_what_is_returned(x):
    f = pytc.compile(lambda a, b: (a, b + 1), donate="all")
    a, b = x + 0, x + 1
    same, _ = f(a, b)
    assert same is a
    assert not a.is_deleted()
    assert b.is_deleted()


def test_warn_names_each_leaf_that_could_not_be_reused_once(x):
    f = pytc.compile(lambda state: {"w": state["w"] + 1}, donate="warn")
    with pytest.warns(pytc.DonationWarning) as caught:
        f({"w": x + 0, "extra": jnp.ones(7)})
    assert len(caught) == 1
    assert "state['extra']" in str(caught[0].message)
    assert "28 bytes: nothing reads it" in str(caught[0].message)
    assert "state['w']" not in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f({"w": x + 1, "extra": jnp.ones(7)})


def test_a_dict_speaks_of_parameters(x):
    f = pytc.compile(lambda state, batch: (state + batch, batch * 2), donate={"state": "all", "batch": "none"})
    state, batch = x + 0, x + 1
    f(state, batch)
    assert state.is_deleted()
    assert not batch.is_deleted()


def test_donate_argnums_is_understood(x):
    def f(state, batch):
        return state + batch, batch * 2

    for options in ({"donate_argnums": 0}, {"donate_argnames": "state"}, {"donate_argnums": (-2,)}):
        state, batch = x + 0, x + 1
        pytc.compile(f, **options)(state, batch)
        assert state.is_deleted()
        assert not batch.is_deleted()


@pytest.mark.parametrize("decorator", [pytc.compile, pytc.pmap])
@pytest.mark.parametrize(
    "options",
    [
        {"donate": "some"},
        {"effort": "most"},
        {"share": "no"},
        {"passes": [1]},
        {"static_argnums": "a"},
        {"static_argnames": 1},
        {"donate_argnums": 1.5},
        {"donate_argnames": [0]},
        {"donated": ()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_no_function_could_be_compiled_with_is_refused_before_there_is_one(decorator, options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        decorator(**options)


def test_options_that_can_be_read_once_serve_several_functions(x):
    decorate = pytc.compile(static_argnames=(name for name in ["n"]), donate_argnums=iter([0]))
    for _ in range(2):
        state = x + 0
        decorate(lambda state, n: state * n)(state, n=3)
        assert state.is_deleted()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"donate": "some"}, "donate is 'some'"),
        ({"donate": {"state": "maybe"}}, r"donate\['state'\] is 'maybe'"),
        ({"donate": {"nothing": "all"}}, "'nothing', which is not a parameter"),
        ({"donate": {"state": "all"}, "static_argnames": "state"}, "'state' is static"),
        ({"donate_argnums": 0, "static_argnums": 0}, "'state' is static"),
        ({"donate": {"state": "none"}, "donate_argnums": 0}, "'state'"),
        ({"donate_argnums": -5}, "-5"),
        ({"donate_argnums": 2}, "donate_argnums names argument 2, but the function takes 2"),
        ({"donate": {"batch": "all"}, "static_argnums": -1}, "'batch' is static"),
        ({"donate_argnames": "nothing"}, "'nothing'"),
        ({"python_scalars": "dynamic"}, "python_scalars"),
    ],
)
def test_bad_options_are_refused_when_decorating(options, match):
    with pytest.raises(ValueError, match=match):
        pytc.compile(lambda state, batch: state, **options)


def test_names_of_a_function_that_tells_no_signature_are_refused():
    class Silent:
        @property
        def __signature__(self):
            raise TypeError("no signature")

        def __call__(self, x):
            return x + 1

    for jit in (jax.jit, pytc.compile):
        with pytest.raises(ValueError, match="donate_argnums"):
            jit(Silent(), donate_argnames="x")
    x = jnp.ones(4)
    pytc.compile(Silent(), donate_argnums=0)(x)
    assert x.is_deleted()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"donate": {"rest": "all"}}, "'rest', which stands for any keyword: name the keywords themselves"),
        ({"donate_argnames": "x"}, "'x', which is positional-only: number it in donate_argnums"),
        ({"donate_argnames": "more"}, "'more', which is positional-only: number it in donate_argnums"),
    ],
)
def test_names_that_can_be_no_argument_s_are_refused_when_decorating(options, match):
    def f(x, /, y, *more, **rest):
        return x + y

    with pytest.raises(ValueError, match=match):
        pytc.compile(f, **options)


def test_code_without_a_module_is_warned_as_far_as_python_can(x):
    space = {"f": pytc.compile(lambda x, unread: x + 1, donate="warn"), "x": x, "__name__": None}
    exec("y = f(x + 0, x * 2)", space)
    np.testing.assert_array_equal(space["y"], x + 1)


@pytest.mark.parametrize("decorator", [pytc.compile, pytc.pmap])
def test_an_option_that_is_not_known_is_refused_with_what_may_be_meant(decorator):
    named = f"pytc.{decorator.__name__} has no option"
    with pytest.raises(TypeError, match=f"^{named} donat, nor has jax.jit; did you mean donate?"):
        decorator(donat="all")
    with pytest.raises(TypeError, match=f"^{named} colour, nor has jax.jit$"):
        decorator(lambda x: x, colour="green")
    with pytest.raises(TypeError, match=f"^{named} fun, nor has jax.jit"):
        decorator(fun=lambda x: x)


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings", "device"])
def test_a_map_takes_no_option_that_says_where_arrays_go(option):
    with pytest.raises(TypeError, match=f"^pytc.pmap has no option {option}: in_axes, out_axes and devices say where"):
        pytc.pmap(lambda x: x, "i", **{option: None})


@pytest.mark.parametrize(
    ("decorator", "options"),
    [(pytc.compile, {"donate": {0: "all"}}), (pytc.pmap, {"donate": {0: "all"}}), (pytc.pmap, {"in_axes": {0: None}})],
)
@pytest.mark.parametrize("fun", [lambda state: state, lambda state, **others: state], ids=["fixed", "any keywords"])
def test_parameters_are_named_by_strings(decorator, options, fun):
    (option,) = options
    with pytest.raises(TypeError, match=f"{option} names 0, but parameters are named by strings"):
        decorator(fun, **options)(jnp.ones((1, 2)))


@pytest.mark.parametrize("decorator", [pytc.compile, pytc.pmap])
@pytest.mark.parametrize("passes", [(pytc.passes.prune, 3), None, pytc.passes.prune], ids=["3", "None", "one"])
def test_what_is_no_pass_is_refused_when_decorating(decorator, passes):
    with pytest.raises(TypeError, match="it can be a list or tuple of functions from Program to Program"):
        decorator(lambda x: x, passes=passes)


@pytest.mark.parametrize("decorator", [pytc.compile, pytc.pmap])
def test_share_is_yes_or_no(decorator):
    with pytest.raises(TypeError, match="share is 'no'; it can be True or False"):
        decorator(lambda x: x, share="no")


def test_a_pass_that_returns_no_program_is_named(x):
    def forgets(program):
        dataclasses.replace(program)

    with pytest.raises(TypeError, match="the pass `forgets` returned None, not a Program"):
        pytc.compile(lambda x: x, passes=(forgets,))(x)


@functools.wraps(pytc.passes.alias)
def alias_again(program):
    return pytc.passes.alias(program)


@pytest.mark.parametrize(
    ("each", "pairs"),
    [
        (pytc.passes.alias, True),
        (alias_again, True),
        (functools.partial(pytc.passes.alias), True),
        (lambda program: pytc.passes.alias(program), False),  # this one nobody recognises: nothing is given away
    ],
    ids=["itself", "wrapped", "partial", "a lambda"],
)
def test_what_stands_in_the_place_of_alias_takes_over_what_it_may(each, pairs, x):
    passes = [each if it is pytc.passes.alias else it for it in pytc.passes.pipeline]
    for donate, taken in {"none": False, "all": pairs}.items():
        f = pytc.compile(lambda x: x + 1, passes=passes, donate=donate)
        assert pytc.explain(f, x).inputs[0].verdict == ("reused" if taken else "kept")
        given = x + 1
        f(given)
        assert given.is_deleted() == taken


@pytest.mark.parametrize("late", [pytc.passes.hoist, pytc.passes.share, pytc.passes.forward, pytc.passes.prune])
def test_passes_that_number_inputs_and_outputs_anew_do_not_stand_behind_alias(late, x):
    f = pytc.compile(lambda x: (x + 1, x), passes=(pytc.passes.alias, late), donate="all")
    with pytest.raises(ValueError, match=f"the pass `{late.__name__}` stands after `alias`"):
        f(x)


def test_a_pass_that_takes_over_what_is_kept_is_named(x):
    def greedy(program):
        paired = pytc.passes.alias(dataclasses.replace(program, keep=frozenset()))
        return dataclasses.replace(paired, keep=program.keep)

    f = pytc.compile(lambda state: state + 1, passes=(*pytc.passes.pipeline, greedy), donate="none")
    with pytest.raises(ValueError, match=r"the pass `greedy` has results written over `state`, which `Program.keep`"):
        f(x)
    assert not x.is_deleted()


@pytest.mark.parametrize("option", ["donate_argnums", "static_argnums", "donate_argnames", "static_argnames"])
@pytest.mark.parametrize("value", [1.0, object()], ids=["a float", "an object"])
def test_what_is_no_number_or_name_of_arguments_is_refused_by_the_options_name(option, value):
    with pytest.raises(TypeError, match=f"{option} is .*; it can be a (number|name) or several"):
        pytc.compile(lambda state, batch: state, **{option: value})


@pytest.mark.parametrize("decorator", [jax.jit, pytc.compile])
def test_an_argument_numbered_from_the_end_where_calls_differ_in_length_is_not_donated(decorator, x):
    f = decorator(lambda first, *others: first + others[-1], donate_argnums=-1)
    last = x + 1
    np.testing.assert_array_equal(f(x, last), np.arange(4.0) * 2 + 1)
    np.testing.assert_array_equal(last, np.arange(4.0) + 1)


def test_the_same_array_at_two_donated_leaves(x):
    f = pytc.compile(lambda a, b: (a + 1, b * 2), donate="all")
    a = x + 0
    first, second = f(a, a)
    np.testing.assert_array_equal(first, np.arange(4.0) + 1)
    np.testing.assert_array_equal(second, np.arange(4.0) * 2)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("donate", ["auto", "all"])
def test_an_error_of_a_callback_is_told_as_by_jax(donate):
    """The arguments are gone by then, which is not what went wrong."""

    def check(value):
        if float(value) > 2:
            raise ValueError("the sum is large")
        return value

    def step(x):
        total = jax.pure_callback(check, jax.ShapeDtypeStruct((), x.dtype), x.sum())
        return x + total

    def told(step):
        try:
            x = step(jnp.full(3, 0.1))
            for _ in range(5):
                x = step(x)
            jax.block_until_ready(x)
        except Exception as error:
            return type(error), "the sum is large" in str(error), "deleted" in str(error)

    assert told(pytc.compile(step, donate=donate)) == told(jax.jit(step))
    assert told(jax.jit(step))[1:] == (True, False)


def test_a_deleted_array_is_named_before_anything_is_donated(x):
    f = pytc.compile(sgd, donate="all")
    params, grads = {"w": x + 0, "b": x + 1}, {"w": x + 2, "b": x + 3}
    f(dict(jax.tree.map(jnp.copy, params)), grads)
    gone = {"w": x + 0, "b": x + 1}
    gone["b"].delete()
    with pytest.raises(RuntimeError, match=r"`params\['b'\]` was deleted before this call"):
        f(gone, grads)
    assert not gone["w"].is_deleted()


def test_a_deleted_argument_that_the_caller_lets_go_of():
    """At a call site that is new: to find who shares its buffer it is looked at, too."""

    def overwritten(step, params):
        params.delete()
        params = step(params)

    def donated_before(step, params):
        for _ in range(2):
            step(pytc.move(params))

    def donated_after(step, params):
        params = step(params)
        jax.jit(jnp.negative, donate_argnums=0)(params)
        params = step(params)

    for caller in (overwritten, donated_before, donated_after):
        with pytest.raises(RuntimeError, match="deleted"):
            caller(pytc.compile(lambda params: params + 1), jnp.ones(64))


def test_an_error_while_tracing_leaves_inputs_and_cache_usable(x):
    fail = [True]

    @pytc.compile(donate="all")
    def f(x):
        if fail[0]:
            raise KeyError("no luck")
        return x + 1

    y = x + 0
    for _ in range(2):
        with pytest.raises(KeyError, match="no luck"):
            f(y)
    assert not y.is_deleted()
    fail[0] = False
    np.testing.assert_array_equal(f(y), np.arange(4.0) + 1)


def test_an_error_while_compiling_leaves_inputs_and_cache_usable(x):
    f = pytc.compile(lambda x: x + 1, donate="all", compiler_options={"xla_no_such_flag": True})
    y = x + 0
    for _ in range(2):
        with pytest.raises(Exception, match="xla_no_such_flag"):
            f(y)
    np.testing.assert_array_equal(y, np.arange(4.0))


def test_wrong_arguments_raise_the_functions_own_error(x):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        pytc.compile(lambda a, b: a)(x)


def test_an_end_of_an_iteration_that_the_function_raises_is_that(x):
    values = iter([1.0])
    f = pytc.compile(lambda x: x + next(values))
    f(x)
    with pytest.raises(StopIteration):
        f(x[:2])
    with pytest.raises(StopIteration):
        f(pytc.move(x[:3]))


class Model:
    def __init__(self, w):
        self.named, self.parts = {1: 0, "a": 1}, {"w": w}

    @pytc.compile
    def __call__(self, x):
        return self.parts["w"] * x

    @pytc.compile
    def doubled(self, x):
        return x * 2


def test_an_array_of_an_object_that_is_static_is_no_constant(x):
    """`jax.jit` refuses the object; as a constant the array would be what it was at the first call, for ever."""
    model = Model(x)
    for _ in range(2):
        with pytest.raises(pytc.StaticLeafError, match=r"`self` \(of type Model\).* static.* `self.parts\['w'\]`"):
            model(x)
    np.testing.assert_array_equal(model.doubled(x), x * 2)
    named = pytc.compile(lambda self, x: self.parts["w"] * x, static_argnums=0)
    np.testing.assert_array_equal(named(model, x), x * x)


# -- as jax.jit -------------------------------------------------------------------------------------------------------


def test_under_transformations_it_is_jit(x):
    compiled, jitted = (make(lambda x: jnp.sum(jnp.sin(x) * x)) for make in (pytc.compile, jax.jit))
    for transform in (
        jax.grad,
        jax.jit,
        jax.hessian,
        lambda f: jax.vmap(f),
        lambda f: jax.jit(jax.grad(f)),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        lambda f: lambda x: jax.linearize(f, x)[1](x),
        lambda f: jax.checkpoint(f),
        lambda f: lambda x: jax.lax.map(f, x),
        lambda f: lambda x: jax.lax.scan(lambda c, v: (c + f(v), f(c)), 0.0, x),
        lambda f: lambda x: jax.lax.cond(True, f, lambda x: 0.0, x),
    ):
        jax.tree.map(np.testing.assert_array_equal, transform(compiled)(x), transform(jitted)(x))


def test_in_a_trace_with_concrete_arguments_nothing_is_donated(x):
    inner = pytc.compile(lambda x: x + 1, donate="all")
    y = x + 0
    np.testing.assert_array_equal(jax.jit(lambda: inner(y))(), np.arange(4.0) + 1)
    np.testing.assert_array_equal(jax.vmap(lambda v: v + inner(y))(jnp.ones(2))[0], np.arange(4.0) + 2)
    assert not y.is_deleted()


class Plain:
    def apply(self, x):
        return x * self.weights


class Slotted:
    __slots__ = ("weights",)
    apply = Plain.apply


def of_a_method(owner):
    return owner.apply, lambda x, m: m(x), "`m.__self__.weights`"


def of_an_inner_jit(owner):
    return owner, lambda x, m: jax.jit(lambda y: y * m.weights)(x), "`m.weights`"


def of_an_object_in_it(owner):
    outer = Plain()
    outer.layers, outer.itself = [{"first": owner}], outer
    return outer, lambda x, m: x * m.layers[0]["first"].weights, r"`m.layers\[0\]\['first'\].weights`"


@pytest.mark.parametrize("kind", [Plain, Slotted])
@pytest.mark.parametrize("case", [of_an_inner_jit, of_an_object_in_it, of_a_method])
def test_an_array_of_a_static_object_is_found_wherever_it_is(x, case, kind):
    owner = kind()
    owner.weights = x + 1
    static, function, named = case(owner)
    with pytest.raises(pytc.StaticLeafError, match=named):
        pytc.compile(function)(x, static)


@dataclasses.dataclass
class Comparable:
    """Equal to others, so that it has no hash."""

    weights: object


class Dictionary(dict):
    pass


HOLDERS = {
    "equal to others": Comparable,
    "namespace": lambda w: types.SimpleNamespace(weights=w),
    "queue": lambda w: collections.deque([w]),
    "items of a user's": collections.UserList,
    "derived dictionary": lambda w: Dictionary(weights=w),
    "view": lambda w: types.MappingProxyType({"weights": w}),
    "objects of NumPy": lambda w: np.array([{"weights": w}], object),
    "method": lambda w: types.MethodType(lambda self, x: x * self.weights, Comparable(w)),
}


def weights_in(held):
    if isinstance(held, types.MethodType):
        return held(1.0)
    if isinstance(held, collections.deque | collections.UserList):
        return held[0]
    if isinstance(held, np.ndarray):
        return held[0]["weights"]
    return held["weights"] if hasattr(held, "keys") else held.weights


@pytest.mark.parametrize("kind", HOLDERS)
def test_an_array_in_an_object_of_a_static_one_is_never_that_of_an_earlier_call(x, kind):
    owner = Plain()
    compiled = pytc.compile(lambda x, owner: x * weights_in(owner.held))
    for k in range(3):
        owner.held = HOLDERS[kind](x + k)
        with pytest.raises(pytc.StaticLeafError, match=r"`owner` \(of type Plain\)"):
            compiled(x, owner)


class Shared(Plain):
    weights = None


def calls_of(compiled, owner):
    return {
        "call": lambda x: compiled(x, owner),
        "grad": jax.grad(lambda x: compiled(x, owner).sum()),
        "vmap": jax.vmap(lambda x: compiled(x, owner)),
        "jit": lambda x: jax.jit(lambda x: compiled(x, owner))(x),
        "scan": lambda x: jax.lax.scan(lambda c, _: (compiled(c, owner), None), x, None, 2)[0],
        "in another": lambda x: pytc.compile(lambda x: compiled(x, owner))(x),
        "lower": lambda x: compiled.lower(x, owner),
        "trace": lambda x: compiled.trace(x, owner),
        "debugging": lambda x: debugged(compiled, x, owner),
    }


def debugged(compiled, *args):
    with jax.debug_nans(True):
        return compiled(*args)


@pytest.mark.parametrize("where", ["object", "class"])
@pytest.mark.parametrize("how", calls_of(None, None))
def test_an_array_of_a_static_object_is_never_that_of_an_earlier_call(x, how, where):
    owner = Shared()
    compiled = pytc.compile(lambda x, owner: x * owner.weights)
    for k in range(3):
        (owner if where == "object" else Shared).weights = x.sum() + k
        with pytest.raises(pytc.StaticLeafError, match=r"`owner` .*`owner.weights`"):
            calls_of(compiled, owner)[how](x)


def test_a_static_function_may_be_a_compiled_one_or_a_partial_that_has_captured_arrays(x):
    weights = x + 1
    inner = pytc.compile(lambda x: x * weights)
    for function in (inner, functools.partial(jnp.multiply, weights)):
        calls = calls_of(pytc.compile(lambda x, f: f(x)), function)
        for how in calls:
            expected = calls_of(jax.jit(lambda x, f: x * weights, static_argnums=1), function)[how](x)
            if how in ("lower", "trace"):
                assert jax.tree.leaves(calls[how](x).out_info) == jax.tree.leaves(expected.out_info)
            else:
                np.testing.assert_array_equal(calls[how](x), expected)
        np.testing.assert_array_equal(pytc.compile(lambda x, f: f(x))(x, function), x * weights)


@pytest.mark.parametrize("make", [pytc.compile, jax.jit])
def test_a_static_object_may_have_functions_that_have_captured_arrays(x, make):
    weights = x + 1
    owner = Plain()
    owner.inner = make(lambda x: x * weights)
    owner.inner(x)
    owner.method = types.MethodType(pytc.compile(lambda _, x: x * weights, static_argnums=0), 1)
    owner.method(x)
    for kind in ("inner", "method"):
        for call in calls_of(pytc.compile(lambda x, owner, kind=kind: getattr(owner, kind)(x)), owner).values():
            call(x)


def test_a_static_object_may_be_full_of_cycles(x):
    """JAX's own flattening would fill the stack, and the interpreter, too, would be out of order from then on."""
    table, tree, owner = x + 1, {}, Plain()
    tree["children"] = [{"parent": tree}]
    tree["itself"] = [tree["children"]]
    tree["itself"].append(tree["itself"])
    owner.tree, owner.scale = tree, 2
    compiled = pytc.compile(lambda x, node: x * table * node.scale)
    np.testing.assert_array_equal(compiled(x, owner), x * table * 2)
    tree["children"][0]["weights"] = table
    with pytest.raises(pytc.StaticLeafError, match=r"`node\.tree\['children'\]\[0\]\['weights'\]`"):
        pytc.compile(lambda x, node: x * node.tree["children"][0]["weights"])(x, owner)


def test_a_large_static_object_is_looked_into_only_so_far(x):
    table, owner, steps = x + 1, Plain(), []
    owner.parts = [Counted(steps) for _ in range(60_000)]
    np.testing.assert_array_equal(pytc.compile(lambda x, owner: x * table)(x, owner), x * table)
    assert 0 < len(steps) < 55_000


class Counted:
    """Notes that its attributes are looked at."""

    def __init__(self, steps):
        self._steps = steps

    def __getattribute__(self, name):
        if name == "__dict__":
            object.__getattribute__(self, "_steps").append(name)
        return object.__getattribute__(self, name)


def test_what_a_static_function_has_captured_is_constant(x):
    weights = x + 1
    np.testing.assert_array_equal(pytc.compile(lambda x, f: f(x))(x, lambda y: y * weights), x * weights)


@pytest.mark.parametrize("make", [lambda: iter([1, 2]), lambda: (n for n in (1, 2)), lambda: reversed([1, 2])])
def test_what_is_used_up_is_no_argument(x, make):
    with pytest.raises(pytc.StaticLeafError, match=r"`numbers` is of type \w+, which can be read only once"):
        pytc.compile(lambda x, numbers: x)(x, numbers=make())


def test_what_describes_an_array_is_none():
    for jit in (jax.jit, pytc.compile):
        with pytest.raises(TypeError, match="is not a valid JAX type"):
            jit(lambda x: x)(jax.ShapeDtypeStruct((2,), jnp.float32))


@pytest.mark.parametrize(
    "name", ["name", "stop_gradient", "vprim", "maybe_set", "gather", "scan", "remat2", "add", "jit"]
)
def test_a_primitive_that_goes_by_the_name_of_another(x, name):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: x * 5)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x * 3, multiple_results=False))
    f = pytc.compile(lambda x: primitive.bind(x + 1))
    for _ in range(3):
        np.testing.assert_array_equal(f(x), (x + 1) * 3)
    np.testing.assert_array_equal(f(pytc.move(x + 0)), (x + 1) * 3)
    if name not in ("vprim", "maybe_set"):  # which are Equinox's
        for refuses in (pytc.explain, lambda f, x: pytc.finalise(jax.make_jaxpr(f)(x))):
            with pytest.raises(TypeError, match=f"`{name}`.*give it another name"):
                refuses(f, x)


@pytest.mark.parametrize("option", ["device", "backend"])
def test_the_caller_is_warned_once_of_options_that_jax_warns_of(x, option):
    value = jax.devices()[0] if option == "device" else "cpu"
    for by in (jax.jit, pytc.compile):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            f = by(lambda x: x + 1, **{option: value})
            f(x), f(x[:1])
        assert [(each.category, each.filename) for each in caught] == [(DeprecationWarning, __file__)]


@pytest.mark.filterwarnings("ignore:backend and device argument on jit is deprecated:DeprecationWarning")  # JAX's text
def test_what_is_returned_as_it_is_goes_to_the_device_that_is_asked_for(x):
    device = jax.devices()[0]
    for jit in (jax.jit, pytc.compile):
        f = jit(lambda x, y: (x + y, x), device=device)
        assert [each.committed for each in f(x, x)] == [True, True]


def test_many_contexts_are_compiled_for_once_each(x):
    traced = []

    @pytc.compile
    def f(x):
        traced.append(1)
        return x @ x

    def calls():
        for precision in ("bfloat16", "tensorfloat32", "float32", "highest", "high"):
            for promotion in ("standard", "strict"):
                with jax.default_matmul_precision(precision), jax.numpy_dtype_promotion(promotion):
                    f(x)

    calls()
    first = len(traced)
    calls()
    calls()
    assert len(traced) == first


def test_static_leaves_under_a_transformation(x):
    f = pytc.compile(lambda tree: tree["fn"](tree["x"]).sum())
    np.testing.assert_array_equal(jax.grad(lambda x: f({"x": x, "fn": jnp.sin}))(x), jnp.cos(x))


def test_ahead_of_time(x):
    def f(state, batch):
        return state + batch.sum(), batch

    for donate, expected in (("auto", 0), ("none", 0), ("all", 16)):
        compiled = pytc.compile(f, donate=donate).lower(x, jnp.ones(7)).compile()
        assert compiled.memory_analysis().alias_size_in_bytes == expected
        state = x + 0
        np.testing.assert_array_equal(compiled(state, jnp.ones(7))[0], np.arange(4.0) + 7)
        assert state.is_deleted() == bool(expected)
    traced = pytc.compile(f).trace(x, x)
    assert isinstance(traced, jax.stages.Traced)
    assert pytc.compile(f).eval_shape(x, x)[0].shape == (4,)
    assert "func.func" in pytc.compile(f, static_argnames="batch").lower(x, np.float32(1)).as_text()


def test_disable_jit_runs_the_function_itself(x):
    seen = []
    f = pytc.compile(lambda x: seen.append(isinstance(x, jax.core.Tracer)) or x + 1)
    f(x)
    with jax.disable_jit():
        np.testing.assert_array_equal(f(x), x + 1)
    assert seen == [True, False]


def test_debug_nans_finds_the_operation_and_leaves_the_inputs():
    f = pytc.compile(lambda x: jnp.log(x) + 1, donate="all")
    f(jnp.ones(3))
    x = -jnp.ones(3)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        f(x)
    np.testing.assert_array_equal(x, -np.ones(3))


def test_compiles_are_logged_under_the_functions_name(x, caplog):
    def a_name_to_look_for(x):
        return x + 1

    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        pytc.compile(a_name_to_look_for)(x)
    assert any("a_name_to_look_for" in record.getMessage() for record in caplog.records)


def test_the_persistent_cache_is_used(tmp_path, x):
    script = (
        "import jax, pytc, jax.numpy as jnp\n"
        f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path)!r})\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name))\n"
        "def cached_step(s, b): return s * b, b\n"
        "pytc.compile(cached_step, donate='all')(jnp.arange(4.), jnp.ones(4))\n"
        "print(sum('cache_hits' in h for h in hits))\n"
    )
    runs = [int(interpreters.printed(["-c", script])) for _ in range(2)]
    assert any("cached_step" in p.name for p in tmp_path.iterdir())
    assert runs[1] > runs[0]


class Tagged:
    def __init__(self, x, tag):
        self.x, self.tag = x, tag


jax.tree_util.register_pytree_node(
    Tagged, lambda each: ((each.x,), each.tag), lambda tag, children: Tagged(*children, tag)
)


@pytest.mark.parametrize(
    ("wrap", "given", "told"),
    [
        (lambda x: {"a": x}, lambda x: {"b": x}, r"different keys of dict at `in_shardings\[0\]`"),
        (lambda x: {"a": x}, lambda x: [x], r"different types, dict and list, at `in_shardings\[0\]`"),
        (lambda x: [{"a": [x]}], lambda x: [{"a": x}], r"a list for a leaf at `in_shardings\[0\]\[0\]\['a'\]`"),
        (lambda x: Tagged(x, "one"), lambda x: Tagged(x, "two"), r"different data of Tagged at `in_shardings\[0\]`"),
    ],
    ids=["keys", "types", "a leaf", "data"],
)
def test_where_a_prefix_differs_from_the_arguments(x, wrap, given, told):
    where = x.sharding
    step = pytc.compile(lambda tree: jax.tree.map(lambda x: x + 1, tree), in_shardings=(wrap(where),))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(step(wrap(x))), [x + 1])
    with pytest.raises(ValueError, match=told):
        step(given(x))


def test_shardings_asked_for_are_given(x):
    mesh = jax.make_mesh((1,), ("d",))
    split, whole = jax.NamedSharding(mesh, jax.P("d")), jax.NamedSharding(mesh, jax.P())

    def f(state, batch):
        return {"a": state["a"] + batch, "b": state["b"]}, batch.sum()

    for sequence in (tuple, list):
        options = {"in_shardings": sequence([{"a": split, "b": None}, whole]), "out_shardings": (split, None)}
        ours = pytc.compile(f, **options)({"a": x, "b": x + 1}, x)
        theirs = jax.jit(f, **options)({"a": x, "b": x + 1}, x)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        assert jax.tree.map(lambda v: v.sharding, ours) == jax.tree.map(lambda v: v.sharding, theirs)
    with pytest.raises(ValueError, match=r"in_shardings must be a pytree prefix.* at `in_shardings\[0\]`"):
        pytc.compile(f, in_shardings=({"c": split}, whole))({"a": x, "b": x}, x)
    with pytest.raises(ValueError, match=r"out_shardings must be a pytree prefix.*lengths of tuple at `out_shard"):
        pytc.compile(f, out_shardings=(split, None, None))({"a": x, "b": x}, x)
    with pytest.raises(ValueError, match="batch"):
        pytc.compile(f, in_shardings=whole)({"a": x, "b": x}, batch=x)


@pytest.mark.parametrize("empty", [(), [], {}], ids=str)
def test_of_an_empty_container_no_sharding_is_asked(x, empty):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    step = pytc.compile(lambda empty, x: (empty, x + 1), in_shardings=(empty, here), out_shardings=(empty, here))
    assert step(empty, x)[0] == empty


def test_committed_arguments_and_captured_arrays(x):
    table = jnp.arange(4.0) * 0.5
    device = jax.devices()[-1]
    result = pytc.compile(lambda x: x + table)(jax.device_put(x, device))
    np.testing.assert_array_equal(result, x + table)
    assert result.devices() == {device}


def test_a_copy_within_a_device_is_no_transfer(x):
    f = pytc.compile(lambda v: v + 1)
    table = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    captured = pytc.compile(lambda v: v @ table)
    held = [f(f(x + 0))]
    with jax.transfer_guard("disallow_explicit"):
        for _ in range(3):
            state = held[0]
            state = f(state)
            captured(state)
    np.testing.assert_array_equal(held[0], np.arange(4.0) + 2)
    np.testing.assert_array_equal(state, np.arange(4.0) + 3)


def test_effects_stay_and_stay_in_order(x, capfd):
    calls = []

    @pytc.compile
    def f(x, unused):
        jax.debug.print("first {}", x[0], ordered=True)
        jax.debug.callback(lambda v: calls.append(float(v)), x[1], ordered=True)
        jax.debug.print("second", ordered=True)

    f(x, jnp.ones(3))
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert out.index("first 0.0") < out.index("second")
    assert calls == [1.0]


def test_a_ref_argument_is_written(x):
    ref = jax.new_ref(jnp.zeros(4))

    @pytc.compile
    def accumulate(ref, x):
        ref[...] += x

    for _ in range(2):
        accumulate(ref, x)
    np.testing.assert_array_equal(ref[...], 2 * np.arange(4.0))


@pytest.mark.parametrize("where", [lambda ref, x: {"a": x, "n": 1, "z": [x, ref]}, lambda ref, _: ref])
def test_a_ref_that_is_returned_is_named_as_by_jit(x, where):
    ref, errors = jax.new_ref(jnp.zeros(4)), []
    for compiler in (jax.jit, pytc.compile):
        with pytest.raises(ValueError, match="mutable array reference") as raised:
            compiler(where)(ref, x)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_recursion_and_nesting(x):
    @pytc.compile
    def f(x, n):
        return x if n == 0 else f(x, n - 1) + 1

    f = pytc.compile(f.__wrapped__, static_argnames="n")
    outer = pytc.compile(f, static_argnames="n")
    for n in (0, 3):
        np.testing.assert_array_equal(outer(x, n), x + n)


def test_calls_from_several_threads(x):
    traces = []

    @pytc.compile
    def f(tree):
        traces.append(None)
        return jax.tree.map(lambda v: v * 2 + 1, tree)

    def work(seed):
        state = {"a": jnp.full(3, seed), "b": jnp.full((seed % 3 + 1,), 1.0)}
        for _ in range(20):
            state = f(state)
        return np.asarray(state["a"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(16)))
    for seed, got in enumerate(results):
        expected = {"a": jnp.full(3, seed)}
        for _ in range(20):
            expected = jax.tree.map(lambda v: v * 2 + 1, expected)
        np.testing.assert_array_equal(got, expected["a"])


def test_results_equal_jits_to_the_bit_in_a_training_loop():
    def loss(params, batch):
        h = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
        return jnp.mean((h @ params["w2"] - batch["y"]) ** 2)

    def step(params, mu, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, mu, grads)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, mu), mu, value

    def train(step):
        keys = jax.random.split(jax.random.key(0), 4)
        params = {
            "w1": jax.random.normal(keys[0], (8, 16)),
            "b1": jnp.zeros(16),
            "w2": jax.random.normal(keys[1], (16, 2)),
        }
        mu = jax.tree.map(jnp.zeros_like, params)
        batch = {"x": jax.random.normal(keys[2], (32, 8)), "y": jax.random.normal(keys[3], (32, 2))}
        losses = []
        for _ in range(30):
            params, mu, value = step(params, mu, batch)
            losses.append(float(value))
        return losses, params

    ours, theirs = train(pytc.compile(step)), train(jax.jit(step))
    assert ours[0] == theirs[0]
    jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])


def test_a_second_plan_is_not_traced_for_another_signature(x):
    """A plan of its own for one call site must not be made of a program that was staged for other shapes."""
    f = pytc.compile(lambda x: x * x.shape[0])
    for n in (3, 5, 3):
        np.testing.assert_array_equal(f(pytc.move(jnp.ones(n))), np.full(n, n))
        np.testing.assert_array_equal(f(jnp.ones(n + 1)), np.full(n + 1, n + 1))
    g = pytc.compile(lambda x: x * (2 if jax.config.jax_enable_x64 else 1))
    np.testing.assert_array_equal(g(x), x)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(g(pytc.move(jnp.arange(4, dtype=jnp.float32))), x * 2)
        np.testing.assert_array_equal(g(x), x * 2)
    np.testing.assert_array_equal(g(x), x)


@pytest.mark.parametrize("number", [np.int64(0), np.array(0), [np.int32(0)], range(1)])
def test_numbers_of_any_kind_in_options(number):
    np.testing.assert_array_equal(pytc.compile(lambda n, x: x * n, static_argnums=number)(2, jnp.ones(3)), [2, 2, 2])
    x = jnp.ones(3)
    pytc.compile(lambda x, n: x * n, donate_argnums=number)(x, 2)
    assert x.is_deleted()


def test_messages_of_jax_name_arguments_as_the_function_does():
    step = pytc.compile(lambda state, batch, *, scale: {"w": state["w"] * batch * scale})
    step({"w": jnp.ones(3)}, jnp.ones(3), scale=jnp.ones(3))
    (layout,) = step.__pytc__.lookup.layouts.values()
    (signatures,) = layout
    (plan, *_) = signatures.newest[0].plans
    text = plan.emitted.lower([jnp.ones(3), jnp.ones(3), jnp.ones(3)]).as_text(debug_info=True)
    assert all(f'loc("{name}")' in text for name in ("state['w']", "batch", "scale"))


def test_arrays_of_weak_type_are_told_from_others():
    """However many ways they are mixed, each is compiled once."""
    traces = []

    @pytc.compile
    def f(a, b, c, d):
        traces.append(None)
        return a + b, c + d

    kinds = (lambda: jnp.asarray(1.0), lambda: jnp.float32(1.0))
    for _ in range(3):
        for made in itertools.product(kinds, repeat=4):
            one, other = f(*(make() for make in made))
            assert one.weak_type == all(make is kinds[0] for make in made[:2])
            assert other.weak_type == all(make is kinds[0] for make in made[2:])
    assert len(traces) == 16


def test_keywords_that_are_keywords_of_python():
    state = {"lambda": jnp.ones(3), "class": jnp.zeros(2), "x": jnp.ones(1)}
    step = pytc.compile(lambda **state: {name: value + 1 for name, value in state.items()})
    for _ in range(5):
        state = step(**state)
    np.testing.assert_array_equal(state["lambda"], np.full(3, 6.0))


@jax.tree_util.register_pytree_node_class
class Told(list):
    """A result that tells of itself when it is put together."""

    arrived = queue.SimpleQueue()

    def tree_flatten(self):
        return [*self], None

    @classmethod
    def tree_unflatten(cls, _, children):
        made = cls(children)
        if all(isinstance(child, jax.Array) and not isinstance(child, jax.core.Tracer) for child in made):
            cls.arrived.put(made)
        return made


def test_called_with_no_python_code_beneath():
    """As a thread's function, one of a greenlet, or at the end of the interpreter."""
    step = pytc.compile(lambda x: Told([x + 1]))
    x = jnp.ones(3)
    for _ in range(3):
        _thread.start_new_thread(step, (x,))
        np.testing.assert_array_equal(Told.arrived.get(timeout=60)[0], np.full(3, 2.0))
    np.testing.assert_array_equal(x, np.ones(3))
    code = """
import atexit, jax.numpy as jnp, pytc
atexit.register(pytc.compile(lambda x: print("traced") or x), jnp.ones(3))
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("traced\n", "")


def test_called_by_a_finaliser_when_the_interpreter_ends():
    """JAX has let go of its clients by then, and where it makes new ones it may wait for a thread that never starts: so
    it does on CPython 3.11, as it looks for a TPU."""
    code = """
import sys, types, jax.numpy as jnp, pytc
step = pytc.compile(lambda x: x + 1)
class Trainer:
    def __init__(self):
        self.state = jnp.zeros(3)
        self.train()
    def train(self):
        for _ in range(3):
            self.state = step(self.state)
    def __del__(self):
        print("ends", flush=True)
        self.train()
app = sys.modules["app"] = types.ModuleType("app")
app.first, app.second = Trainer(), Trainer()
"""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60)
    assert ran.stdout == "ends\nends\n"
    assert "deleted" not in ran.stderr  # which says that the call has failed, as that of `jax.jit` does


def test_jax_jit_may_be_replaced():
    """By `pytc.compile` itself, for all that a program compiles, or by what compiles nothing."""
    code = """
import jax, jax.numpy as jnp, pytc
before = pytc.compile(lambda x: x + 1)
jax.jit = pytc.compile
step = jax.jit(lambda x: jnp.sin(x) * 2)
x = jnp.ones(3)
for _ in range(3):
    x = before(step(x))
print(pytc.explain(step, x).reused > 0, float(jax.grad(lambda x: step(x).sum())(x)[0]) != 0)
jax.jit = lambda fun, **_: fun
print(before(before(x)).shape, pytc.compile(lambda x: x * 2)(x).shape)
"""
    ran = interpreters.run(["-c", code])
    assert (ran.stdout, ran.stderr) == ("True True\n(3,) (3,)\n", "")


def nested(depth, wrap):
    function = lambda x: x + 1  # noqa: E731
    for _ in range(depth):
        function = (lambda inner: lambda x: wrap(inner)(x) * 2)(function)
    return function


@pytest.fixture
def short_stack():
    """XLA takes ever longer the deeper a program is nested, so Python's stack ends earlier: 400 frames from here."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 400)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("short_stack")
@pytest.mark.parametrize(
    "wrap", [jax.jit, lambda inner: lambda x: jax.lax.cond(x.sum() > 0, inner, lambda x: x, x)], ids=["jit", "cond"]
)
def test_nested_as_deeply_as_jax_jit_can(wrap):
    """Where a pass would need more of Python's stack than there is, the program does without it."""
    x, ran = jnp.ones(3), 0
    for depth in range(20, 71, 10):
        try:
            jax.jit(nested(depth + 5, wrap))(x)  # a call of `pytc.compile` takes a few frames itself
        except RecursionError:
            break
        ran += 1
        wanted = jax.jit(nested(depth, wrap))(x)
        np.testing.assert_array_equal(pytc.compile(nested(depth, wrap))(x), wanted)
    assert ran > 1


@pytest.mark.parametrize("around", [lambda tree: {"a": tree}, lambda tree: (tree,)], ids=["dict", "tuple"])
def test_trees_as_deep_as_jax_jit_can(around):
    """Some interpreters let JAX take trees apart that are deeper than Python's stack."""
    step, ran = pytc.compile(lambda tree: jax.tree.map(lambda x: x + 1, tree)), 0
    for depth in (100, 500, 1500):
        tree = functools.reduce(lambda tree, _: around(tree), range(depth), jnp.zeros(3))
        deeper = functools.reduce(lambda tree, _: around(tree), range(200), tree)  # a call takes some frames itself
        try:
            jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))(deeper)
        except Exception:  # a full stack shows as errors of many kinds
            break
        ran += 1
        for _ in range(6):
            tree = step(tree)
        (leaf,) = jax.tree.leaves(tree)
        assert leaf.tolist() == [6, 6, 6]
    assert ran > 0


def test_a_pass_that_goes_too_deep_is_noted(monkeypatch):
    def bottomless(program):
        return bottomless(program)

    step = pytc.compile(lambda x: x + 1, passes=[bottomless])
    with pytest.raises(RecursionError):
        step(jnp.ones(3))
    monkeypatch.setattr(pytc.passes, "pipeline", (bottomless,))
    program = pytc.passes.run(pytc.stage(lambda x: x + 1, jnp.ones(3)), [bottomless])
    assert [note.text for note in program.notes] == ["left out: the program is nested too deeply for Python's stack"]
