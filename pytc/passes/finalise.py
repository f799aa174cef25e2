"""finalise: what only mattered to autodiff, batching or tracing is replaced by what it stands for, at every depth.

Once nothing differentiates or batches a program any more, a `custom_jvp_call` is the function that it wraps, a
`stop_gradient` is its operand, and a remat that nothing differentiated is its body. Without the wrappers the later
passes see the equations themselves, and what reads only plain jaxprs (`jax.export`, converters) can read the result.

What is lowered is what `jax.jit` lowers: each rule does what JAX itself does on the way to XLA. So a remat that was
differentiated stays, because JAX puts an optimization barrier before it; so does `lax.optimization_barrier`, and so
does an inner `jit` that has shardings, a mesh, donation or compiler options. Any other inner `jit` is replaced where
it is the only call of its function or that has a few equations at most: JAX lowers a jitted function once however
often it is called, and a thousand copies of one would be slower to compile.

What a loop, a branch or a `jit` hands on unchanged is read where it came from, not from its result.

In a `Program`, which is to be compiled, an inner `jit` stays, unless it has `inline=True`: JAX 0.12 emits the body of
such a one where it stands, and before 0.12 none is in a jaxpr. Any other JAX emits as a call of a function. XLA begins
to simplify each function by itself and inlines calls only later. So what it fuses, and what it computes while it
compiles, depends on where the calls are, and with that the last bits: `jnp.maximum(x, 0)` under a `jit` of its own may
round otherwise than without. For the same reason what is handed on is read where it came from only where nothing is
computed from it: a result of the program that is an argument. Of `x + 0.1`, handed on by a loop, and `0.3` added to
that, XLA would make `x + 0.4`.

Name stacks (profiles, `jax.named_scope`), tracebacks and effects stay. Nobody differentiates the result: the rules
for that are what was taken out.

Cost: one visit to each equation at every depth.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pytc.errors import LeftToJit
from pytc.jax_compat import avals, jaxprs, rewriting, rules
from pytc.jax_compat.effects import calls_in_order, makes_weak_refs
from pytc.jax_compat.jaxprs import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Primitive, Var
from pytc.jax_compat.origins import home
from pytc.passes import subjaxprs, while_loops
from pytc.passes.subjaxprs import Atom
from pytc.program import Program

_ALWAYS_INLINED = 3  # Equations in the body of a `jit`: what `jnp.where`, `clip` and the like are made of.

_FINALISATIONS: dict[Primitive, Callable[..., Any]] = {}


def finalise(program: Program) -> Program:
    """The program without custom primitives and wrappers; its inner `jit`s stay, but for those with `inline=True`.

    Raises `TypeError` where a registered rule's result does not have the type of what it replaces, or a rule uses what
    it replaces, and `LeftToJit` where something has an effect that its equation does not have. What a rule itself
    raises is passed on, with a note that names the primitive.
    """
    if makes_weak_refs(program.jaxpr.jaxpr):
        return program.noted("finalise", ["nothing is replaced: calls decide over types where a `Ref` is of weak type"])
    if calls_in_order(program.jaxpr.jaxpr):  # what they are given may be there for a wrapper alone
        return program.noted("finalise", ["nothing is replaced: XLA may fail on calls with ordered effects"])
    finaliser = _Finaliser(program.jaxpr, compiled=True)
    notes = []
    if finaliser.replaced and _narrows_loops(program.jaxpr, finaliser.closed):
        finaliser = _Finaliser(program.jaxpr, compiled=True, needed=True)
        notes = ["wrappers stay: a loop would lose results that only they read, and XLA might compute other bits of it"]
    if finaliser.closed is program.jaxpr and not (notes or finaliser.unregistered or finaliser.enclosed):
        return program
    notes += [
        f"{n} `{name}` replaced by what {'it stands' if n == 1 else 'they stand'} for"
        for name, n in sorted(finaliser.replaced.items())
    ]
    for name in sorted(finaliser.unregistered):
        why = "as it would under jax.jit" if name in _COMPILED_APART else "no finalisation is registered for it"
        notes.append(f"`{name}` stays: {why}")
    why = "it stands for something with an array of its own, in a `remat` or `shard_map`"
    notes += [f"`{name}` stays: {why}" for name in sorted(finaliser.enclosed)]
    return program.noted("finalise", notes, jaxpr=finaliser.closed)


def finalise_jaxpr(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same of a jaxpr that is not to be compiled as it is: most inner `jit`s are replaced, too."""
    return _Finaliser(closed).closed


def register_finalisation(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """From now on, `finalise` replaces `primitive` by the equations of `rule`.

    `rule(*operands, **params)` is a function that JAX can trace. It returns what binding the primitive returns: one
    array, or a list of them if `primitive.multiple_results`, of the same shapes and dtypes. It may use other
    primitives that have rules, but not `primitive` itself, at any depth or by way of these others' rules. A second rule
    for a primitive replaces the first.

    Raises `TypeError` for what is not a `jax.extend.core.Primitive`, and for a rule that is not callable.
    """
    if not isinstance(primitive, Primitive):
        raise TypeError(f"register_finalisation takes a jax.extend.core.Primitive, not {type(primitive).__name__}")
    if not callable(rule):
        raise TypeError(f"the finalisation rule of `{primitive}` is not callable: {rule!r}")
    _FINALISATIONS[primitive] = rule


def _with_primal_functions(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr after JAX's dead-code elimination, if that says what something stands for: a `custom_vjp` with
    `optimize_remat`, whose forward function stands for the function itself unless nothing reads the residuals; or a
    `HiPrim`, which may be another one where only some of its results are read."""
    if not (
        subjaxprs.has(closed.jaxpr, "remat_opt")
        or (rules.DEAD_GOES_FIRST and subjaxprs.has(closed.jaxpr, "call_hi_primitive"))
    ):
        return closed
    alive, _ = rules.dce(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    return rewriting.close(alive, closed.consts)


def _narrows_loops(closed: ClosedJaxpr, finalised: ClosedJaxpr) -> bool:
    """Whether JAX, which goes into loops to take out what is dead (from 0.12 on), would take more from one that is
    `finalised` than bits allow, and more than from the program as it is.

    A wrapper reads all its operands and computes all its results, what it stands for may not. So what only a wrapper
    reads is alive to JAX, and stays when it lowers the program.
    """
    if not rules.goes_into(rules.WHILE) or not subjaxprs.has(closed.jaxpr, "while"):
        return False

    def alive(closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr, _ = rules.dce(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
        return rewriting.close(jaxpr, closed.consts)

    if not while_loops.narrows_too_far(finalised.jaxpr, alive(finalised).jaxpr):
        return False
    finalised = _Finaliser(alive(closed), compiled=True).closed  # without what is dead to JAX as well
    return while_loops.narrows_too_far(finalised.jaxpr, alive(finalised).jaxpr)


class _Unwrapped(NamedTuple):
    """What an equation stands for: `body` called with `operands`."""

    body: Any
    """A Jaxpr or a ClosedJaxpr."""
    operands: Sequence[Atom]
    name: str = ""


class _Finaliser:
    """One run over one jaxpr: `closed` is the result, `replaced` how many of each primitive went, `unregistered` are
    the primitives that are not JAX's and have no rule, and `enclosed` those that stay because there is no place for the
    arrays that come with what they stand for. What is about to be `compiled` keeps what decides over bits. If only what
    is `needed` goes, all stays that JAX can lower as it is."""

    def __init__(self, closed: ClosedJaxpr, *, compiled: bool = False, needed: bool = False) -> None:
        closed = _with_primal_functions(closed)
        self._compiled = compiled
        self._needed = needed
        self.replaced: Counter[str] = Counter()
        self.unregistered: set[str] = set()
        self.enclosed: set[str] = set()
        self._sites: Counter[int] = Counter()
        if not compiled:  # else calls stay, however many there are
            _count_call_sites(closed.jaxpr, self._sites)
        self._sizes: dict[int, int] = {}
        self._uses: dict[Primitive, set[Primitive]] = {}  # by primitive: those with rules that its rule uses
        self._inner = _Inner(self)
        self._open = subjaxprs.Memo(lambda jaxpr, _: self._finalised(jaxpr, None))
        self.closed = self.finalised(closed)
        if compiled and not needed:
            self.closed = _with_handed_on_inputs(self.closed)
        # They refer to this, and what is captured should go when the program does.
        del self._inner, self._open

    def finalised(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The jaxpr without wrappers, with the consts of what was inlined besides its own."""
        constants = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        known = len(constants)
        jaxpr = self._finalised(closed.jaxpr, constants)
        if jaxpr is closed.jaxpr:
            return closed
        changed = rewriting.close(jaxpr, closed.consts)
        if len(constants) == known:
            return changed
        names = jaxprs.input_names(jaxpr)
        return rewriting.with_inputs(changed, constants=constants, invars=jaxpr.invars, names=names)

    def _finalised(self, jaxpr: Jaxpr, constants: list[tuple[Var, Any]] | None) -> Jaxpr:
        """The jaxpr without wrappers. Consts of an inlined body are added to `constants`; where that is None, as for a
        `remat` or a `shard_map`, whose jaxprs have no consts, a wrapper with consts of its own stays."""
        names: dict[Var, Atom] = {}
        eqns: list[JaxprEqn] = []
        todo = jaxpr.eqns[::-1]
        while todo:
            eqn = subjaxprs.rename(todo.pop(), names)
            if subjaxprs.is_flat(eqn.primitive) and eqn.primitive not in _FINALISATIONS:
                eqns.append(eqn)
                continue
            inlined: list[JaxprEqn]
            stays = self._compiled and eqn.primitive.name in _CALLS and not jaxprs.inlined_late(eqn)
            if eqn.primitive.name in _HAND_ON and not self._needed:
                inlined, results = [], list(eqn.invars)
            elif not stays and (unwrapped := self._unwrapped(eqn, constants)) is not None:
                inlined, results = _inlined(eqn, unwrapped, constants)
            else:
                if eqn.primitive.name not in subjaxprs.OPAQUE:
                    inner = self._inner if eqn.primitive.name in jaxprs.HOLD_CONSTS else self._open
                    eqn = subjaxprs.map_subjaxprs(eqn, inner)
                eqns.append(eqn)
                if not self._compiled:
                    names.update(subjaxprs.handed_on(eqn))
                continue
            self.replaced[eqn.primitive.name] += 1
            for old, new in zip(eqn.outvars, results, strict=True):
                if new.aval == old.aval or isinstance(old, DropVar):
                    names[old] = new
                else:
                    inlined.append(rewriting.retyped(eqn, new, old))
            # They may be, or hold, wrappers themselves.
            todo += reversed(inlined)
        outvars = [subjaxprs.renamed(v, names) for v in jaxpr.outvars]
        unchanged = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
        if unchanged and all(map(operator.is_, outvars, jaxpr.outvars)):
            return jaxpr
        return rewriting.with_equations(jaxpr, eqns, outvars=outvars)

    def _unwrapped(self, eqn: JaxprEqn, constants: list[tuple[Var, Any]] | None) -> _Unwrapped | None:
        """What the equation stands for, or None if it stands for itself."""
        name = eqn.primitive.name
        unwrapped: _Unwrapped | None = None
        if eqn.primitive in _FINALISATIONS:
            unwrapped = self._by_rule(eqn, _FINALISATIONS[eqn.primitive])
        elif self._needed and (name in _WRAPPERS or name in _MEANING_IS_IMPL):
            return None
        elif name in _WRAPPERS:
            unwrapped = _WRAPPERS[name](eqn)
            if self._compiled and unwrapped is not None and name == "call_hi_primitive":
                _refuse_hidden_effects(eqn, unwrapped)
        elif name == "jit":
            unwrapped = self._jit(eqn)
        elif (package := home(eqn.primitive)) != "jax":
            is_equinox = package == "equinox" and name in _MEANING_IS_IMPL
            if is_equinox and not (self._compiled and name in _COMPILED_APART):
                unwrapped = self._by_impl(eqn, dict(constants or ()))
            if unwrapped is None:
                self.unregistered.add(name)
        if unwrapped is None or jaxprs.has_metadata(eqn):
            return None
        body = jaxprs.inner(unwrapped.body)
        if not all(avals.alike(v.aval, w.aval) for v, w in zip(body.outvars, eqn.outvars, strict=False)):
            return None
        if body.constvars and constants is None:
            self.enclosed.add(name)
            return None
        return unwrapped

    def _jit(self, eqn: JaxprEqn) -> _Unwrapped | None:
        """An inner `jit` is what it calls, unless it says where that runs, or is one of several calls."""
        body = eqn.params["jaxpr"]
        if not jaxprs.is_plain_jit(eqn):
            return None
        several = self._sites[id(body.jaxpr)] > 1 and not jaxprs.inlined_late(eqn)
        if several and not self._is_trivial(self._inner(body).jaxpr):
            return None
        return _Unwrapped(body, eqn.invars, f"jit({eqn.params['name']})")

    def _is_trivial(self, body: Jaxpr) -> bool:
        """Whether a body that is called from several places may be put into each of them. Without this, many programs
        would be harder to read for `jnp.where`s and `clip`s."""
        return subjaxprs.count(body, self._sizes) <= _ALWAYS_INLINED

    def _by_rule(self, eqn: JaxprEqn, rule: Callable[..., Any]) -> _Unwrapped:
        try:
            body = rules.trace_rule(eqn, rule)
        except Exception as error:
            error.add_note(f"This was raised by the finalisation rule of `{eqn.primitive}`.")
            raise
        wanted, got = ([avals.short(v.aval) for v in values] for values in (eqn.outvars, body.jaxpr.outvars))
        if wanted != got:
            raise TypeError(f"the finalisation of `{eqn.primitive}` returns {got} where the primitive returns {wanted}")
        self._uses.setdefault(eqn.primitive, set()).update(
            inner.primitive for inner in subjaxprs.equations(body.jaxpr) if inner.primitive in _FINALISATIONS
        )
        if (others := self._way_back(eqn.primitive)) is not None:
            way = f", by way of {', '.join(f'`{each}`' for each in others)}" if others else ""
            raise TypeError(f"the finalisation of `{eqn.primitive}` uses `{eqn.primitive}` itself{way}")
        return _Unwrapped(body, eqn.invars)

    def _way_back(self, primitive: Primitive) -> list[Primitive] | None:
        """The primitives in between if a primitive's rule uses that primitive, as far as the rules have been asked:
        to replace it would never end. None if it does not."""
        came_from: dict[Primitive, Primitive] = {}
        ahead = [primitive]
        while ahead:
            user = ahead.pop()
            for used in self._uses.get(user, ()):
                if used is primitive:
                    way = [user]
                    while way[-1] is not primitive:
                        way.append(came_from[way[-1]])
                    return way[-2::-1]
                if used not in came_from:
                    came_from[used] = user
                    ahead.append(used)
        return None

    def _by_impl(self, eqn: JaxprEqn, known: dict[Var, Any]) -> _Unwrapped | None:
        """What the primitive's implementation does, unless that needs the value of something not known yet."""
        try:
            return _Unwrapped(rules.trace_rule(eqn, eqn.primitive.impl, known), eqn.invars)
        except jax.errors.ConcretizationTypeError:
            return None


class _Inner(subjaxprs.Once):
    """Finalises the jaxprs of equations of `HOLD_CONSTS`, which may have more consts then."""

    def __init__(self, finaliser: _Finaliser) -> None:
        super().__init__()
        self._finaliser = finaliser

    def changed(self, jaxpr: Any) -> Any:
        """The jaxpr without wrappers, with the consts of what was inlined."""
        return self._finaliser.finalised(jaxpr)


def _with_handed_on_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with its inputs as outputs, where these are what loops and branches hand on of them."""
    jaxpr = closed.jaxpr
    inputs = {*jaxpr.invars}
    names: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        if not subjaxprs.is_flat(eqn.primitive):
            names.update(subjaxprs.handed_on(eqn))
    origins = [subjaxprs.renamed(v, names) for v in jaxpr.outvars]
    outvars = [
        origin if isinstance(origin, Var) and origin in inputs else v
        for v, origin in zip(jaxpr.outvars, origins, strict=True)
    ]
    if all(map(operator.is_, outvars, jaxpr.outvars)):
        return closed
    return rewriting.close(rewriting.with_equations(jaxpr, jaxpr.eqns, outvars=outvars), closed.consts)


def _inlined(
    eqn: JaxprEqn, unwrapped: _Unwrapped, constants: list[tuple[Var, Any]] | None
) -> tuple[list[JaxprEqn], list[Atom]]:
    """The equations and results of what an equation stands for; the consts among these are added to `constants`."""
    body, operands = unwrapped.body, list(unwrapped.operands)
    jaxpr = jaxprs.inner(body)
    if jaxpr.constvars and constants is not None:
        lifted = [(Var(v.aval), value) for v, value in zip(jaxpr.constvars, body.consts, strict=True)]
        constants += lifted
        operands = [*(var for var, _ in lifted), *operands]
    return subjaxprs.inline(eqn, jaxpr, operands, unwrapped.name)


def _count_call_sites(jaxpr: Jaxpr, sites: Counter[int]) -> None:
    """Add to `sites` how many equations will call each jaxpr, by its identity, once the wrappers are gone."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _WRAPPERS and (unwrapped := _WRAPPERS[eqn.primitive.name](eqn)) is not None:
            _count_call_sites(jaxprs.inner(unwrapped.body), sites)
            continue
        if eqn.primitive.name == "jit" and jaxprs.inlined_late(eqn):
            _count_call_sites(jaxprs.inner(eqn.params["jaxpr"]), sites)
            continue
        for sub in jaxprs.subjaxprs(eqn):
            sites[id(sub)] += 1
            if sites[id(sub)] == 1:
                _count_call_sites(sub, sites)


# What each wrapper stands for: the jaxpr that JAX lowers in its place, and the operands that it lowers it with.


def _call(param: str) -> Callable[[JaxprEqn], _Unwrapped | None]:
    return lambda eqn: _Unwrapped(eqn.params[param], eqn.invars)


def _remat(eqn: JaxprEqn) -> _Unwrapped | None:
    prevent_cse = eqn.params["prevent_cse"]
    barrier = eqn.params["differentiated"] and (any(prevent_cse) if isinstance(prevent_cse, tuple) else prevent_cse)
    return None if barrier else _Unwrapped(eqn.params["jaxpr"], eqn.invars, "checkpoint")


def _linear_solve(eqn: JaxprEqn) -> _Unwrapped | None:
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    consts = eqn.invars[before : before + lengths.solve]
    return _Unwrapped(eqn.params["jaxprs"].solve, [*consts, *eqn.invars[sum(lengths) :]])


def _refuse_hidden_effects(eqn: JaxprEqn, unwrapped: _Unwrapped) -> None:
    """Raises `LeftToJit` where a `HiPrim` stands for something with an effect that its equation does not have: a print,
    or a write to a `Ref` that it has captured. What is dead to JAX depends on what equations say."""
    if not unwrapped.body.jaxpr.effects <= eqn.effects:
        raise LeftToJit(
            f"{type(eqn.params['_prim']).__name__}, of jax.experimental.hijax, stands for something with an effect, "
            "and does not say so: whether that happens is up to jax.jit"
        )


def _expanded(eqn: JaxprEqn) -> _Unwrapped | None:
    body = rules.expanded(eqn)
    return None if body is None else _Unwrapped(body, eqn.invars)


_WRAPPERS: dict[str, Callable[[JaxprEqn], _Unwrapped | None]] = {
    "call_hi_primitive": _expanded,
    "closed_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_linear_solve": _linear_solve,
    "custom_vjp_call": _call("call_jaxpr"),
    "custom_vmap_call": _call("call"),
    "eval_jaxpr": _call("call_jaxpr"),
    "linear_call": _call("callee"),
    "remat2": _remat,
    "remat_opt": _call("fwd_jaxpr"),
}

# What JAX emits as calls of a function.
_CALLS = frozenset({"closed_call", "eval_jaxpr", "jit"})

# Hand on their operand: a name for `checkpoint_name`'s policies, and a mark for autodiff.
_HAND_ON = frozenset({"name", "stop_gradient"})

# Equinox's own way of not letting XLA look across a call, and of telling what is done to a program. A program that is
# about to be compiled keeps them, as it would under `jax.jit`: without the first, other bits may come out.
_COMPILED_APART = frozenset({"announce_jaxpr", "noinline"})

# Equinox's primitives. Each is bound to what it means once nothing is batched or differentiated any more.
_MEANING_IS_IMPL = frozenset(
    """announce_jaxpr maybe_set nonbatchable nondifferentiable_backward noinline nontraceable select_if_vmap unvmap_all
    unvmap_any unvmap_max vprim""".split()
)
