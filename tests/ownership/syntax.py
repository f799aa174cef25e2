"""Which variables may be read behind each place of a source, from its syntax tree.

The same question as in `ownership.bytecode.liveness`, asked of the source instead of the bytecode, so that the oracle
of the random programs shares nothing with the prover. A variable is live where some path from here reads it before it
is bound anew. Any call, attribute or item may raise, any `with` may swallow what was raised, and a nested function may
read its names from where it is made.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

Names = frozenset[str]
Key = tuple[int | None, ...]
_NOTHING: Names = frozenset()
_QUIET = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Lambda, ast.Starred, ast.IfExp, ast.BoolOp, ast.NamedExpr)
"""Expressions that do not raise by themselves."""


@dataclasses.dataclass
class Point:
    """What is known of one place in the source at which code may be called."""

    after: Names = _NOTHING
    """The variables that may be read behind it."""
    raises: Names = _NOTHING
    """The variables that may be read if it raises."""
    statement: ast.stmt | None = None
    """The statement that the value of the expression goes to as it is: an assignment or a `return`."""
    following: ast.stmt | None = None
    """The one behind that, where control goes there and nowhere else."""
    node: ast.expr | None = None
    guarded: bool = False
    """Whether something else than a `return` may follow a `return` of it: in `try` and `with`, in a generator."""


def key_of(node: Any) -> Key:
    """Where a node is in the source, as `dis` tells it of an instruction."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


class Liveness:
    """Which variables may be read behind each place of a source; backwards, statement by statement."""

    def __init__(self, source: str):
        self.points: dict[Key, Point] = {}
        tree = ast.parse(source)
        self._function(tree, tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(node, node.body)
            elif isinstance(node, ast.Lambda):
                self._function(node, [ast.Return(value=node.body)])
            elif isinstance(node, ast.GeneratorExp):
                self._function(node, [])
                self._comprehension(node, [node.elt], _NOTHING)

    def _function(self, node: Any, body: list[ast.stmt]) -> None:
        self._bound = _always_bound(node, body)
        self._raises = self._returns = self._breaks = self._continues = _NOTHING
        self._guarded = any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(node))
        self._block(body, _NOTHING)

    def _note(self, node: Any) -> Point:
        return self.points.setdefault(key_of(node), Point())

    # -- statements: what is live before one, from what is live behind it ---

    def _block(self, body: Sequence[ast.stmt], after: Names) -> Names:
        for number in range(len(body) - 1, -1, -1):
            statement = body[number]
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return) and value is not None:
                point = self._note(value)
                point.statement, point.node, point.guarded = statement, value, self._guarded
                point.following = body[number + 1] if number + 1 < len(body) else None
            after = self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, after: Names) -> Names:
        match node:
            case ast.Assign(targets, value):
                for target in reversed(targets):
                    after = self._store(target, after, fails=not has_known_length(value))
                return self._expression(value, after)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return self._expression(value, self._store(target, after))
            case ast.AugAssign(target, _, value):
                after = self._raising(node, self._store(target, after))
                return self._expression(target, self._expression(value, after))
            case ast.Expr(value):
                return self._expression(value, after)
            case ast.Return(value):
                return self._expression(value, self._returns) if value is not None else self._returns
            case ast.Delete(targets):
                for target in targets:
                    after = self._store(target, after | self._raises)
                return after
            case ast.If(test, body, orelse):
                return self._expression(test, self._block(body, after) | self._block(orelse, after))
            case ast.While(test, body, orelse):
                return self._loop(body, after, lambda again: self._expression(test, again | self._block(orelse, after)))
            case ast.For(target, iterable, body, orelse) | ast.AsyncFor(target, iterable, body, orelse):
                left = self._block(orelse, after)

                def step(again: Names) -> Names:
                    taken = self._store(target, again) | left
                    point = self._note(iterable)
                    point.after, point.raises = point.after | taken, point.raises | self._raises
                    return taken | self._raises

                return self._expression(iterable, self._loop(body, after, step))
            case ast.Try():
                return self._try(node, after)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                return self._with(items, body, after)
            case ast.Match(subject, cases):
                return self._match(subject, cases, after)
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                for default in [*args.defaults, *(d for d in args.kw_defaults if d is not None)]:
                    after = self._expression(default, after)
                return (after - {name}) | _names(node)
            case ast.Break():
                return self._breaks
            case ast.Continue():
                return self._continues
            case ast.Raise(exc):
                return self._raises if exc is None else self._expression(exc, self._raises)
        return after | self._raises | _names(node)  # anything else reads all its names

    def _loop(self, body: Sequence[ast.stmt], after: Names, head: Callable[[Names], Names]) -> Names:
        """To a fixed point; `head` gives what is live before the next round, from what is live before its body."""
        outer = self._breaks, self._continues
        known = head(_NOTHING)
        while True:
            self._breaks, self._continues = after, known
            again = head(self._block(body, known)) | known
            if again == known:
                self._breaks, self._continues = outer
                return known
            known = again

    def _try(self, node: ast.Try, after: Names) -> Names:
        outer = self._raises, self._returns, self._breaks, self._continues
        was, self._guarded = self._guarded, True
        finish = after
        if node.finalbody:  # whatever leaves the block goes through it, and from it anywhere
            finish = self._block(node.finalbody, after | frozenset().union(*outer))
            self._raises = self._returns = self._breaks = self._continues = finish
        handled = self._raises
        for handler in node.handlers:
            inside = self._block(handler.body, finish) - {handler.name or ""}
            handled |= inside if handler.type is None else self._expression(handler.type, inside)
        orelse = self._block(node.orelse, finish)
        self._raises = handled
        before = self._block(node.body, orelse)
        self._raises, self._returns, self._breaks, self._continues = outer
        self._guarded = was
        return before

    def _with(self, items: Sequence[ast.withitem], body: Sequence[ast.stmt], after: Names) -> Names:
        outer = self._raises
        left = after | outer  # what is behind it may be reached by an exception, too
        for item in items:
            self._note(item.context_expr).after |= left
        was, self._guarded, self._raises = self._guarded, True, left
        before = self._block(body, after)
        self._guarded, self._raises = was, outer
        for item in reversed(items):
            before = self._store(item.optional_vars, before) if item.optional_vars is not None else before
            before = self._expression(item.context_expr, before | outer)
        return before

    def _match(self, subject: ast.expr, cases: Sequence[ast.match_case], after: Names) -> Names:
        before = after
        for case in reversed(cases):
            names = {name for part in ast.walk(case.pattern) if (name := getattr(part, "name", None))}
            inside = self._block(case.body, after)
            if case.guard is not None:
                inside = self._expression(case.guard, inside | before)
            before = before | (inside - names) | self._raises
        return self._expression(subject, before)

    def _store(self, target: ast.expr, after: Names, fails: bool = True) -> Names:
        match target:
            case ast.Name(name):
                return after - {name}
            case ast.Tuple(parts) | ast.List(parts):
                for part in reversed(parts):
                    after = self._store(part, after, fails)
                return after | self._raises if fails else after
            case ast.Starred(value):
                return self._store(value, after)
            case ast.Attribute(value) | ast.Subscript(value):
                after = self._raising(target, after)
                if isinstance(target, ast.Subscript):
                    after = self._expression(target.slice, after)
                return self._expression(value, after)
        return after

    # -- expressions, the same ---

    def _raising(self, node: Any, after: Names) -> Names:
        point = self._note(node)
        point.after, point.raises = point.after | after, point.raises | self._raises
        return after | self._raises

    def _expression(self, node: ast.expr, after: Names) -> Names:
        self._note(node).node = node
        match node:
            case ast.Name(name):
                return after | {name} | (_NOTHING if name in self._bound else self._raises)
            case ast.NamedExpr(target, value):
                return self._expression(value, self._store(target, after))
            case ast.IfExp(test, body, orelse):
                return self._expression(test, self._expression(body, after) | self._expression(orelse, after))
            case ast.BoolOp(_, values):
                before = after
                for value in reversed(values):
                    before = self._expression(value, before | after)
                return before
            case ast.Lambda(args):
                for default in [*args.defaults, *(d for d in args.kw_defaults if d is not None)]:
                    after = self._expression(default, after)
                return after | _names(node)
            case ast.ListComp(elt) | ast.SetComp(elt):
                return self._comprehension(node, [elt], after)
            case ast.DictComp(key, value):
                return self._comprehension(node, [key, value], after)
            case ast.GeneratorExp(_, generators):
                return self._expression(generators[0].iter, after | _names(node))
        if not isinstance(node, _QUIET):
            after = self._raising(node, after)
        for child in reversed(
            [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.keyword)]
        ):
            after = self._expression(child.value if isinstance(child, ast.keyword) else child, after)
        return after

    def _comprehension(self, node: Any, made: Sequence[ast.expr], after: Names) -> Names:
        first = node.generators[0]

        def step(again: Names) -> Names:
            taken = self._store(first.target, again) | after
            self._note(first.iter).after |= taken
            return taken | self._raises

        def once(inside: Names) -> Names:
            for part in reversed(made):
                inside = self._expression(part, inside)
            for test in reversed(first.ifs):
                inside = self._expression(test, inside)
            for inner in reversed(node.generators[1:]):
                inside = self._expression(inner.iter, self._store(inner.target, inside))
            return inside

        known = step(_NOTHING)
        while (again := step(once(known)) | known) != known:
            known = again
        return self._expression(first.iter, known)


def _names(node: ast.AST) -> Names:
    """Every name in a node: what a nested function may read once it is there."""
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def has_known_length(value: ast.expr) -> bool:
    """Whether the value is that of `f2` or `f3`, or of a function of the programs that returns what `f2` returns."""
    name = getattr(value.func, "id", getattr(value.func, "attr", "")) if isinstance(value, ast.Call) else ""
    return name in ("f2", "f3", "step", "pure_step")


def _always_bound(function: Any, body: Sequence[ast.stmt]) -> Names:
    """Variables that are bound before anything else happens, and never deleted."""
    names: set[str] = set()
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = function.args
        names |= {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        for statement in body:
            if isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
                names |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
            elif not isinstance(statement, ast.Global | ast.Nonlocal | ast.Expr):
                break
    for node in ast.walk(function):
        if isinstance(node, ast.Delete):
            names -= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.discard(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            names.difference_update(node.names)
    return frozenset(names)
