"""The program as one flat list of steps: what each reads, what it makes, and what it could write over.

Calls (`jit`, `remat`, `custom_*`, `shard_map`) are inlined, as the compiler inlines them. A loop or a `cond` stays one
step that says which operands each of its results may overwrite. Values are numbered in the order in which they are
made, so every step reads smaller numbers than it makes.

The choice of buffers needs to know five kinds of step:

    ELEMENTWISE  an element of the result needs that element of each operand. XLA fuses a chain of them into one loop,
                 which may write over any operand of its chain.
    INDEXED      fused like the first, but reads elements at other places (a slice, a transpose, a broadcast): written
                 over its operand, the loop would read what it has already overwritten.
    JOINED       copies its operands, which are stored in memory first, to their places (long rows, on a CPU): may be
                 written over whatever the operands were made from.
    IN_PLACE     makes its result by updating certain operands (`dynamic_update_slice`, a scatter, a loop's carry).
    WHOLE        needs all of its operands before it writes anything (a matrix product, a reduction, a sort).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal, Var, called, split_scan, split_while, subjaxprs


class Kind(enum.Enum):
    """How a step relates its results to its operands."""

    ELEMENTWISE = enum.auto()
    INDEXED = enum.auto()
    JOINED = enum.auto()
    IN_PLACE = enum.auto()
    WHOLE = enum.auto()


class Step(NamedTuple):
    """One operation."""

    kind: Kind
    name: str
    reads: tuple[int, ...]
    """The values that it reads; literals are left out."""
    makes: tuple[int, ...]
    over: tuple[tuple[int, ...], ...]
    """For each result of an `IN_PLACE` step, the values that it may be written over; else empty."""
    view: bool
    """Whether the result is the operand's own bytes under another shape or name."""
    nbytes: int
    """The bytes of all that it makes, roughly."""
    inside: int = 0
    """The bytes of the largest equation in its jaxprs (a loop's body, branches), roughly."""


class Branches(NamedTuple):
    """What a `cond` chooses from."""

    given: tuple[int | None, ...]
    """The value of each of their invars; None for a literal."""
    flows: tuple[Flow, ...]


@dataclasses.dataclass(frozen=True)
class Flow:
    """A jaxpr as steps. Values 0, 1, ... are its constvars and invars."""

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    """The value of each invar."""
    outputs: tuple[int | None, ...]
    """The value of each outvar; None for a literal."""
    values: int
    """How many values there are."""
    branches: Mapping[int, Branches]
    """Those of each `cond`, by the first value that it makes."""

    @functools.cached_property
    def roots(self) -> list[int]:
        """For each value, the value that it is a view of; itself if it is none."""
        roots = list(range(self.values))
        for step in self.steps:
            if step.view and step.reads:
                roots[step.makes[0]] = roots[step.reads[0]]
        return roots


# Primitives that the compiler computes element by element. Conversions are among them: an element is read with one
# width and written with another, and is converted in a register.
ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj"
    " convert_element_type copy cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma"
    " igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul ne"
    " neg nextafter not one_minus_square or polygamma polynomial population_count pow real reduce_precision"
    " regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign"
    " sin sinh sqrt square sub tan tanh xor zeta".split()
)
DIVISIONS = {"div": "div integers", "rem": "rem integers"}
"""What the steps are called that divide integers by one number, mostly a constant: cheap, as a product and shifts."""
VIEWS = frozenset(
    "reshape squeeze bitcast_convert_type stop_gradient name sharding_constraint pvary"
    " reshard random_wrap random_unwrap".split()
)
INDEXED = frozenset("broadcast_in_dim slice dynamic_slice transpose rev pad gather iota concatenate".split())
UPDATES = frozenset("dynamic_update_slice scatter scatter-add scatter-mul scatter-min scatter-max scatter-sub".split())
SEVERAL = frozenset("eigh hessenberg householder_product lu qr random_fold_in schur svd".split())
"""Primitives that are lowered to several steps: the first reads the operands, another writes the result."""

_MANY = 16  # XLA gives a concatenation of more operands its own buffer
_LONG = 128  # elements from which a CPU's compiler treats rows as long; that of JAX 0.12 also does so for shorter ones


def flatten(jaxpr: Jaxpr, platform: str, *, once: bool = False) -> Flow:
    """`jaxpr`, an open one, as a flat list of steps for this platform. Its constvars are the first values.

    With `once`, what is computed again is no further step, as the compiler has it, and `x**2` is the square that it is.
    """
    builder = _Builder(platform, once)
    env: dict[Var, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        env[var] = builder.new()
    builder.inline(jaxpr, env)
    outputs = tuple(None if isinstance(v, Literal) else env[v] for v in jaxpr.outvars)
    return Flow(tuple(builder.steps), tuple(env[v] for v in jaxpr.invars), outputs, builder.values, builder.branches)


class _Builder:
    def __init__(self, platform: str, once: bool) -> None:
        self.platform, self.once = platform, once
        self.known: dict[Hashable, tuple[Sequence[Var], dict[Var, int]]] = {}
        """If `once`: what has been made, by what it is, and where the numbers of these values are."""
        self.steps: list[Step] = []
        self.values = 0
        self.filled: set[int] = set()
        self.branches: dict[int, Branches] = {}
        self.flows: dict[int, tuple[Flow, ...]] = {}
        self.largest: dict[int, int] = {}
        self.sizes: dict[int, int] = {}

    def new(self) -> int:
        self.values += 1
        return self.values - 1

    def inline(self, jaxpr: Jaxpr, env: dict[Var, int]) -> None:
        """Append the steps of `jaxpr`. `env` has the numbers of its constvars and invars, and is given those of all
        vars that its equations make."""
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if self.once:
                if self.is_known(eqn, env):
                    continue
                if name == "integer_pow" and eqn.params["y"] == 2:
                    name = "square"
            if name in ELEMENTWISE:  # most are
                (var,) = eqn.outvars
                reads = tuple([env[v] for v in eqn.invars if not isinstance(v, Literal)])
                env[var] = self.new()
                if name in DIVISIONS and _divides_integers(eqn):
                    name = DIVISIONS[name]
                self.steps.append(Step(Kind.ELEMENTWISE, name, reads, (env[var],), (), False, self.bytes_of(var)))
                continue
            if (body := called(eqn)) is not None:
                self.call(eqn, body, env)
                continue
            operands = [None if isinstance(v, Literal) else env[v] for v in eqn.invars]
            reads = tuple([v for v in operands if v is not None])
            if name == "split":
                for var in eqn.outvars:
                    env[var] = self.new()
                    self.steps.append(Step(Kind.INDEXED, "slice", reads, (env[var],), (), False, self.bytes_of(var)))
                continue
            if name in SEVERAL:
                between = tuple(self.new() for _ in eqn.outvars)
                self.steps.append(Step(Kind.WHOLE, name, reads, between, (), False, self.size(eqn)))
                for var, value in zip(eqn.outvars, between, strict=True):
                    env[var] = self.new()
                    nbytes = self.bytes_of(var)
                    self.steps.append(Step(Kind.ELEMENTWISE, "copy", (value,), (env[var],), (), False, nbytes))
                continue
            makes = []
            for var in eqn.outvars:
                env[var] = self.values
                makes.append(self.values)
                self.values += 1
            if name == "cond" and makes:
                self.branches[makes[0]] = Branches(tuple(operands[1:]), self.flows_of(eqn.params["branches"]))
            kind, over, view = self.classify(eqn, name, operands)
            inside = self.inside(eqn) if kind in (Kind.WHOLE, Kind.IN_PLACE) else 0
            self.steps.append(Step(kind, name, reads, tuple(makes), over, view, self.size(eqn), inside))
            if name == "broadcast_in_dim" and not reads:
                self.filled.update(makes)

    def is_known(self, eqn: JaxprEqn, env: dict[Var, int]) -> bool:
        """Whether the same has been computed before, of the same values; then these are the results. Else note it."""
        if eqn.effects or called(eqn) is not None:
            return False
        of = tuple([(str(v.aval), repr(v.val)) if isinstance(v, Literal) else env[v] for v in eqn.invars])
        try:
            made, known = self.known.setdefault(
                (eqn.primitive, of, tuple(sorted(eqn.params.items()))), (eqn.outvars, env)
            )
        except TypeError:  # of a parameter without a hash
            return False
        if made is eqn.outvars and known is env:
            return False
        env.update({var: known[other] for var, other in zip(eqn.outvars, made, strict=True)})
        return True

    def call(self, eqn: JaxprEqn, body: Jaxpr, env: dict[Var, int]) -> None:
        inner: dict[Var, int] = {}
        for var in body.constvars:
            inner[var] = self.new()
        for var, operand in zip(body.invars, eqn.invars, strict=True):
            inner[var] = self.new() if isinstance(operand, Literal) else env[operand]
        self.inline(body, inner)
        for var, result in zip(eqn.outvars, body.outvars, strict=True):
            env[var] = self.new() if isinstance(result, Literal) else inner[result]

    def classify(
        self, eqn: JaxprEqn, name: str, operands: Sequence[int | None]
    ) -> tuple[Kind, tuple[tuple[int, ...], ...], bool]:
        if name in VIEWS:
            return Kind.ELEMENTWISE, (), True
        if name in INDEXED and len(operands) <= _MANY:
            if name == "broadcast_in_dim" and _size_of(eqn.invars[0]) == _size_of(eqn.outvars[0]):
                return Kind.ELEMENTWISE, (), True
            if name == "concatenate" and self.platform == "cpu" and self.joins_rows(eqn, operands):
                return Kind.JOINED, (), False
            return Kind.INDEXED, (), False
        if over := self.updated(eqn, name):
            return Kind.IN_PLACE, tuple(tuple(v for k in ks if (v := operands[k]) is not None) for ks in over), False
        return Kind.WHOLE, (), False

    def joins_rows(self, eqn: JaxprEqn, operands: Sequence[int | None]) -> bool:
        """Whether a concatenation along the last of several axes makes long rows, as in a roll or at the edges of a
        grid.

        A CPU's compiler does not fuse it, since the loop would have to choose an operand for each element. It stores
        the operands and copies them row by row. (If there are two, and one fills up the rows with a single value, it
        becomes a `pad`.)
        """
        shape = _shape_of(eqn.outvars[0])
        if len(shape) < 2 or eqn.params["dimension"] != len(shape) - 1 or shape[-1] < _LONG:
            return False
        return len(operands) > 2 or self.filled.isdisjoint(operands)

    def updated(self, eqn: JaxprEqn, name: str) -> tuple[tuple[int, ...], ...]:
        """For each result, the positions of the operands that it may be written over; empty if the step is not
        `IN_PLACE`."""
        if name in UPDATES:
            return ((0,),)
        if name == "optimization_barrier":
            return tuple((k,) for k in range(len(eqn.outvars)))
        if name == "scan":
            carry = split_scan(eqn, range(len(eqn.invars)))[1]
            return tuple((k,) for k in carry) + ((),) * (len(eqn.outvars) - len(carry))
        if name == "while":
            return tuple((k,) for k in split_while(eqn, range(len(eqn.invars)))[2])
        if name == "run_state" and len(eqn.invars) == len(eqn.outvars):
            return tuple((k,) for k in range(len(eqn.outvars)))
        if name == "cond":
            return tuple(tuple(k + 1 for k in ks) for ks in _through_any(self.flows_of(eqn.params["branches"])))
        if pairs := eqn.params.get("input_output_aliases"):
            return _declared(pairs, len(eqn.outvars))
        if name == "call_exported" or (name == "pallas_call" and eqn.params.get("interpret")):
            return _of_one_type(eqn)
        return ()

    def inside(self, eqn: JaxprEqn) -> int:
        """The bytes made by the largest equation in the jaxprs of `eqn`, at any depth."""
        largest = 0
        for body in subjaxprs(eqn):
            if id(body) not in self.largest:
                each = (max(self.size(inner), self.inside(inner)) for inner in body.eqns)
                self.largest[id(body)] = max(each, default=0)
            largest = max(largest, self.largest[id(body)])
        return largest

    def size(self, eqn: JaxprEqn) -> int:
        """The bytes of all results of `eqn`, roughly."""
        size = 0
        for var in eqn.outvars:
            size += self.bytes_of(var)
        return size

    def bytes_of(self, var: Var) -> int:
        """The bytes of a value, roughly. Remembered by aval, since many values in a trace have the same aval object."""
        aval = var.aval
        if id(aval) not in self.sizes:
            self.sizes[id(aval)] = _bytes(aval)
        return self.sizes[id(aval)]

    def flows_of(self, branches: Sequence[Any]) -> tuple[Flow, ...]:
        """The branches of a `cond`."""
        key = id(branches)
        if key not in self.flows:
            self.flows[key] = tuple(flatten(branch.jaxpr, self.platform) for branch in branches)
        return self.flows[key]


def _divides_integers(eqn: JaxprEqn) -> bool:
    """Whether a division is one of integers by a single number."""
    by: Any = eqn.invars[1].aval
    return bool(by.size == 1 and by.dtype.kind in "iu")


def _shape_of(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _size_of(atom: Any) -> int:
    return int(atom.aval.size)


def _bytes(aval: Any) -> int:
    """The bytes of a value of this type, roughly: a PRNG key counts as one byte, and so does what is not an array."""
    return int(getattr(aval, "size", 1) * getattr(getattr(aval, "dtype", None), "itemsize", 1))


def _declared(pairs: Iterable[tuple[int, int]], results: int) -> tuple[tuple[int, ...], ...]:
    """For each result, the operands that a foreign or Pallas call declares as its aliases."""
    over: list[tuple[int, ...]] = [()] * results
    for operand, result in pairs:
        over[result] += (operand,)
    return tuple(over)


def _of_one_type(eqn: JaxprEqn) -> tuple[tuple[int, ...], ...]:
    """For each result of what XLA looks into and we do not, an operand of its type, the first for the first: it may be
    an update of that. If it is not, the compiler copies what it is written over, as with donation by hand."""
    over: list[tuple[int, ...]] = []
    left = [(k, atom.aval) for k, atom in enumerate(eqn.invars)]
    for var in eqn.outvars:
        found = next((each for each in left if each[1] == var.aval), None)
        over.append(() if found is None else (found[0],))
        if found is not None:
            left.remove(found)
    return tuple(over)


def _through_any(branches: Sequence[Flow]) -> list[tuple[int, ...]]:
    """For each result of a `cond`, the positions of the operands that some branch could write it over. (A branch that
    computes the result from something else has to write it to the common buffer in any case.)"""
    each = [_overwritable(branch) for branch in branches]
    return [tuple(sorted({operand for branch in each for operand in branch[k]})) for k in range(len(each[0]))]


def _overwritable(flow: Flow) -> list[tuple[int, ...]]:
    """For each outvar, the positions of the invars that reach it through elementwise steps and updates alone."""
    reached: dict[int, frozenset[int]] = {value: frozenset([k]) for k, value in enumerate(flow.inputs)}
    nothing: frozenset[int] = frozenset()
    for step in flow.steps:
        if step.kind is Kind.ELEMENTWISE:
            over: Sequence[Sequence[int]] = (step.reads,) * len(step.makes)
        else:
            over = step.over
        for value, sources in zip(step.makes, over, strict=False):
            reached[value] = nothing.union(*(reached.get(source, nothing) for source in sources))
    return [tuple(sorted(reached.get(v, nothing))) if v is not None else () for v in flow.outputs]
