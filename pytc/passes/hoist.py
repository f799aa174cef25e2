"""hoist: arrays that the function captured become inputs instead of constants baked into the program.

XLA spends compile time and host memory on a large constant, and every executable made of the function holds one. An
input is one buffer for all of them. It is a snapshot, as `jax.jit`'s constant is: the captured array can be donated or
deleted by its owner later, or the NumPy array written to, and the function goes on with what it captured. It is never
donated.

The one thing that could change is the result. XLA rewrites what it sees to be constant: it computes `tanh(c)` while
compiling, by other code than at run time, turns `x / c` into `x * (1 / c)`, and multiplies with `c.T` as it lies, where
it would multiply with the transpose of an input by another kernel. Results must stay those of `jax.jit` to the bit, so
an array is hoisted only if every equation that reads it is one that XLA treats alike whether or not the operand is
constant (`_VALUE_BLIND`). So an array stays a constant of the function that captured it if

    - an equation on constants alone reads it, even one that only moves its elements (a transpose, a slice);
    - XLA would join it to another constant: `x * c * d` is `x * (c * d)` to it (`_JOINED`);
    - it has one element, or one value repeated, and so costs nothing to keep.

Cost: one visit to each equation at every depth, and to that of an inner `jit` for each way in which its operands are
constant; each array that becomes an input is read once and copied; nothing where nothing is captured.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pytc.jax_compat import arrays, jaxprs, rewriting
from pytc.jax_compat.avals import AbstractValue, is_extended, on_axes, short
from pytc.jax_compat.jaxprs import Jaxpr, JaxprEqn, Literal, Var
from pytc.jax_compat.layouts import is_over_several
from pytc.passes import while_loops
from pytc.passes.constants import has_constant_loop, same_by_anyone
from pytc.passes.set_bits import set_bits
from pytc.program import Input, Program

# Done by the same code at run time, whether or not one of several operands is constant.
_VALUE_BLIND = frozenset(
    """add add_any and clamp concatenate conv_general_dilated dot_general dynamic_slice dynamic_update_slice eq gather
    ge gt le lt max min mul ne or pad scatter scatter-add select_n sub xor""".split()
)

# But XLA joins the constants of a sum or a product: (x + c) + d is x + (c + d) to it, and (x * c) * (y * d) is
# (x * y) * (c * d). Which of these a primitive makes.
_JOINED = {"add": "sum", "add_any": "sum", "sub": "sum"} | dict.fromkeys(("mul", "div"), "product")
_POWERS = frozenset({"integer_pow", "square"})  # products of an operand with itself
_JOINED |= dict.fromkeys(_POWERS, "product")

# XLA also splits a dot product with a constant into several if the other operand is a concatenation, or a slice of
# another constant. Key of what `_Looks` notes of such operands: the constants that they are slices of.
_PARTS = "parts"

# And if the other operand is transposed, and all axes that the transpose has moved are summed over, XLA transposes the
# constant instead. Key of what is noted of such operands: how many elements these axes and those after them have.
_MOVED = "moved"

# XLA makes one loop of a product with a vector and of what is read beside it element by element. Which loop, and so how
# it rounds, depends on whether that is a constant: `x - c` becomes `x + -c` for a constant alone; and a constant of
# several axes, all but one of one element, becomes a vector while XLA compiles. Key of what is noted of such products,
# and of what is made of them.
_BY_VECTOR = "product with a vector"
_ELEMENTWISE = frozenset("add add_any clamp max min mul select_n sub".split())

# Equations that XLA looks through for all of that.
_HAND_ON = frozenset(
    """broadcast_in_dim convert_element_type copy name neg reduce_precision reshape rev slice squeeze
    stop_gradient transpose""".split()
)

# Their jaxprs' invars and outvars are the equation's own.
_CALLS = frozenset("jit closed_call remat2 custom_jvp_call custom_vjp_call".split())

_VARYING = 0  # depends on an argument
_CONSTANT = -1  # a constant of the program whatever is hoisted


def hoist(program: Program) -> Program:
    """Captured arrays as inputs, wherever that cannot change a bit of the result. They come before the leaves."""
    lifted = rewriting.lift_inner_consts(program.jaxpr)
    if not lifted.jaxpr.constvars:
        return program
    looks = _Looks(lifted.jaxpr)
    is_cut = any(is_over_several(leaf.placed) for leaf in program.leaves)
    hoisted: set[int] = set()
    notes = []
    for i, (var, value) in enumerate(zip(lifted.jaxpr.constvars, lifted.consts, strict=True)):
        why = looks.reasons.get(i, "") or _of_its_elements(value, var.aval, bool(looks.subtracted >> i & 1), is_cut)
        hoisted.update([] if why else [id(value)])
        what = f"the captured array {short(var.aval)}"
        notes.append(f"{what} stays a constant: {why}" if why else f"{what} is an input instead of a constant")
    if not hoisted:
        return program.noted("hoist", notes)
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
        inputs=(*(Input(None, arrays.snapshot(value, var.aval)) for var, value in captured), *program.inputs),
    )


def _of_its_elements(value: Any, aval: AbstractValue, is_subtracted: bool, is_cut: bool) -> str:
    """Why a constant of this type and with these elements is not hoisted, or nothing; `is_cut` if arguments are."""
    if not hasattr(value, "size") or isinstance(value, jax.Ref):
        return ""
    if on_axes(aval) is not None:
        return "its type says where on a mesh it is"  # a snapshot is all of it everywhere
    if value.size <= 1:
        return "it has at most one element"
    if isinstance(value, jax.Array) and (not value.is_fully_addressable or is_extended(value.dtype)):
        return ""
    if is_cut and not (isinstance(value, jax.Array) and is_over_several(value.sharding)):
        return "arguments are spread over devices, and XLA spreads a constant as it likes"
    with jax.transfer_guard("allow"):
        data = np.asarray(value)
    if bool((data == data.flat[0]).all()):
        return "all its elements are equal"
    # XLA adds the negative of a constant, and a NaN's has the other sign.
    return "it is subtracted and has a NaN" if is_subtracted and bool((data != data).any()) else ""


class _Looks:
    """What equations do with constvars: `reasons` says by number which of these are read by an equation that XLA may
    treat otherwise for a constant, and why."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.reasons: dict[int, str] = {}
        self.subtracted = 0
        """Which constvars are taken from a value that varies."""
        self._held: dict[Var, dict[str, int]] = {}
        """What is noted of values that vary: under "sum" and "product" the constvars that are in that sum or product;
        and what stands under `_PARTS` and `_MOVED`."""
        self._called: dict[Hashable, tuple[list[int], list[dict[str, int]]]] = {}
        """By the jaxpr that is called (id), and the marks and notes of its operands: marks and notes of its results."""
        # A set of constvars as the bits of an integer.
        self._walk(jaxpr, {var: 1 << i for i, var in enumerate(jaxpr.constvars)})

    def _walk(self, jaxpr: Jaxpr, marks: dict[Var, int]) -> list[int]:
        """Propagate `marks` (`_VARYING`, `_CONSTANT`, or the constvars that a value is made of) through the equations.

        Vars without a mark vary. Returns the outvars' marks.
        """

        def mark(atom: Any) -> int:
            return _CONSTANT if isinstance(atom, Literal) else marks.get(atom, _VARYING)

        for eqn in jaxpr.eqns:
            given = [mark(atom) for atom in eqn.invars]
            made = _CONSTANT if not any(m == _VARYING for m in given) and not eqn.effects else _VARYING
            captured = _union(given)
            results = [made] * len(eqn.outvars)
            if made == _VARYING:
                self._join(eqn, given)
            if eqn.primitive.name in _CALLS and (captured or made == _VARYING):
                # What a call returns may be constant, whatever it is given.
                results = self._walk_calls(eqn, given)
            elif captured and made == _VARYING and (inner := list(_bodies(eqn, given))):
                if eqn.primitive.name != "cond" and any(has_constant_loop(body) for body, _ in inner):
                    self._seen(captured, "it is read in a loop around one on constants alone, which XLA then moves out")
                made_inside = [self._walk(body, dict(zip(body.invars, known, strict=True))) for body, known in inner]
                # A loop of few steps is none to XLA: what each step returns of constants alone is constant after it.
                results = [_VARYING] * len(eqn.outvars) if eqn.primitive.name == "cond" else made_inside[-1]
            elif captured and made == _CONSTANT and same_by_anyone(eqn):
                results = [captured] * len(eqn.outvars)
            elif captured and not (made == _VARYING and _is_value_blind(eqn, given)):
                what = "takes part in work on constants alone" if made == _CONSTANT else "is read by an equation"
                self._seen(captured, f"it {what} (`{eqn.primitive.name}`), which XLA does otherwise for a constant")
            marks.update(zip(eqn.outvars, results, strict=True))
        return [mark(atom) for atom in jaxpr.outvars]

    def _walk_calls(self, eqn: JaxprEqn, given: Sequence[int]) -> list[int]:
        results = [_VARYING] * len(eqn.outvars)
        of_given = [self._of(v) for v in eqn.invars]
        for body in jaxprs.subjaxprs(eqn):
            if len(body.invars) == len(given):
                asked = id(body), *given, *(tuple(held.items()) for held in of_given)
                if asked not in self._called:
                    self._held.update(zip(body.invars, of_given, strict=True))
                    results = self._walk(body, dict(zip(body.invars, given, strict=True)))
                    self._called[asked] = results, [self._of(v) for v in body.outvars]
                results, of_results = self._called[asked]
                self._held.update(zip(eqn.outvars, of_results, strict=True))
        return results

    def _join(self, eqn: JaxprEqn, given: Sequence[int]) -> None:
        """Note of the results what they hold (`_held`), and which constvars XLA joins to others on the way."""
        name = eqn.primitive.name
        held: dict[str, int] = {}
        if name == "sub":
            self.subtracted |= max(given[1], 0)
        if name in _JOINED:
            kind = _JOINED[name]
            parts: list[int] = []
            for v, m in zip(eqn.invars, given, strict=True):
                if m == _VARYING:
                    parts += [self._of(v)[kind]] if kind in self._of(v) else []
                elif not isinstance(v, Literal):  # of one element, which XLA joins to no larger constant
                    parts.append(max(m, 0))
            if parts:
                held = {kind: _union(parts)}
            if len(parts) > (name not in _POWERS):
                self._seen(held[kind], f"it is in a {kind} with another constant, which XLA joins to it")
        elif name in _HAND_ON:
            for v in eqn.invars:
                held.update(self._of(v))
            if name == "transpose":
                first = next((k for k, axis in enumerate(eqn.params["permutation"]) if k != axis), 0)
                held[_MOVED] = math.prod(_shape(eqn.outvars[0])[first:])
        elif name == "concatenate":
            held = {_PARTS: 0}
        elif name == "dynamic_slice":
            held = {_PARTS: max(given[0], 0)} if given[0] != _VARYING else {}
        elif name == "reduce_sum":
            products = self._of(eqn.invars[0]).get("product", 0)
            self._seen(products, "it is in a sum of products, which XLA makes one loop of")
        elif name == "dot_general":
            self._multiply(eqn, given)
        held = held | self._by_vector(eqn, given)
        self._held.update((var, held) for var in eqn.outvars)

    def _by_vector(self, eqn: JaxprEqn, given: Sequence[int]) -> dict[str, int]:
        """Whether the result is a product with a vector, or made of one; and which constvars are read beside one."""
        name = eqn.primitive.name
        if name == "dot_general":
            return {_BY_VECTOR: 0} if _is_by_vector(eqn) else {}
        made_of = [v for v in eqn.invars if _BY_VECTOR in self._of(v)]
        if not made_of or not eqn.outvars:
            return {}
        shape = _shape(eqn.outvars[0])
        if name in _ELEMENTWISE and (name == "sub" or len(shape) > 1):
            self._seen(_union(given), "it is read beside a product with a vector, which XLA makes one loop of")
        return {_BY_VECTOR: 0} if any(math.prod(_shape(v)) == math.prod(shape) for v in made_of) else {}

    def _multiply(self, dot: JaxprEqn, given: Sequence[int]) -> None:
        """Which constvars take part in a dot product with what holds others."""
        contracted, _ = dot.params["dimension_numbers"]
        for v, axes, other, m in zip(dot.invars, contracted, reversed(dot.invars), reversed(given), strict=True):
            held = self._of(v)
            are_last = min(axes, default=0) == len(_shape(v)) - len(axes)
            if m > 0 and _PARTS in held:
                self._seen(m | held[_PARTS], "it is multiplied with parts of an array, by XLA each by itself")
            if m > 0 and _MOVED in held and (not are_last or held[_MOVED] <= _contracted(dot)):
                self._seen(m, "it is multiplied with a transposed array, for which XLA transposes the constant")
            if m != _VARYING and "product" in held and math.prod(_shape(other)) == _contracted(dot):
                self._seen(max(m, 0) | held["product"], "it is in a sum of products with another constant")

    def _of(self, atom: Any) -> dict[str, int]:
        return {} if isinstance(atom, Literal) else self._held.get(atom, {})

    def _seen(self, constvars: int, why: str) -> None:
        for i in set_bits(constvars):
            self.reasons.setdefault(i, why)


def _is_value_blind(eqn: JaxprEqn, given: Sequence[int]) -> bool:
    """Whether XLA treats the equation alike whichever of its operands are constant, of those that are `given` so."""
    if eqn.primitive.name == "dot_general":
        return _lies_as_multiplied(eqn, [m > 0 for m in given])
    return eqn.primitive.name in _VALUE_BLIND


def _lies_as_multiplied(dot: JaxprEqn, captured: Sequence[bool]) -> bool:
    """Whether no captured operand of the dot product has to be transposed for it.

    XLA multiplies matrices, or stacks of them, and transposes to these whatever is more than that: all axes summed over
    come last on the left and first on the right. The transpose of a constant is another constant; that of an input
    becomes part of the product, which then may add up in another order. If the axes summed over come in another order
    in the other operand, it is the constant that XLA transposes. And where there is nothing to add up it is no dot
    product to XLA but an elementwise one, fused with what follows.
    """
    contracted, stacked = dot.params["dimension_numbers"]
    shapes = [_shape(v) for v in dot.invars]
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
    return math.prod(_shape(dot.invars[0])[axis] for axis in axes)


def _is_by_vector(dot: JaxprEqn) -> bool:
    """Whether an operand of the dot product is a vector, whatever axes of one element it has besides."""
    return any(math.prod(_shape(v)) == _contracted(dot) for v in dot.invars)


def _shape(operand: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = operand.aval.shape
    return shape


def _bodies(eqn: JaxprEqn, given: Sequence[int]) -> Iterator[tuple[Jaxpr, list[int]]]:
    """The jaxprs of a loop or a branch, with what each of their invars is given; nothing where a captured array is
    given to something that changes from step to step, or that is not known here."""
    if eqn.primitive.name == "scan":
        consts, carry, slices = jaxprs.split_scan(eqn, given)
        if not _union(carry):
            (body,) = jaxprs.subjaxprs(eqn)
            yield body, [*consts, *(_VARYING for _ in carry), *slices]
    elif eqn.primitive.name == "while":
        cond_consts, body_consts, carry = jaxprs.split_while(eqn, given)
        # An input that is read beside one carry makes a tuple of the loop's state, which XLA sees through if it starts
        # with constants. Where an effect reads it, of several carries all but one may be dead.
        becomes_tuple = _CONSTANT in carry and (eqn.effects or while_loops.may_be_one_array(eqn))
        if not _union(carry) and not becomes_tuple:
            varying = [_VARYING] * len(carry)
            yield jaxprs.inner(eqn.params["cond_jaxpr"]), [*cond_consts, *varying]
            yield jaxprs.inner(eqn.params["body_jaxpr"]), [*body_consts, *varying]
    elif eqn.primitive.name == "cond" and not _union(given[:1]):
        for body in jaxprs.subjaxprs(eqn):
            yield body, list(given[1:])


def _union(marks: Sequence[int]) -> int:
    union = 0
    for m in marks:
        if m > 0:
            union |= m
    return union
