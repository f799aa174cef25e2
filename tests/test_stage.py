"""stage: any function over any pytree, traced once, as `jax.jit` traces it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import math
import sys
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from flax.training.train_state import TrainState

import pytc
from pytc.program import Computed, Kept


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Record:
    value: Any
    label: str = dataclasses.field(metadata={"static": True}, default="r")


@jax.tree_util.register_pytree_node_class
class Custom:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def tree_flatten(self):
        return (self.a, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Colour(enum.Enum):
    RED = 1


ONE = jnp.arange(3.0)

TREES = {
    "dict": {"b": ONE, "a": ONE + 1},
    "list": [ONE, ONE + 1],
    "tuple": (ONE, (ONE + 1,)),
    "namedtuple": Pair(ONE, ONE + 1),
    "dataclass": Record(ONE),
    "custom": Custom(ONE, ONE + 1),
    "none": {"a": None, "b": ONE},
    "ordered": collections.OrderedDict(z=ONE, a=ONE + 1),
    "default": collections.defaultdict(list, {"a": ONE}),
    "empty": {"a": (), "b": [], "c": ONE},
    "equinox": eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)),
    "optax": optax.adam(1e-3).init({"w": ONE}),
    "flax": TrainState.create(apply_fn=print, params={"w": ONE}, tx=optax.sgd(0.1)).replace(step=ONE),
    "frozen": FrozenDict({"w": ONE, "v": {"u": ONE}}),
}


def double(tree):
    return jax.tree.map(lambda x: x * 2 if isinstance(x, jax.Array) else x, tree)


def assert_same(a, b):
    leaves_a, tree_a = jax.tree.flatten(a)
    leaves_b, tree_b = jax.tree.flatten(b)
    assert tree_a == tree_b
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if isinstance(x, jax.Array):
            assert isinstance(y, jax.Array)
            assert jax.typeof(x) == jax.typeof(y)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                x, y = jax.random.key_data(x), jax.random.key_data(y)
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        elif isinstance(x, np.ndarray):  # float0
            assert (type(x), x.dtype, x.shape) == (type(y), y.dtype, y.shape)
        else:
            assert x is y


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_any_pytree_goes_in_and_comes_out(tree):
    expected = double(tree)
    assert_same(pytc.compile(double)(tree), expected)


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.5,
        True,
        2 + 1j,
        np.float32(1),
        np.int8(3),
        np.bool_(True),
        np.arange(3),
        np.arange(3, dtype=np.float64),
        ml_dtypes.bfloat16(1.5),
        np.ones(2, ml_dtypes.bfloat16),
        jnp.ones(2, jnp.bfloat16),
        jnp.zeros((0, 3)),
        np.zeros((2,), jax.dtypes.float0),
        jax.random.key(0),
        jax.random.PRNGKey(0),
        jnp.asarray(1.0),
        jax.numpy.array(2),
    ],
    ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', '')}",
)
def test_scalars_and_dtypes_are_traced_as_jit_traces_them(value):
    identity = lambda x: (x, x)  # noqa: E731
    staged = pytc.stage(identity, value)
    assert staged.in_avals == tuple(v.aval for v in jax.jit(identity).trace(value).jaxpr.jaxpr.invars)
    assert_same(pytc.compile(identity)(value), jax.jit(identity)(value))


@pytest.mark.parametrize("x64", [False, True])
def test_64_bit_mode_is_followed(x64):
    compiled = pytc.compile(lambda x, n: x * n)
    for mode in (x64, not x64, x64):
        with jax.enable_x64(mode):
            result = compiled(np.ones(2), 2)
            assert result.dtype == (jnp.float64 if mode else jnp.float32)


def test_weak_types_are_part_of_the_signature():
    traces = []

    @pytc.compile
    def f(x):
        traces.append(x.weak_type)
        return x * jnp.ones((), jnp.bfloat16)

    strong, weak = jnp.ones((), jnp.float32), jax.jit(lambda: 1.0)()
    assert weak.weak_type
    assert [f(x).dtype for x in (strong, weak, strong, weak)] == [jnp.float32, jnp.bfloat16] * 2
    assert traces == [False, True]


@pytest.mark.parametrize("static", ["sum", Colour.RED, print, (lambda x: x), frozenset([1]), b"x", type, object()])
def test_any_other_leaf_is_static(static):
    seen = []

    @pytc.compile
    def f(x, thing):
        seen.append(thing)
        return x + 1, thing

    for _ in range(2):
        _, thing = f(ONE, static)
        assert thing is static
    assert seen == [static]
    program = pytc.stage(lambda x, thing: (x, thing), ONE, static)
    assert program.leaves[1].is_static
    assert program.outputs[1].origin == Kept(static)


def test_a_changed_static_leaf_is_another_signature():
    seen = []

    @pytc.compile
    def f(x, mode):
        seen.append(mode)
        return x + 1 if mode == "up" else x - 1

    for mode, expected in [("up", 2.0), ("down", 0.0), ("up", 2.0)]:
        assert float(f(1.0, mode)) == expected
    assert seen == ["up", "down"]


def test_static_leaves_inside_containers_and_modules():
    module = eqx.nn.MLP(3, 2, 4, 1, activation=jax.nn.gelu, key=jax.random.key(0))
    loss = lambda m, x: jnp.sum(m(x) ** 2)  # noqa: E731
    compiled = pytc.compile(lambda m, x: (jax.tree.map(lambda g: g, m), loss(m, x)))
    again, value = compiled(module, ONE)
    assert again.activation is module.activation or again.activation == module.activation
    np.testing.assert_array_equal(value, eqx.filter_jit(loss)(module, ONE))


def test_an_unhashable_static_leaf_is_named():
    with pytest.raises(pytc.StaticLeafError, match=r"`config\['table'\]\[1\]`.*set.*cannot be hashed"):
        pytc.compile(lambda x, config: x)(ONE, {"table": [1.0, {1, 2}]})
    with pytest.raises(pytc.StaticLeafError, match=r"`config\['raw'\]`.*memoryview.*cannot be hashed"):
        pytc.compile(lambda x, config: x)(ONE, {"raw": memoryview(bytearray(3))})
    with pytest.raises(pytc.StaticLeafError, match=r"`names`: JAX has no type for a NumPy array of <U1.*as numbers"):
        pytc.compile(lambda x, names: x)(ONE, np.array(["a", "b"]))


def test_an_unhashable_static_leaf_is_named_at_every_call():
    times = pytc.compile(lambda x, n: x * len(n), static_argnames="n")
    for n in ([1], (1, 2), [1], [1]):
        if isinstance(n, tuple):
            np.testing.assert_array_equal(times(ONE, n), ONE * 2)
            continue
        with pytest.raises(pytc.StaticLeafError, match=r"`n`.*list.*cannot be hashed"):
            times(ONE, n)


@pytest.mark.parametrize("decorator", [jax.jit, pytc.compile])
def test_what_is_no_array_nor_a_key_is_the_error_that_it_is_to_jax(decorator):
    with pytest.raises(TypeError):
        decorator(lambda x, names: x)(ONE, {1, 2})
    with pytest.raises(ValueError, match=r"hash"):
        decorator(lambda x, names: x, static_argnums=1)(ONE, [1, 2])


class Incomparable:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise RuntimeError("of no use")


@pytest.mark.parametrize("decorator", [jax.jit, pytc.compile])
def test_static_arguments_that_cannot_be_compared_are_the_error_that_they_are_to_jax(decorator):
    fun = decorator(lambda x, config: x * 2, static_argnums=1)
    fun(ONE, Incomparable())
    with pytest.raises(ValueError, match="static arguments should be comparable using __eq__"):
        fun(ONE, Incomparable())


class Box:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


def caught(x):
    """An error whose traceback has the frame in which `x` is."""
    try:
        raise ValueError("bad")
    except ValueError as error:
        return error


async def coroutine(x):
    return x


def in_a_closure(x):
    return lambda: x


def in_an_empty_cell(x):
    def unset():
        return later

    if x.ndim > 5:
        later = x
    return unset


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore:Python iterable type")
@pytest.mark.parametrize(
    ("fun", "what"),
    [
        (lambda x: zip([x], [x], strict=True), "of type zip, which can be read only once"),
        (lambda x: (each for each in [x]), "of type generator, which can be read only once"),
        (coroutine, "a coroutine, .*compile a plain function"),
        (in_a_closure, "of type function, .* and holds a traced array"),
        (lambda x: functools.partial(jnp.add, x), "of type partial, .* and holds a traced array"),
        (lambda x: Box([{"x": x}]), "of type Box, .* and holds a traced array"),
        (lambda x: Box(x + 1).get, "of type method, .* and holds a traced array"),
        (lambda x: {"a": x}.values(), "of type dict_values, .* and holds a traced array"),
        (lambda x: collections.deque([x]), "of type deque, .* and holds a traced array"),
        (lambda x: Slotted(x), "of type Slotted, .* and holds a traced array"),
        (lambda x: types.MappingProxyType({"a": [x]}), "of type mappingproxy, .* and holds a traced array"),
        (lambda x: ValueError("bad", x), "of type ValueError, .* and holds a traced array"),
        (lambda x: slice(x), "of type slice, .* and holds a traced array"),
        (lambda x: property(lambda self, default=x: default), "of type property, .* and holds a traced array"),
        (lambda x: [x].append, "of type builtin_function_or_method, .* and holds a traced array"),
    ],
)
def test_what_cannot_be_returned_at_every_call_is_refused_and_named(fun, what):
    refused = pytc.compile(fun)
    for _ in range(2):
        with pytest.raises(TypeError, match=f"`result`: it is {what}"):
            refused(ONE)
    if not inspect.iscoroutinefunction(fun):
        with pytest.raises(TypeError, match=rf"`result\['a'\]\[0\]`: it is {what}"):
            pytc.compile(lambda x: {"a": [fun(x)], "b": x})(ONE)


@pytest.mark.parametrize("array", [np.array(["s"]), np.array([None]), np.array(["2020"], "M8[D]")], ids=str)
def test_arrays_of_what_is_no_number_are_refused_and_named(array):
    for fun, path in {lambda x: array: "", lambda x: {"a": x, "b": [array]}: r"\['b'\]\[0\]"}.items():
        with pytest.raises(TypeError, match=f"cannot return `result{path}`: JAX has no type for a NumPy array of"):
            pytc.compile(fun)(ONE)


@pytest.mark.parametrize(
    "fun", [caught, lambda x: Box, lambda x: jnp.add, lambda x: np, lambda x: collections.deque([Box(np.ones(2))])]
)
def test_what_holds_no_traced_array_is_returned(fun):
    result, other = pytc.compile(lambda x: (x + 1, fun(x)))(ONE)
    np.testing.assert_array_equal(result, ONE + 1)
    assert isinstance(other, type(fun(ONE)))


def test_a_tracer_of_what_is_around_is_returned():
    """It means something for as long as whoever gets it back traces."""

    def around(y):
        scale = functools.partial(jnp.multiply, y)
        return pytc.compile(lambda x: (x + 1, scale))(ONE)[1](3.0)

    assert float(jax.jit(around)(2.0)) == 6.0
    assert float(jax.grad(around)(2.0)) == 3.0


@pytest.mark.parametrize("decorator", [jax.jit, pytc.compile])
def test_a_tracer_that_has_escaped_is_refused_as_by_jax(decorator):
    escaped = []
    decorator(escaped.append)(ONE)
    for fun in (lambda x: x + escaped[0], lambda x: escaped[0]):
        for _ in range(2):
            with pytest.raises(jax.errors.UnexpectedTracerError, match="was created on line"):
                decorator(fun)(ONE)


def test_a_tracer_that_has_escaped_is_nothing_to_stage():
    escaped = []
    jax.jit(escaped.append)(ONE)
    for look in (pytc.stage, pytc.explain):
        with pytest.raises(TypeError, match=r"has captured what can be no constant .*: a tracer that escaped"):
            look(lambda x: x + escaped[0], ONE)


def test_looking_for_tracers_ends():
    web = [Box(None) for _ in range(300)]
    for each in web:
        each.value = web
    assert pytc.compile(lambda x: web[0])(ONE) is web[0]
    endless = Box(range(10**9))
    endless.value = Box([Box(number) for number in range(20_000)])
    assert pytc.compile(lambda x: endless)(ONE) is endless


@pytest.mark.parametrize("value", [in_an_empty_cell, Box, Box(3), Box(3).get, range(3), functools, "text", {1, 2}, ...])
def test_what_holds_no_tracer_is_returned_as_it_is(value):
    returned = pytc.compile(lambda x: value)
    assert returned(ONE) is value
    assert returned(ONE) is value
    assert callable(pytc.compile(in_an_empty_cell)(ONE))


def test_static_arguments_as_in_jit():
    def power(x, n, *, scale="one"):
        assert isinstance(n, int)
        return x**n * (1 if scale == "one" else 2)

    for options in [
        {"static_argnums": 1, "static_argnames": ("scale",)},
        {"static_argnames": ("n", "scale")},
        {"static_argnums": (1,), "static_argnames": "scale"},
        {"static_argnums": (-1,), "static_argnames": "scale"},
    ]:
        ours, theirs = pytc.compile(power, **options), jax.jit(power, **options)
        assert_same(ours(ONE, 2, scale="two"), theirs(ONE, 2, scale="two"))
        assert_same(ours(ONE, 3), theirs(ONE, 3))
    by_keyword = pytc.compile(power, static_argnames=("n", "scale"))
    assert_same(by_keyword(ONE, n=2), by_keyword(ONE, 2))


@pytest.mark.parametrize("kind", [np.float64, np.complex128, np.float32, np.bool_, np.int8])
def test_numpy_scalars_are_traced_even_where_pythons_are_static(kind):
    traced = []
    f = pytc.compile(lambda x, n: (traced.append(type(n)), x * n)[1], python_scalars="static")
    for value in (1, 0, 2):
        np.testing.assert_array_equal(f(ONE, kind(value)), ONE * kind(value))
    assert len(traced) == 1
    assert issubclass(traced[0], jax.core.Tracer)


class Tensor:
    """An array of another library."""

    def __array__(self, dtype=None, copy=None):
        return np.ones(3, dtype)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (2**70, OverflowError),
        (np.zeros(2, [("a", "f4")]), pytc.StaticLeafError),
        (np.rec.array([(1, 2.0)]), pytc.StaticLeafError),
        (np.ma.masked_array([1.0], [True]), ValueError),
        (Tensor(), pytc.StaticLeafError),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_jax_has_no_type_for_is_named(wrong, error):
    with pytest.raises(error, match=r"^`sizes\[1\]`"):
        pytc.compile(lambda x, sizes: x)(ONE, [1, wrong])


def test_what_only_other_libraries_take_for_an_array_may_be_a_static_argument():
    summed = pytc.compile(lambda x, tensor: x + jnp.asarray(tensor).sum(), static_argnames="tensor")
    np.testing.assert_array_equal(summed(ONE, Tensor()), ONE + 3)


def test_a_static_argument_numbered_from_the_end_is_a_parameter_whatever_a_call_passes():
    def power(x, n=2):
        return x**n

    ours = pytc.compile(power, static_argnums=-1)
    for passed in ({}, {"n": 3}):
        assert_same(ours(ONE, **passed), jax.jit(power, static_argnums=1)(ONE, **passed))
    last = pytc.compile(lambda x, *more: x * more[-1], static_argnums=-1)
    np.testing.assert_array_equal(last(ONE, ONE, 3), ONE * 3)


def test_wrong_static_arguments_are_refused_when_decorating():
    with pytest.raises(ValueError, match="static_argnums"):
        pytc.compile(lambda x: x, static_argnums=3)
    with pytest.raises(ValueError, match="'nothing'"):
        pytc.compile(lambda x: x, static_argnames="nothing")


def test_python_scalars_can_be_static():
    @pytc.compile(python_scalars="static")
    def f(x, n, flag):
        assert isinstance(n, int)
        assert isinstance(flag, bool)
        return (x * n, n, flag) if flag else (x, n, flag)

    assert f(ONE, 2, True)[1:] == (2, True)
    np.testing.assert_array_equal(f(ONE, 2, True)[0], ONE * 2)
    assert f(ONE, 1, True)[1:] == (1, True)
    np.testing.assert_array_equal(f(ONE, 3, False)[0], ONE)


def test_static_floats_are_told_apart_by_their_bits():
    traces = []

    @pytc.compile(python_scalars="static")
    def f(x, s):
        traces.append(s)
        return jnp.copysign(x, s)

    for s in (0.0, -0.0, float("nan"), float("nan"), 0.0):
        f(1.0 * ONE, s)
    assert len(traces) == 3


def test_outputs_that_are_not_arrays_come_back_as_they_are():
    thing = object()
    result = pytc.compile(lambda x: {"x": x + 1, "name": "n", "thing": thing, "none": None, "three": 3})(ONE)
    assert result["name"] == "n"
    assert result["thing"] is thing
    assert result["none"] is None
    assert isinstance(result["three"], jax.Array)


def test_no_arguments_and_no_results():
    assert pytc.compile(lambda: None)() is None
    assert_same(pytc.compile(lambda: (1, jnp.arange(3)))(), jax.jit(lambda: (1, jnp.arange(3)))())


def test_paths_name_the_parameter():
    def f(state, *rest, **options):
        return state

    program = pytc.stage(f, {"p": [ONE, Record(ONE)]}, ONE, (ONE, ONE), k={"a": ONE})
    assert [leaf.path for leaf in program.leaves] == [
        "state['p'][0]",
        "state['p'][1].value",
        "rest[0]",
        "rest[1][0]",
        "rest[1][1]",
        "k['a']",
    ]
    assert [o.path for o in program.outputs] == ["['p'][0]", "['p'][1].value"]
    assert [leaf.parameter for leaf in program.leaves] == ["state", "state", "rest[0]", "rest[1]", "rest[1]", "k"]


def test_the_function_runs_once():
    runs = []

    @pytc.compile
    def f(x):
        runs.append(None)
        return x + 1

    for _ in range(3):
        f(ONE)
    assert len(runs) == 1


def test_a_program_is_computed_outputs_of_a_checked_jaxpr():
    program = pytc.stage(lambda x, n: (x * n, "s"), ONE, 2)
    assert [o.origin for o in program.outputs] == [Computed(0), Kept("s")]
    assert [given.leaf for given in program.inputs] == [0, 1]
    assert program.leaves[0].nbytes == 12
    jax.extend.core.check_jaxpr(program.jaxpr.jaxpr)


def test_abstract_arguments_will_do():
    program = pytc.stage(lambda x: x @ x, jax.ShapeDtypeStruct((4, 4), jnp.float32))
    assert program.out_avals[0].shape == (4, 4)


def test_errors_while_tracing_speak_of_the_users_arguments():
    def f(state, n):
        return state["x"][: int(n)]

    with pytest.raises(jax.errors.ConcretizationTypeError, match="the value of the argument n"):
        pytc.compile(f)({"x": ONE}, 2)


class Quantity(float):
    """A number with a unit, which tells it from others of the same value."""

    unit: str

    def __new__(cls, value, unit):
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def __eq__(self, other):
        return type(other) is Quantity and (float(self), self.unit) == (float(other), other.unit)

    def __hash__(self):
        return hash((float(self), self.unit))


class Phasor(complex):
    def __eq__(self, other):
        return type(other) is Phasor and self.imag == other.imag

    def __hash__(self):
        return hash(self.imag)


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"python_scalars": "static"}])
def test_static_numbers_of_users_classes_are_told_apart_as_these_say(options):
    traced = []

    @pytc.compile(**options)
    def f(x, by):
        traced.append(by)
        return x * float(by) * {"m": 1, "km": 1000}[by.unit]

    for unit in ("m", "km", "km"):
        np.testing.assert_array_equal(f(ONE, Quantity(2, unit)), ONE * 2 * {"m": 1, "km": 1000}[unit])
    assert len(traced) == 2
    g = pytc.compile(lambda x, by: x * by.imag, static_argnums=1)
    assert [g(1.0, Phasor(1, 2)), g(1.0, Phasor(2, 2)), g(1.0, Phasor(1, 3))] == [2, 2, 3]


def test_static_nans_are_told_apart_by_their_bits():
    f = pytc.compile(lambda x, nan: x * math.copysign(1, nan), static_argnums=1)
    assert [f(1.0, math.nan), f(1.0, -math.nan), f(1.0, complex(0, math.nan).imag)] == [1, -1, 1]


def test_static_objects_that_tell_nothing_of_their_class():
    class Lazy:
        @property
        def __class__(self):
            raise RuntimeError("nothing is bound to this")

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self is other

    class Unhashable(type):
        __hash__ = None

    class Static(metaclass=Unhashable):
        pass

    f = pytc.compile(lambda x, static: x * 2, static_argnums=1)
    for static in (Lazy(), Static()):
        for _ in range(3):
            np.testing.assert_array_equal(f(ONE, static), ONE * 2)


class Misnamed:
    """Its children have names in another order, or fewer than there are."""

    def __init__(self, *children):
        self.children = children


jax.tree_util.register_pytree_with_keys(
    Misnamed,
    lambda node: ([(jax.tree_util.SequenceKey(i), node.children[i]) for i in (0, 2, 1)], None),
    lambda _, children: Misnamed(*children),
    lambda node: (node.children, None),
)


def test_children_are_what_flattening_gives_whatever_their_names():
    a, b = jnp.float32(1), jnp.float32(7)
    f = pytc.compile(lambda node: Misnamed(*(child * 10**i for i, child in enumerate(node.children))))
    for each in ((a, a, b), (b, a, a), (a, b, a)):
        assert [int(child) for child in f(Misnamed(*each)).children] == [
            int(child) * 10**i for i, child in enumerate(each)
        ]


def test_a_result_with_more_children_than_have_names():
    f = pytc.compile(lambda x: Misnamed(x, x * 2, x * 3, x * 4))
    assert [int(child) for child in f(jnp.float32(1)).children] == [1, 2, 3, 4]


def test_static_arguments_are_not_flattened():
    """As trees they may never end, or be too deep; and their flattening is users' code."""

    class Node:
        def __init__(self):
            self.me = self

    flattened = []
    jax.tree_util.register_pytree_node(
        Node, lambda node: (flattened.append(node), ((node.me,), None))[1], lambda *_: Node()
    )
    deep = ()
    for _ in range(3000):
        deep = (deep,)

    def run(static, x):
        for _ in range(4):
            x = f(x, static)
            seen.append(compared({"x": x}, x, static)["x"] is x)
        return x

    f = pytc.compile(lambda x, static: x * 2, static_argnums=1)
    compared = pytc.compile(lambda state, x, static: {"x": x}, static_argnames="static")
    seen = []
    np.testing.assert_array_equal(run(Node(), ONE), ONE * 16)
    if sys.version_info >= (3, 12):  # before, it is too deep to be hashed
        np.testing.assert_array_equal(run(deep, ONE), ONE * 16)
    assert not flattened
    assert all(seen)


def test_a_bound_method_that_is_compiled_gets_its_object():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Scaled:
        by: Any

        @pytc.compile
        def times(self, x, *, plus=0.0):
            return x * self.by + plus

    scaled = Scaled(jnp.full(3, 2.0))
    program = pytc.stage(scaled.times, ONE, plus=1.0)
    assert [leaf.path for leaf in program.leaves] == ["self.by", "x", "plus"]
    again = pytc.stage(Scaled.times, scaled, ONE, plus=1.0)
    assert str(again.jaxpr) == str(program.jaxpr)
    for finalised in (pytc.finalise(scaled.times), functools.partial(pytc.finalise(Scaled.times), scaled)):
        np.testing.assert_array_equal(finalised(ONE, plus=1.0), ONE * 2 + 1)


@pytest.mark.parametrize(
    "dtype", ["int2", "uint2", "int4", "uint4", "float4_e2m1fn", "int8", "float8_e4m3fn", "bool", "int16"]
)
def test_a_leaf_has_the_bytes_that_xla_says(dtype):
    """XLA packs elements of less than a byte."""
    x = jnp.zeros((3, 333), dtype)
    program = pytc.stage(lambda x: x[::-1], x)
    compiled = jax.jit(lambda x: x[::-1]).lower(x).compile()
    assert program.leaves[0].nbytes == compiled.memory_analysis().argument_size_in_bytes
