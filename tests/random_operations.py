"""The operations that random functions are made of (`tests.random_functions`), and the state that they draw from.

Each takes the arrays there are and returns one or more new ones. Those with functions inside (loops, branches, custom
derivatives, remat, `jit`, `Ref`s) make these of random operations in turn.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback

Array = Any
Make = Callable[["Draw", list[Array]], Array]

DTYPES = ("float32", "float32", "float32", "int32", "int32", "bool", "bfloat16", "float16", "uint8", "complex64")


@dataclasses.dataclass
class Draw:
    """A random number generator and what may be drawn here."""

    rng: random.Random
    depth: int
    log: list[Any]
    """What the effects of a run leave behind."""
    effects: bool
    """Whether effects and `Ref`s are allowed: JAX has no rules for all of them under `vmap`, `grad`, `custom_jvp`."""
    captured: Sequence[Array]

    def inner(self, *, effects: bool = True) -> Draw:
        return dataclasses.replace(self, rng=self.fork(), depth=self.depth - 1, effects=self.effects and effects)

    def fork(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    def pick(self, pool: list[Array], kind: str = "") -> Array:
        """One of the arrays; of `kind` "float" or "int" or "bool", converted if need be."""
        found = [x for x in pool if not _is_key(x)]
        if kind:
            found = [x for x in found if _kind(x) == kind] or found
        x = self.rng.choice(found) if found else jnp.float32(self.rng.uniform(-2, 2))
        return x if not kind or _kind(x) == kind else _as(x, {"float": "float32", "int": "int32", "bool": "bool"}[kind])

    def key(self, pool: list[Array]) -> Array:
        keys = [x for x in pool if _is_key(x) and x.shape == ()]
        return self.rng.choice(keys) if keys else jax.random.key(self.rng.randrange(100))


def _is_key(x: Array) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _kind(x: Array) -> str:
    if x.dtype == bool:
        return "bool"
    if _is_key(x):
        return "key"
    if jnp.issubdtype(x.dtype, jnp.integer):
        return "int"
    return "float" if jnp.issubdtype(x.dtype, jnp.floating) else "complex"


def _as(x: Array, dtype: Any) -> Array:
    x = jnp.asarray(x)
    if _kind(x) == "complex" and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = x.real
    if _kind(x) == "float" and jnp.issubdtype(dtype, jnp.integer):
        x = jnp.nan_to_num(jnp.clip(x, 0, 50))  # what other floats convert to is the machine's affair
    return x.astype(dtype)


def _like(x: Array, other: Array) -> Array:
    """A value made of `x` that has the type of `other`."""
    if _is_key(other):
        return other
    if _is_key(x):
        x = jax.random.key_data(x).sum()
    if x.shape != other.shape:
        x = jnp.broadcast_to(_as(x, "float32").sum() if x.dtype == bool else x.reshape(-1)[0], other.shape)
    x = _as(x, other.dtype)
    return lax.convert_element_type(x, other.dtype)


# Operations on arrays


def unary(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool, "float")
    f = d.rng.choice(
        [
            jnp.sin,
            jnp.cos,
            jnp.tanh,
            jnp.abs,
            jnp.negative,
            jnp.square,
            jnp.sign,
            jnp.floor,
            jnp.isfinite,
            lambda v: jnp.exp(jnp.clip(v, -3, 3)),
            lambda v: jnp.sqrt(jnp.abs(v)),
            lambda v: jnp.log1p(jnp.abs(v)),
            jax.nn.relu,
            jax.nn.sigmoid,
            jax.nn.softplus,
            jax.nn.silu,
            jax.nn.gelu,
            jax.nn.relu6,
            jax.nn.elu,
        ]
    )
    return f(x)


def binary(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool, "float")
    y = _like(d.pick(pool), x) if d.rng.random() < 0.7 else d.rng.uniform(-2, 2)
    f = d.rng.choice([jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.arctan2, lambda a, b: a / (b * b + 1)])
    return f(x, y)


def integer(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool, "int")
    y = _like(d.pick(pool), x)
    f = d.rng.choice(
        [
            jnp.add,
            jnp.multiply,
            jnp.bitwise_and,
            jnp.bitwise_xor,
            lambda a, b: a // (b | 1),
            lambda a, b: a % (b | 1),
            lambda a, b: a << (b & 3),
            jnp.minimum,
            lambda a, b: lax.population_count(a ^ b),
        ]
    )
    return f(x, y)


def compare(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool)
    f = d.rng.choice([jnp.equal, jnp.not_equal] + ([] if _kind(x) == "complex" else [jnp.less, jnp.greater_equal]))
    return f(x, _like(d.pick(pool), x))


def select(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool)
    return jnp.where(_like(d.pick(pool, "bool"), jnp.zeros(x.shape, bool)), x, _like(d.pick(pool), x))


def reduction(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool, "float")
    x = jnp.atleast_1d(x)
    f = d.rng.choice(
        [jnp.sum, jnp.max, jnp.mean, jnp.argmax, jnp.cumsum, jax.nn.logsumexp, jax.nn.softmax, jnp.prod, jnp.var]
    )
    return f(x, axis=d.rng.randrange(x.ndim))


def order(d: Draw, pool: list[Array]) -> Array:
    x = jnp.atleast_1d(d.pick(pool, d.rng.choice(["int", "float"])))
    return d.rng.choice([jnp.sort, jnp.argsort, lambda v: lax.top_k(v, 1)[0], jnp.cumsum])(x)


def shape(d: Draw, pool: list[Array]) -> Array:
    x = jnp.atleast_1d(d.pick(pool))
    f = d.rng.choice(
        [
            jnp.ravel,
            jnp.transpose,
            jnp.flip,
            lambda v: jnp.roll(v, 1),
            lambda v: v[None],
            lambda v: jnp.pad(v, 1),
            lambda v: jnp.concatenate([v, v]),
            lambda v: v[1:],
            lambda v: v[::2],
            lambda v: jnp.tile(v, 2),
        ]
    )
    y = f(x)
    return y if y.size and y.size < 40 else x


def index(d: Draw, pool: list[Array]) -> Array:
    x = jnp.atleast_1d(d.pick(pool))
    i = _like(d.pick(pool, "int"), jnp.int32(0)) % x.shape[0]
    value = _like(d.pick(pool), x[0])
    uses: list[Callable[[], Array]] = [
        lambda: x[i],
        lambda: x.at[i].set(value),
        lambda: lax.dynamic_update_slice_in_dim(x, value[None], i, 0),
        lambda: lax.dynamic_slice_in_dim(x, i, 1, 0),
        lambda: jnp.take(x, jnp.array([0, 0]), axis=0),
    ]
    if _kind(x) != "bool":
        uses.append(lambda: x.at[i].add(value))
    return d.rng.choice(uses)()


def dot(d: Draw, pool: list[Array]) -> Array:
    x = _as(d.pick(pool, "float"), "float32")
    if d.rng.random() < 0.5:
        return x.reshape(-1) @ x.reshape(-1)
    x = _like(x, jnp.zeros((3, 3), "float32"))
    return jnp.einsum(d.rng.choice(["ij,jk->ik", "ij,kj->ik", "ij,ij->i"]), x, _like(d.pick(pool, "float"), x))


def conv(d: Draw, pool: list[Array]) -> Array:
    x = _like(d.pick(pool, "float"), jnp.zeros((1, 1, 4, 4), "float32"))
    w = _like(d.pick(pool, "float"), jnp.zeros((2, 1, 2, 2), "float32"))
    return lax.conv_general_dilated(x, w, (1, 1), d.rng.choice(["SAME", "VALID"])).sum(0)[:, :2, 0]


def randomness(d: Draw, pool: list[Array]) -> Array:
    key = d.key(pool)
    f = d.rng.choice(
        [
            lambda k: jax.random.fold_in(k, 3),
            lambda k: jax.random.split(k)[0],
            lambda k: jax.random.normal(k, (3,)),
            lambda k: jax.random.bits(k, (4,)),
            lambda k: jax.random.uniform(k, (2, 3)),
            jax.random.key_data,
            lambda k: jax.random.randint(k, (3,), 0, 9),
            lambda k: jax.random.bernoulli(k, 0.5, (3,)),
        ]
    )
    return f(key)


def convert(d: Draw, pool: list[Array]) -> Array:
    return _as(d.pick(pool), d.rng.choice(DTYPES))


def capture(d: Draw, pool: list[Array]) -> Array:
    return jnp.add(d.rng.choice(d.captured), 1) if d.rng.random() < 0.5 else jnp.asarray(d.rng.choice(d.captured))


def mark(d: Draw, pool: list[Array]) -> Array:
    x = d.pick(pool)
    return d.rng.choice([lax.stop_gradient, lambda v: checkpoint_name(v, "x"), lax.optimization_barrier])(x)


# Operations with functions inside


def block(d: Draw, like: Sequence[Array] | None = None) -> Callable[..., list[Array]]:
    """A function from arrays to arrays: of the types of `like`, or of one or two arrays of any type."""
    seed = d.rng.getrandbits(64)

    def run(*operands: Array) -> list[Array]:
        inside = dataclasses.replace(d, rng=random.Random(seed))
        made = operate(inside, list(operands), inside.rng.randint(1, 3))
        if like is None:
            return made[-2:]
        given = [x for x in operands if not _is_key(x)]
        pool = made + given
        return [_like(inside.rng.choice(pool), x) if inside.rng.random() < 0.8 else x for x in like]

    return run


def _operands(d: Draw, pool: list[Array], most: int = 3) -> list[Array]:
    return [d.rng.choice(pool) if pool else jnp.float32(1) for _ in range(d.rng.randint(1, most))]


def _floats(d: Draw, pool: list[Array]) -> list[Array]:
    return [_as(d.pick(pool, "float"), "float32") for _ in range(d.rng.randint(1, 2))]


def _handing_on(d: Draw) -> Callable[[Array], Array]:
    """A function that returns its argument, for some of which JAX does not see that."""
    mark = d.rng.choice([lambda x: x, lax.stop_gradient, lambda x: checkpoint_name(x, "x")])
    return lambda x: x if _is_key(x) else mark(x)


def scan(d: Draw, pool: list[Array]) -> list[Array]:
    carry, extra, inside = _operands(d, pool), _operands(d, pool, 2), d.inner()
    xs = _like(d.pick(pool), jnp.zeros((3, 2), "float32"))
    body, ys, same = block(inside, carry), block(inside), _handing_on(d)
    invariant = d.rng.random() < 0.5

    def step(c: list[Array], x: Array) -> tuple[list[Array], list[Array]]:
        new = body(*c, *extra, x)
        return ([same(c[0]), *new[1:]] if invariant else new), [*ys(*c, x), same(x)]

    out, stacked = lax.scan(step, carry, xs, reverse=d.rng.random() < 0.3, unroll=d.rng.choice([1, 1, 2]))
    return [*out, *stacked]


def while_loop(d: Draw, pool: list[Array]) -> list[Array]:
    carry, extra, at_once = _operands(d, pool), _operands(d, pool, 2), d.rng.random() < 0.3
    inside = d.inner(effects=not at_once)
    # What a custom_vjp closes over cannot be differentiated.
    like = [jnp.zeros(x.shape, x.dtype) if at_once and not _is_key(x) else x for x in carry]
    body, n = block(inside, like), d.rng.randint(0, 3)
    dead = d.rng.random() < 0.5

    def step(i: Array, c: list[Array], extra: list[Array]) -> tuple[Array, list[Array]]:
        return i + 1, body(*c, *extra)

    if at_once:  # then JAX takes all of its results for alive if any is
        plain, step = step, jax.custom_vjp(step)
        step.defvjp(lambda *xs: (plain(*xs), xs), lambda xs, _: xs)
    i, out = lax.while_loop(lambda state: state[0] < n, lambda state: step(*state, extra), (jnp.int32(0), carry))
    # Has other bits when it is computed while compiling, which XLA does if it finds the number of steps.
    slope = jax.grad(lambda v: jnp.tanh(jnp.sin(v)))(i.astype(jnp.float32))
    return [i, slope] if dead else [i, slope, *out]


def fori(d: Draw, pool: list[Array]) -> list[Array]:
    carry, inside = _operands(d, pool), d.inner()
    body = block(inside, carry)
    stop = jnp.minimum(_like(d.pick(pool, "int"), jnp.int32(0)), 3) if d.rng.random() < 0.5 else 2
    return lax.fori_loop(0, stop, lambda i, c: body(*c, i), carry)


def cond(d: Draw, pool: list[Array]) -> list[Array]:
    operands, inside = _operands(d, pool), d.inner()
    like = _operands(d, pool, 2)
    blocks, same = [block(inside, like) for _ in range(d.rng.randint(2, 3))], _handing_on(d)
    branches = [lambda *xs, run=run: [same(xs[0]), *run(*xs)] for run in blocks]
    if len(branches) == 2:
        return lax.cond(_like(d.pick(pool, "bool"), jnp.bool_(True)), *branches, *operands)
    return lax.switch(_like(d.pick(pool, "int"), jnp.int32(0)), branches, *operands)


def jit(d: Draw, pool: list[Array]) -> list[Array]:
    operands, body = _operands(d, pool), jax.jit(block(d.inner()))
    out = list(body(*operands))
    return out + list(body(*operands)) if d.rng.random() < 0.4 else out


def remat(d: Draw, pool: list[Array]) -> list[Array]:
    return list(jax.checkpoint(block(d.inner()), prevent_cse=d.rng.random() < 0.5)(*_operands(d, pool)))


def custom_jvp(d: Draw, pool: list[Array]) -> list[Array]:
    body = block(d.inner(effects=False))
    f = jax.custom_jvp(body)
    f.defjvp(lambda primals, tangents: (lambda out: (out, [_no_tangent(x) for x in out]))(f(*primals)))
    return list(f(*_operands(d, pool)))


def _no_tangent(x: Array) -> Array:
    return jnp.zeros_like(x) if _kind(x) in ("float", "complex") else np.zeros(x.shape, jax.dtypes.float0)


def custom_vjp(d: Draw, pool: list[Array]) -> list[Array]:
    body = block(d.inner(effects=False))
    f = jax.custom_vjp(body)
    f.defvjp(lambda *xs: (body(*xs), xs), lambda xs, _: xs)
    return list(f(*_operands(d, pool)))


def gradient(d: Draw, pool: list[Array]) -> list[Array]:
    xs, body = _floats(d, pool), block(d.inner(effects=False))

    def loss(*xs: Array) -> Array:
        # The gradient of a while loop does not exist; its results are held still.
        made = [lax.stop_gradient(x) for x in body(*xs) if not _is_key(x)]
        total = sum(jnp.sum(jnp.tanh(f(x))) for x, f in zip(xs, [jnp.sin, jax.nn.softplus], strict=False))
        return total + sum(jnp.sum(_as(x, "float32")) for x in made)

    wrapped = jax.checkpoint(loss) if d.rng.random() < 0.5 else loss
    return [*jax.grad(wrapped, argnums=tuple(range(len(xs))))(*xs)]


def tangents(d: Draw, pool: list[Array]) -> list[Array]:
    (x, *_) = _floats(d, pool)
    f = d.rng.choice([jnp.sin, jax.nn.silu, jax.nn.softplus, lambda v: jnp.where(v > 0, v, v * v), jnp.cumsum])
    return [*jax.jvp(jax.checkpoint(f), (x,), (jnp.ones_like(x),))]


def mapped(d: Draw, pool: list[Array]) -> list[Array]:
    x = jnp.atleast_1d(d.pick(pool))
    return list(jax.vmap(block(d.inner(effects=False)))(x))


def scoped(d: Draw, pool: list[Array]) -> list[Array]:
    with jax.named_scope("scope"):
        return block(d.inner())(*_operands(d, pool))


def reference(d: Draw, pool: list[Array]) -> list[Array]:
    if not d.effects:
        return []
    ref, body = jax.new_ref(d.pick(pool)), block(d.inner())
    before = ref[...]

    def write(*operands: Array) -> None:
        ref[...] = _like(body(*operands)[0], before)

    way = d.rng.random()
    if way < 0.4:
        write(*_operands(d, pool))
    elif way < 0.6:
        lax.cond(jnp.any(d.pick(pool) > 0), write, lambda *_: None, *_operands(d, pool))  # which makes nothing
    else:

        def step(i: Array, c: Array) -> Array:
            write(ref[...], i)
            return c

        lax.fori_loop(0, 2, step, 0)
    return [before, ref[...]] if d.rng.random() < 0.7 else []


def solve(d: Draw, pool: list[Array]) -> list[Array]:
    b = _like(d.pick(pool, "float"), jnp.zeros((3,), "float32"))
    return [lax.custom_linear_solve(lambda v: 2 * v, b, lambda _, v: v / 2, symmetric=True)]


def effect(d: Draw, pool: list[Array]) -> list[Array]:
    if not d.effects:
        return []
    x, name = d.pick(pool), d.rng.randrange(1000)

    def tell(value: Array) -> None:
        d.log.append(("debug", name, np.asarray(value).tobytes()))

    def answer(value: Array) -> Array:
        d.log.append(("io", name, np.asarray(value).tobytes()))
        return np.asarray(value)

    if d.rng.random() < 0.6:
        jax.debug.callback(tell, x, ordered=True)
        return []
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return [io_callback(answer, out, x, ordered=True)]


LEAVES: list[Make] = [unary, unary, binary, binary, integer, compare, select, reduction, order, shape, index, index]
LEAVES += [dot, conv, randomness, randomness, convert, capture, mark]
NESTED: list[Callable[[Draw, list[Array]], list[Array]]] = [scan, scan, while_loop, while_loop, fori, cond, cond, jit]
NESTED += [jit, remat, custom_jvp, custom_vjp, gradient, tangents, mapped, scoped, reference, solve, effect]


def operate(d: Draw, pool: list[Array], operations: int) -> list[Array]:
    """What `operations` random operations make of the arrays of `pool`."""
    pool, made = list(pool), []
    for _ in range(operations):
        nested = d.depth and d.rng.random() < 0.45
        new = d.rng.choice(NESTED)(d, pool) if nested else [d.rng.choice(LEAVES)(d, pool)]
        new = [jnp.asarray(x) if not isinstance(x, jax.Array) else x for x in new]
        made += new
        pool += new
    return made or [jnp.float32(0)]
