"""Calls from code that is no function, or that no compiler makes."""

from __future__ import annotations

import ast
import dis
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import pytest

import pytc

step = pytc.compile(lambda x: x + 1)


def test_a_call_in_a_class_body_leaves_the_class_as_it_is() -> None:
    """To ask for the frame's variables would put its cells among them, up to CPython 3.12."""
    x = jnp.zeros(64)
    for _ in range(3):

        class Proxy:
            __class__ = property(lambda self: int)  # type: ignore[assignment]

            def close(self) -> Any:
                return super().__init__()  # has a cell for the class

            made = step(x)

        assert "__class__" in vars(Proxy)
        assert isinstance(Proxy(), int)


def _made(source: str) -> types.CodeType:
    return compile(source, "made", "exec")


def _with_flags(code: types.CodeType, flags: int) -> types.CodeType:
    return code.replace(co_flags=code.co_flags & ~3 | flags)


@pytest.mark.parametrize("flags", [0, 1, 3])
@pytest.mark.parametrize(
    "code",
    [_made("x = f(x)"), next(c for c in _made("class C:\n x = f(x)\n").co_consts if isinstance(c, types.CodeType))],
    ids=["module", "class"],
)
def test_variables_of_its_own(code: types.CodeType, flags: int) -> None:
    """`x` is read from the globals and written elsewhere."""
    for _ in range(3):
        there: dict[str, Any] = {"f": step, "x": jnp.zeros(64), "__name__": __name__}
        own: dict[str, Any] = {"__name__": __name__}
        exec(_with_flags(code, flags), there, own)
        assert there["x"].tolist() == [0] * 64
        assert own["x"].tolist() == [1] * 64


def test_parameters_stay_out_of_the_module() -> None:
    def fun(only_here):
        global kept
        kept = step(kept)

    space = {"step": step, "kept": jnp.zeros(64)}
    odd = types.FunctionType(_with_flags(fun.__code__, 0), space)
    for _ in range(3):
        odd(1)
    assert "only_here" not in space
    assert space["kept"].tolist() == [3] * 64


def _table(entries: Sequence[tuple[int, int, int, int, bool]]) -> bytes:
    """An exception table, as `Objects/exception_handling_notes.txt` of CPython describes it."""

    def number(value: int, mark: int = 0) -> bytes:
        digits = [value & 63]
        while value := value >> 6:
            digits.insert(0, value & 63 | 64)
        digits[0] |= mark
        return bytes(digits)

    return b"".join(
        number(start // 2, 128) + number((end - start) // 2) + number(target // 2) + number(depth * 2 + lasti)
        for start, end, target, depth, lasti in entries
    )


def test_two_handlers_of_one_call() -> None:
    """The interpreter takes the first."""

    def fails() -> None:
        raise ValueError

    def fun(x: Any) -> float:
        try:
            step(x)
            fails()
        except ValueError:
            return float(x[0])
        try:
            fails()
        except KeyError:
            return 1
        return 2

    parse: Callable[[types.CodeType], Any] = dis._parse_exception_table  # type: ignore[attr-defined]
    entries = [(e.start, e.end, e.target, e.depth, e.lasti) for e in parse(fun.__code__)]
    assert _table(entries) == fun.__code__.co_exceptiontable
    first = entries[0]
    other = next(entry for entry in entries if not entry[4] and entry[2] != first[2])
    table = _table([first, (*first[:2], *other[2:]), *entries[1:]])
    odd = types.FunctionType(fun.__code__.replace(co_exceptiontable=table), globals(), None, None, fun.__closure__)
    found = [odd(jnp.zeros(64)) for _ in range(3)]
    assert found == [0, 0, 0]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in 3.12")
def test_a_generic_class() -> None:
    space: dict[str, Any] = {"step": step, "x": jnp.zeros(64)}
    source = "class G[T]:\n y = step(x)\n def m(self, a: T) -> y: pass\n type A = T\n"
    for f in (lambda x: x + 1, step):
        exec(source, space | {"step": f}, space)
        space[f"of {f is step}"] = {*vars(space["G"])}
    assert space["of True"] == space["of False"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="comprehensions are functions of their own before 3.12")
@pytest.mark.parametrize("instead", [("RETURN_VALUE",), ("UNARY_NEGATIVE", "RETURN_VALUE")])
def test_what_a_comprehension_puts_aside_is_returned(instead: Sequence[str]) -> None:
    """Compilers only put it back."""

    def fun(x: Any) -> Any:
        y = step(x)
        return [x for x in y]  # noqa: C416

    instructions = [*dis.get_instructions(fun)]
    over = next(i.offset for i in instructions if i.opname == "END_FOR") + 2
    names = [i.opname for i in instructions if i.offset >= over]
    first = names.index("STORE_FAST") if "STORE_FAST" in names else 0
    bytecode = bytearray(fun.__code__.co_code)
    # The list, and then what was put aside, are on the stack behind the loop; where they are swapped, not any more.
    for n, name in enumerate(instead):
        at = over + 2 * (first + n)
        bytecode[at : at + 2] = bytes([dis.opmap[name], 0])
    odd = types.FunctionType(fun.__code__.replace(co_code=bytes(bytecode)), globals(), None, None, fun.__closure__)
    sign = -1 if len(instead) > 1 else 1
    for _ in range(3):
        returned = odd(jnp.ones(64))  # an `assert` keeps what is passed to a call in it
        assert returned.tolist() == [sign] * 64


@pytest.mark.skipif(sys.version_info < (3, 12), reason="comprehensions are functions of their own before 3.12")
def test_what_a_comprehension_puts_aside_is_stored_elsewhere() -> None:
    def fun(x: Any) -> Any:
        y = step(x)
        kept = None
        z = [x for x in y]  # noqa: C416, F841
        return kept

    instructions = [*dis.get_instructions(fun)]
    over = next(i.offset for i in instructions if i.opname == "END_FOR")
    stores = ("STORE_FAST", "STORE_FAST_STORE_FAST")
    back = next(i for i in instructions if i.offset > over and i.opname in stores and "x" in i.argrepr.split(", "))
    names = [fun.__code__.co_varnames.index(name.replace("x", "kept")) for name in back.argrepr.split(", ")]
    bytecode = bytearray(fun.__code__.co_code)
    bytecode[back.offset + 1] = names[0] if len(names) == 1 else names[0] << 4 | names[1]
    odd = types.FunctionType(fun.__code__.replace(co_code=bytes(bytecode)), globals(), None, None, fun.__closure__)
    for _ in range(3):
        returned = odd(jnp.ones(64))
        assert returned.tolist() == [1] * 64


def _zeros() -> list[Any]:
    return [jnp.zeros(64) + i for i in range(3)]


def _first_of(iterator: Any) -> float:
    """Of the list that an iterator goes over, which it tells to whoever copies it."""
    items: list[Any] = iterator.__reduce__()[1][0]
    return float(items[0][0])


def _instead_of(function: Any, old: tuple[str, str], new: tuple[str, int]) -> Any:
    """The function with another instruction in the place of one by name and argument, for which nothing else stands."""
    instructions = [*dis.get_instructions(function, show_caches=False)]
    at = next(n for n, i in enumerate(instructions) if i.opname == old[0] and old[1] in str(i.argval))
    code = bytearray(function.__code__.co_code)
    begin, end = instructions[at].offset, instructions[at + 1].offset
    code[begin:end] = bytes([dis.opmap[new[0]], new[1], *[dis.opmap["NOP"], 0] * ((end - begin) // 2 - 1)])
    return types.FunctionType(function.__code__.replace(co_code=bytes(code)), globals(), None, None, None)


def test_the_body_of_a_loop_copies_its_iterator() -> None:
    def fun() -> list[float]:
        found = []
        for x in _zeros():
            x = step(x)
            again = ITERATOR  # type: ignore[name-defined] # noqa: F821
            found.append(_first_of(again))
            del again
        return found

    odd = _instead_of(fun, ("LOAD_GLOBAL", "ITERATOR"), ("COPY", 1))
    for _ in range(3):
        assert odd() == [0] * 3


@pytest.mark.parametrize("brackets", ["[{}]"] * (sys.version_info < (3, 12)) + ["list({})"])
def test_a_comprehension_names_its_argument(brackets: str) -> None:
    """An abstract syntax tree may."""
    source = f"def fun():\n return {brackets.format('_first_of([step(x), NAME][1]) for x in _zeros()')}"
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "NAME":
            node.id = ".0"
    space = dict(globals())
    exec(compile(tree, "made", "exec"), space)
    for _ in range(3):
        assert space["fun"]() == [0] * 3


@pytest.mark.skipif("LOAD_CLOSURE" not in dis.opmap or dis.opmap["LOAD_CLOSURE"] > 255, reason="no such instruction")
def test_a_variable_is_loaded_as_a_cell_would_be() -> None:
    def fun(x: Any, f: Any) -> float:
        f(x)
        return float(THE_SAME[0])  # type: ignore[name-defined] # noqa: F821

    odd = _instead_of(fun, ("LOAD_GLOBAL", "THE_SAME"), ("LOAD_CLOSURE", 0))
    f = pytc.compile(lambda x: x + 1)
    found = [odd(jnp.zeros(64), f) for _ in range(3)]
    assert found == [0] * 3


def test_a_variable_is_made_a_cell() -> None:
    def fun(x: Any, f: Any) -> float:
        one = 1
        f(x)
        del one
        return float(CELL[0])  # type: ignore[name-defined] # noqa: F821

    made = _instead_of(fun, ("DELETE_FAST", "one"), ("MAKE_CELL", 0))
    odd = _instead_of(made, ("LOAD_GLOBAL", "CELL"), ("LOAD_DEREF", 0))
    f = pytc.compile(lambda x: x + 1)
    found = [odd(jnp.zeros(64), f) for _ in range(3)]
    assert found == [0] * 3
