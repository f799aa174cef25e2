"""hoist: weights and tables that the function captured become inputs instead of constants baked into the program.

XLA spends compile time and host memory on a large constant, and every executable made of the function holds one. An
input is one buffer for all of them. It is a snapshot, as `jax.jit`'s constant is: the captured array can be donated or
deleted by its owner later, or the NumPy array written to, and the function goes on with what it captured. It is never
donated.

The one thing that could change is the result, which must be that of `jax.jit` to the bit. XLA works with constants
while it compiles: it computes `tanh(c)` by other code than at run time, turns `x / c` into `x * (1 / c)`, joins
`x * c * d` to `x * (c * d)`, and makes other loops of what reads `c` element by element. So an array is hoisted only if
all that reads it is a dot product or a convolution with a value that varies, or a lookup at a place that varies
(`_READERS`), and XLA has no rule for such an equation with a constant. What varies is what XLA is sure not to know
(`unknown`), which is less than what depends on an argument. For dot products it has some rules:

    - a constant that does not lie as it is multiplied is transposed while compiling (`_lies_as_multiplied`);
    - if the other operand is a concatenation, or a slice of a constant, each part is multiplied by itself;
    - if it is transposed, and all axes that have moved are summed over, XLA transposes the constant instead;
    - a product with a vector becomes a sum of products, which XLA joins to other constants.

The last three depend on what the other operand is made of (`_Made`). XLA looks into calls, loops of one step and
unrolled ones, and moves what never changes out of a loop. So this is followed into every jaxpr and out of it, whether
or not XLA would go there; at worst an array stays a constant, as under `jax.jit`.

A convolution that adds nothing up is an elementwise product to XLA (`_adds_up`).

Some arrays stay constants whatever reads them, for their type or their elements (`elements`).

Cost: one visit to each equation at every depth, to that of an inner `jit` for each way in which its operands are
constant, and to that of an unrolled loop at most one for each copy; each captured array is read once (and once more
where another one is like it), and copied if it becomes an input, for the first program that captures it (`copies`);
nothing where nothing is captured.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytc.jax_compat import jaxprs, rewriting
from pytc.jax_compat.avals import short
from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal, Var, shape_of
from pytc.jax_compat.layouts import is_over_several
from pytc.jax_compat.running import other_device_of
from pytc.passes import copies, elements, while_loops
from pytc.passes.constants import CALCULATE, has_constant_loop, has_known_result, is_neutral, same_by_anyone
from pytc.passes.unknown import may_be_anywhere, results_unknown
from pytc.program import Input, Program
from pytc.set_bits import set_bits

# What may read a captured array, by the operands that it may be.
_READERS = {"conv_general_dilated": (0, 1), "dot_general": (0, 1), "dynamic_slice": (0,), "gather": (0,)}

# XLA looks through these to what their operand is made of.
_HAND_ON = frozenset(
    """broadcast_in_dim convert_element_type copy integer_pow name neg reduce_precision reshape rev slice square squeeze
    stop_gradient transpose""".split()
)
# And through these, where the result has as many elements as the operand.
_HAND_ON_ALL = frozenset(
    "dynamic_slice pad reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split()
)

_LOOKUPS = ("dynamic_slice", "gather")

_VARYING = 0  # XLA is sure not to know it while it compiles
_CONSTANT = -1  # it may be a constant of the program whatever is hoisted


class _Made(NamedTuple):
    """What a value that varies is made of, as far as XLA's rules ask for it."""

    by_constant: bool = False
    """It is a product with a constant of several elements."""
    of_parts: int | None = None
    """It is a concatenation, or a slice of a constant: which constvars it is a slice of."""
    moved: float = math.inf
    """It is a transpose: how many elements the axes that have moved, and those after them, have."""


_NOTHING = _Made()
_ANYTHING = _Made(by_constant=True, of_parts=0, moved=0)
"""For what comes out of jaxprs that are not looked into."""


def hoist(program: Program) -> Program:
    """Captured arrays as inputs, where that cannot change a bit of the result. They come before the leaves."""
    lifted = rewriting.lift_inner_consts(program.jaxpr)
    if not lifted.jaxpr.constvars:
        return program
    captured = list(zip(lifted.jaxpr.constvars, lifted.consts, strict=True))
    is_cut = any(is_over_several(leaf.placed) for leaf in program.leaves)
    of_elements = elements.reasons([(value, var.aval) for var, value in captured], is_cut)
    looks = _Looks(lifted.jaxpr, [bool(why) for why in of_elements])
    hoisted: set[int] = set()
    notes = []
    for i, (var, value) in enumerate(captured):
        why = of_elements[i] or looks.reasons.get(i, "")
        hoisted.update([] if why else [id(value)])
        what = f"the captured array {short(var.aval)}"
        notes.append(f"{what} stays a constant: {why}" if why else f"{what} is an input instead of a constant")
    if not hoisted:
        return program.noted("hoist", notes)
    device = other_device_of(leaf.placed for leaf in program.leaves)
    # What stays a constant stays where it was.
    closed = rewriting.lift_inner_consts(program.jaxpr, lambda value: id(value) in hoisted)
    constants = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    captured = [(var, value) for var, value in constants if id(value) in hoisted]
    return program.noted(
        "hoist",
        notes,
        jaxpr=rewriting.with_inputs(
            closed,
            constants=[(var, value) for var, value in constants if id(value) not in hoisted],
            invars=[*(var for var, _ in captured), *closed.jaxpr.invars],
            names=[*(f"captured[{i}]" for i in range(len(captured))), *jaxprs.input_names(closed.jaxpr)],
        ),
        inputs=(
            *(Input(None, copies.captured_copy(value, var.aval, device)) for var, value in captured),
            *program.inputs,
        ),
    )


_Operand = tuple[int, _Made]
"""The mark of a value (`_VARYING`, `_CONSTANT`, or the constvars that it is made of), and what it is made of."""


class _Looks:
    """What equations do with constvars: `reasons` says by number which of these are read by an equation that XLA may
    treat otherwise for a constant, and why. Some are known to stay constants."""

    def __init__(self, jaxpr: Jaxpr, stays: Sequence[bool]) -> None:
        self.reasons: dict[int, str] = {}
        self._called: dict[Hashable, list[_Operand]] = {}
        """What a jaxpr that is called (its id) returns, for each way that its operands are."""
        # A set of constvars as the bits of an integer.
        marks = [_CONSTANT if each else 1 << i for i, each in enumerate(stays)]
        self._walk(jaxpr, dict(zip(jaxpr.constvars, [(mark, _NOTHING) for mark in marks], strict=True)))

    def _walk(self, jaxpr: Jaxpr, known: dict[Var, _Operand]) -> list[_Operand]:
        """Follow what is `known` of the invars through the equations; returns the same of the outvars. Of other vars
        nothing is known but that they vary."""

        def of(atom: Any) -> _Operand:
            return (_CONSTANT, _NOTHING) if isinstance(atom, Literal) else known.get(atom, (_VARYING, _NOTHING))

        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, self._look(eqn, [of(atom) for atom in eqn.invars]), strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _into(self, body: Jaxpr, operands: Sequence[_Operand]) -> list[_Operand]:
        return self._walk(body, dict(zip(body.invars, operands, strict=True)))

    def _look(self, eqn: JaxprEqn, operands: list[_Operand]) -> list[_Operand]:
        """What the results of an equation are."""
        name = eqn.primitive.name
        given = [mark for mark, _ in operands]
        captured = _union(given)
        if name != "shard_map" and (body := jaxprs.called(eqn)) is not None:
            return self._call(body, operands)
        if _is_constant(eqn, given):
            if captured and not same_by_anyone(eqn):
                self._seen(captured, f"it takes part in work on constants alone (`{name}`), {_OTHERWISE}")
                captured = 0
            return [(captured or _CONSTANT, _NOTHING)] * len(eqn.outvars)
        into = {"scan": self._scan, "while": self._while, "cond": self._cond}.get(name)
        if into is not None and (results := into(eqn, operands)) is not None:
            return results
        if captured and not _may_read(eqn, given):
            self._seen(captured, f"it is read by an equation (`{name}`), {_OTHERWISE}")
        if name == "dot_general":
            self._multiply(eqn, operands)
        if list(jaxprs.subjaxprs(eqn)):
            return [(_CONSTANT, _ANYTHING)] * len(eqn.outvars)
        made = _makes(eqn, operands)
        if name in _LOOKUPS and captured:
            return [(_VARYING, made)]
        unknown = results_unknown(eqn, [mark == _VARYING for mark in given])
        return [(_VARYING if is_unknown else _CONSTANT, made) for is_unknown in unknown]

    def _call(self, body: Jaxpr, operands: list[_Operand]) -> list[_Operand]:
        asked = id(body), *operands
        if asked not in self._called:
            self._called[asked] = self._into(body, operands)
        return self._called[asked]

    def _cond(self, eqn: JaxprEqn, operands: list[_Operand]) -> list[_Operand] | None:
        """Nothing where XLA knows which branch is taken, or a captured array decides it."""
        if operands[0][0] != _VARYING:
            return None
        branches = [self._into(body, operands[1:]) for body in jaxprs.subjaxprs(eqn)]
        return [(_VARYING, _either(results)[1]) for results in zip(*branches, strict=True)]

    def _scan(self, eqn: JaxprEqn, operands: list[_Operand]) -> list[_Operand] | None:
        """Nothing where a captured array changes from step to step, or the loop is around one on constants alone."""
        (body,) = jaxprs.subjaxprs(eqn)
        consts, carry, slices = jaxprs.split_scan(eqn, operands)
        if _captured(carry) or self._is_around_constant_loop(body, operands):
            return None
        length, unroll = eqn.params["length"], int(eqn.params["unroll"])
        once = not isinstance(length, int) or length < 2 * unroll
        walks = [self._into(body, [*consts, *_entering(body, len(consts), carry, once), *slices])]
        # The next copy of the step begins with what the last one has returned.
        while len(walks) < unroll and walks[-1] not in walks[:-1]:
            walks.append(self._into(body, [*consts, *walks[-1][: len(carry)], *slices]))
        if once:  # or no step at all
            walks.append([*carry, *walks[0][len(carry) :]])
        counted = _counted(body, [*consts, *carry, *slices], len(consts), len(carry))
        return [_either([(mark, _NOTHING), *results]) for mark, *results in zip(counted, *walks, strict=True)]

    def _while(self, eqn: JaxprEqn, operands: list[_Operand]) -> list[_Operand] | None:
        """Nothing where a captured array changes from step to step, the loop is around one on constants alone, or what
        is read in it may decide whether XLA works it out."""
        cond, body = (jaxprs.inner(eqn.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
        cond_consts, body_consts, carry = jaxprs.split_while(eqn, operands)
        # An input that is read beside one carry makes a tuple of the loop's state, which XLA sees through if it starts
        # with constants. Where an effect reads it, of several carries all but one may be dead.
        starts_constant = any(mark == _CONSTANT for mark, _ in carry)
        becomes_tuple = starts_constant and (eqn.effects or while_loops.may_be_one_array(eqn))
        if (
            _captured(carry)
            or (becomes_tuple and _captured(operands))
            or self._is_around_constant_loop(cond, operands)
            or self._is_around_constant_loop(body, operands)
        ):
            return None
        read = {v for inner in cond.eqns for v in inner.invars if isinstance(v, Var)}.union(cond.outvars)
        asked = [mark for v, (mark, _) in zip(cond.invars, [*cond_consts, *carry], strict=True) if v in read]
        once = _VARYING not in asked  # for all that is known here
        entering = _entering(body, len(body_consts), carry, once)
        self._into(cond, [*cond_consts, *entering])
        results = self._into(body, [*body_consts, *entering])
        counted = _counted(body, [*body_consts, *carry], len(body_consts), len(carry))
        before = carry if once else results
        return [_either([(mark, _NOTHING), *pair]) for mark, *pair in zip(counted, before, results, strict=True)]

    def _is_around_constant_loop(self, body: Jaxpr, operands: Sequence[_Operand]) -> bool:
        captured = _captured(operands)
        if not captured or not has_constant_loop(body):
            return False
        self._seen(captured, "it is read in a loop around one on constants alone, which XLA then moves out")
        return True

    def _multiply(self, dot: JaxprEqn, operands: Sequence[_Operand]) -> None:
        """Which constvars take part in a dot product for which XLA has a rule, given what the other operand is."""
        contracted, _ = dot.params["dimension_numbers"]
        for v, axes, (_, made), other, (mark, _) in zip(
            dot.invars, contracted, operands, reversed(dot.invars), reversed(operands), strict=True
        ):
            if mark == _VARYING:
                continue
            constvars = max(mark, 0)
            are_last = min(axes, default=0) == len(shape_of(v)) - len(axes)
            if made.of_parts is not None:
                self._seen(constvars | made.of_parts, "it is multiplied with parts of an array, by XLA each by itself")
            if made.moved < math.inf and (not are_last or made.moved <= _contracted(dot)):
                self._seen(constvars, "it is multiplied with a transposed array, for which XLA transposes the constant")
            if made.by_constant and math.prod(shape_of(other)) == _contracted(dot):
                self._seen(constvars, "it is in a sum of products with another constant, to which XLA joins it")

    def _seen(self, constvars: int, why: str) -> None:
        for i in set_bits(constvars):
            self.reasons.setdefault(i, why)


_OTHERWISE = "which XLA does otherwise for a constant"


def _may_read(eqn: JaxprEqn, given: Sequence[int]) -> bool:
    """Whether the equation may have the captured arrays among its operands as inputs."""
    name = eqn.primitive.name
    if any(mark > 0 and i not in _READERS.get(name, ()) for i, mark in enumerate(given)):
        return False
    if name == "conv_general_dilated" and any(mark > 0 for mark in given):
        return _adds_up(eqn)
    return name != "dot_general" or _lies_as_multiplied(eqn, [mark > 0 for mark in given])


def _is_constant(eqn: JaxprEqn, given: Sequence[int]) -> bool:
    """Whether XLA may work out the equation while it compiles."""
    if eqn.effects:
        return False
    unknown = [mark == _VARYING for mark in given]
    name = eqn.primitive.name
    # A mask of which all elements are equal chooses one operand.
    chosen = name == "select_n" and not unknown[0] and not all(unknown[1:])
    looked_up = name in _LOOKUPS and not unknown[0] and not may_be_anywhere(eqn, unknown)
    return chosen or looked_up or not any(unknown) or has_known_result(eqn)


def _makes(eqn: JaxprEqn, operands: Sequence[_Operand]) -> _Made:
    """What the results of an equation are made of."""
    name = eqn.primitive.name
    _, made = _either([(_VARYING, _NOTHING), *(operands[k] for k in _handed_on(eqn, [mark for mark, _ in operands]))])
    if name in ("mul", "div"):
        pairs = zip(eqn.invars, operands, strict=True)
        by_constant = any(of.by_constant or _is_array(v, mark) for v, (mark, of) in pairs)
        return made._replace(by_constant=by_constant)
    if name == "concatenate":
        return _Made(of_parts=0)
    if name == "dynamic_slice" or (name == "gather" and math.prod(shape_of(eqn.invars[1])[:-1]) == 1):
        mark, _ = operands[0]
        return made._replace(of_parts=max(mark, 0)) if mark != _VARYING else made
    if name == "transpose":
        first = next((k for k, axis in enumerate(eqn.params["permutation"]) if k != axis), 0)
        return made._replace(moved=min(made.moved, math.prod(shape_of(eqn.outvars[0])[first:])))
    return made


def _handed_on(eqn: JaxprEqn, given: Sequence[int]) -> Sequence[int]:
    """The operands (indices) of which the equation may return one as it is, or moved, as far as XLA can see."""
    name = eqn.primitive.name
    if name in _HAND_ON:
        return [0]
    if name in _HAND_ON_ALL and math.prod(shape_of(eqn.invars[0])) == math.prod(shape_of(eqn.outvars[0])):
        return [0]
    if name == "select_n" and given[0] != _VARYING:
        return range(1, len(given))
    # XLA looks through these as well, where the other operand is a constant that changes nothing, or may be.
    neutral = [
        mark != _VARYING and (is_neutral(name, v) if isinstance(v, Literal) else name in CALCULATE)
        for v, mark in zip(eqn.invars, given, strict=True)
    ]
    return range(len(given)) if any(neutral) else []


def _is_array(atom: Var | Literal, mark: int) -> bool:
    """Whether it is a constant other than a number in the jaxpr itself, which XLA joins to no array."""
    return mark != _VARYING and not isinstance(atom, Literal)


def _entering(body: Jaxpr, consts: int, carry: Sequence[_Operand], once: bool) -> list[_Operand]:
    """What is known in a step of a loop of its carry. If there is but one step, that is what is known of what the loop
    is given; else of what changes from step to step only what it may be made of."""
    carried = zip(body.invars[consts:], body.outvars, carry, strict=False)
    return [(mark if once or before is after else _VARYING, made) for before, after, (mark, made) in carried]


def _counted(body: Jaxpr, operands: Sequence[_Operand], first: int, carries: int) -> list[int]:
    """Marks what a loop returns that depends on constants alone, as a counter does: XLA may know how it ends, unless a
    captured array that it depends on is no constant. `first` is the number of the first carry."""
    marks = [mark for mark, _ in operands]
    while True:
        known = dict(zip(body.invars, marks, strict=True))
        for eqn in body.eqns:
            mark = _VARYING if eqn.effects else _with_all(_mark(v, known) for v in eqn.invars)
            known.update(dict.fromkeys(eqn.outvars, mark))
        results = [_mark(v, known) for v in body.outvars]
        carried = [_with_all(pair) for pair in zip(marks[first:], results[:carries], strict=False)]
        if carried == marks[first : first + carries]:
            return results
        marks[first : first + carries] = carried


def _mark(atom: Var | Literal, known: Mapping[Var, int]) -> int:
    return known.get(atom, _CONSTANT) if isinstance(atom, Var) else _CONSTANT


def _with_all(marks: Iterable[int]) -> int:
    """The mark of what depends on all of these: it varies if one does."""
    marks = [*marks]
    return _VARYING if _VARYING in marks else _union(marks) or _CONSTANT


def _either(operands: Sequence[_Operand]) -> _Operand:
    """What is known of a value that is one of these: it is a constant if one of them is, for that is what changes how
    XLA treats what reads it."""
    marks = [mark for mark, _ in operands]
    made = [made for _, made in operands]
    parts = [each.of_parts for each in made if each.of_parts is not None]
    return _union(marks) or min(marks), _Made(
        any(each.by_constant for each in made),
        _union(parts) if parts else None,
        min(each.moved for each in made),
    )


def _captured(operands: Sequence[_Operand]) -> int:
    return _union([mark for mark, _ in operands])


def _adds_up(convolution: JaxprEqn) -> bool:
    """Whether the kernel has several elements for a feature of the result. With one, and a group for each feature, XLA
    may make an elementwise product of the convolution."""
    kernel, features = shape_of(convolution.invars[1]), convolution.params["dimension_numbers"].rhs_spec[0]
    return math.prod(kernel) > int(kernel[features])


def _lies_as_multiplied(dot: JaxprEqn, captured: Sequence[bool]) -> bool:
    """Whether no captured operand of the dot product has to be transposed for it.

    XLA multiplies matrices, or stacks of them, and transposes to these whatever is more than that: all axes summed over
    come last on the left and first on the right. The transpose of a constant is another constant; that of an input
    becomes part of the product, which then may add up in another order. If the axes summed over come in another order
    in the other operand, it is the constant that XLA transposes. And where there is nothing to add up it is no dot
    product to XLA but an elementwise one, fused with what follows.
    """
    contracted, stacked = dot.params["dimension_numbers"]
    shapes = [shape_of(v) for v in dot.invars]
    if _contracted(dot) <= 1:
        return False
    in_front = [tuple(axes) == (*range(len(axes)),) for axes in stacked]
    if all(in_front) and len(contracted[0]) == 1 and max(map(len, shapes)) <= len(stacked[0]) + 2:
        return True
    for side, (shape, axes, stack) in enumerate(zip(shapes, contracted, stacked, strict=True)):
        first = len(stack) if side else len(shape) - len(axes)
        in_place = in_front[side] and tuple(axes) == (*range(first, first + len(axes)),)
        if not (in_place if captured[side] else [*axes] == sorted(axes)):
            return False
    return True


def _contracted(dot: JaxprEqn) -> int:
    """How many products are added up for each element of a dot product."""
    (axes, _), _ = dot.params["dimension_numbers"]
    return math.prod(shape_of(dot.invars[0])[axis] for axis in axes)


def _union(marks: Sequence[int]) -> int:
    union = 0
    for m in marks:
        if m > 0:
            union |= m
    return union
