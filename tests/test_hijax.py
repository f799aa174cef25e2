"""Values of the user's own types, of `jax.experimental.hijax`: what `jax.jit` does."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import hijax

import pytc


@dataclasses.dataclass(eq=False)
class Scaled:
    array: jax.Array
    scale: jax.Array


@dataclasses.dataclass
class Unhashable(Scaled):
    pass


@dataclasses.dataclass(frozen=True)
class OfScaled(hijax.HiType):
    kind: type[Scaled]
    size: int

    def lo_ty(self):
        return [jax.core.ShapedArray(shape, jnp.dtype("float32")) for shape in ((self.size,), ())]

    def lower_val(self, value):
        return [value.array, value.scale]

    def raise_val(self, array, scale):
        return self.kind(array, scale)

    def to_tangent_aval(self):
        return self


class Primitive(getattr(hijax, "VJPHiPrimitive", None) or hijax.HiPrim):
    def __init__(self, given, out):
        self.in_avals, self.out_aval, self.params = (given,), out, {}
        super().__init__()


class Make(Primitive):
    def expand(self, array):
        return Scaled(array * 2, array.sum())


class Use(Primitive):
    def expand(self, value):
        return value.array * value.scale


for each in (Scaled, Unhashable):
    hijax.register_hitype(each, lambda value: OfScaled(type(value), value.array.size))


def make(array):
    return Make(jax.typeof(array), OfScaled(Scaled, array.size))(array)


def use(value):
    return Use(jax.typeof(value), jax.typeof(jnp.ones(3)))(value)


@pytest.mark.parametrize("kind", [Scaled, Unhashable])
def test_an_argument_is_read_at_each_call(kind):
    traced = []
    f = pytc.compile(lambda value: (traced.append(value), use(value))[1])
    value = kind(jnp.ones(3), jnp.float32(2))
    np.testing.assert_array_equal(f(value), [2, 2, 2])
    value.array = value.array * 5
    np.testing.assert_array_equal(f(value), [10, 10, 10])
    np.testing.assert_array_equal(f(kind(jnp.ones(3), jnp.float32(1))), [1, 1, 1])
    assert len(traced) == 1
    np.testing.assert_array_equal(f.lower(value).compile()(value), [10, 10, 10])


def test_a_result_is_made_at_each_call():
    f = pytc.compile(make)
    for n in (1, 2):
        made = f(jnp.full(3, n, jnp.float32))
        assert type(made) is Scaled
        np.testing.assert_array_equal(made.array, np.full(3, 2 * n))
        assert made.scale == 3 * n


def test_one_in_between_is_compiled():
    f = pytc.compile(lambda array: use(make(array)))
    np.testing.assert_array_equal(f(jnp.ones(3)), [6, 6, 6])
    assert pytc.explain(f).sites


def test_what_only_jax_jit_compiles_is_refused_where_it_is_staged():
    with pytest.raises(TypeError, match=r"make takes or returns a token, or .* jax\.experimental\.hijax"):
        pytc.stage(make, jnp.ones(3))


@pytest.mark.skipif(tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12), reason="parts of a Ref are new in 0.12")
def test_parts_of_refs_are_for_jit():
    """They are neither arrays nor pytrees, and `jax.jit` takes them."""

    def update(part, x):
        part[...] += x
        return part[...] * 2

    def run(compiler, *options):
        ref = jax.new_ref(jnp.zeros((2, 3)))
        outer = compiler(lambda ref, x: compiler(update)(ref.at[1], x))
        return [
            *(compiler(update)({"part": ref.at[0]}["part"], jnp.ones(3)) for _ in range(2)),
            outer(ref, 3.0),
            ref[...],
        ]

    jax.tree.map(np.testing.assert_array_equal, run(pytc.compile), run(jax.jit))
    ref = jax.new_ref(jnp.zeros(3))
    named = pytc.compile(lambda parts, scale, kind: parts["part"][...] * scale)
    np.testing.assert_array_equal(named({"part": ref.at[:2]}, jnp.ones(()), kind="no array"), jnp.zeros(2))


class Both(Primitive):
    """The sine, and what is read as the cosine where nothing reads the sine."""

    def __init__(self, given, only_one=False):
        super().__init__(given, given if only_one else (given, given))
        self.params = {"only_one": only_one}
        self.only_one = only_one

    def expand(self, x):
        return jnp.cos(x) if self.only_one else (jnp.sin(x), jnp.sqrt(1 - jnp.sin(x) ** 2))

    def dce(self, used, live=None):
        if self.only_one:
            return ((True,), True, self) if used else ((False,), False, None)
        if not any(used):
            return (False,), (False, False), None
        return ((True,), (True, True), self) if used[0] else ((True,), (False, True), Both(*self.in_avals, True))


def looped(fun):
    return lambda x: jax.lax.fori_loop(0, 2, lambda _, c: fun(c), x)


@pytest.mark.parametrize("around", [lambda fun: fun, looped, jax.checkpoint])
def test_what_is_left_of_one_where_only_a_part_is_read_is_as_under_jax_jit(around):
    fun = around(lambda x: Both(jax.typeof(x))(x)[1])
    x = jnp.linspace(0, 3, 7)
    np.testing.assert_array_equal(pytc.compile(fun)(x), jax.jit(fun)(x))


class Doing(Primitive):
    def __init__(self, given, does):
        super().__init__(given, given)
        self.params, self.does = {"does": does}, does

    def expand(self, x):
        return self.does(x)


def printing(x):
    return Doing(jax.typeof(x), lambda x: (jax.debug.print("printed"), x * 2)[1])(x)


def printing_in_a_call(x):
    return jax.jit(printing)(x)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("fun", [printing, printing_in_a_call])
def test_an_effect_that_its_equation_does_not_have_is_as_under_jax_jit(fun, dead, capfd):
    def step(x):
        y = fun(x)
        return x + 1 if dead else y

    told = []
    for compiler in (jax.jit, pytc.compile):
        result = compiler(step)(jnp.ones(3))
        jax.effects_barrier()
        told.append((result.tolist(), capfd.readouterr().out))
    assert told[0] == told[1]


def test_one_that_writes_to_a_captured_ref_is_as_under_jax_jit():
    ref = jax.new_ref(jnp.zeros(3))

    def write(x):
        ref[...] = x
        return x * 2

    fun = lambda x: Doing(jax.typeof(x), write)(x)  # noqa: E731
    for compiler, n in ((jax.jit, 1), (pytc.compile, 2)):
        np.testing.assert_array_equal(compiler(fun)(jnp.full(3, float(n))), [2.0 * n] * 3)
        np.testing.assert_array_equal(ref[...], [float(n)] * 3)


REFUSES = [False]


def refuse(value):
    if REFUSES[0]:
        raise ValueError("refused")
    return value


class UseWithCallback(Primitive):
    def expand(self, value):
        first = jax.pure_callback(refuse, jax.ShapeDtypeStruct((), "float32"), value.array[0])
        return value.array + 1 + first * 0


def steps(step, calls):
    """The state in front of the call that fails, the last one."""
    x = jnp.zeros(64)
    for n in range(calls):
        REFUSES[0] = n == calls - 1
        try:
            x = step(x)
        except Exception:
            return float(x[0])
        finally:
            REFUSES[0] = False
    return None


def test_what_only_a_lowering_expands_may_call_python_and_fail():
    def fun(x):
        value = make(x)
        return UseWithCallback(jax.typeof(value), jax.typeof(x))(value)

    assert steps(jax.jit(fun), 4) == steps(pytc.compile(fun), 4) == 7


@pytest.mark.parametrize("dead", [False, True])
def test_one_is_expanded_as_often_as_under_jax_jit(dead):
    expanded = []

    def count(x):
        expanded.append(1)
        return x + len(expanded)

    def fun(x):
        y = Doing(jax.typeof(x), count)(x)
        return x if dead else y

    told = []
    for compiler in (jax.jit, pytc.compile):
        expanded.clear()
        told.append((compiler(lambda x: fun(x))(jnp.zeros(3)).tolist(), len(expanded)))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("fun", "argument"), [(printing, jnp.ones(3)), (use, Scaled(jnp.ones(3), jnp.float32(2)))], ids=["effect", "type"]
)
def test_what_is_for_jit_is_so_ahead_of_time_whatever_is_promised(fun, argument):
    compiled = pytc.compile(fun, donate="all").lower(argument).compile()
    np.testing.assert_array_equal(compiled(argument), jax.jit(fun)(argument))
