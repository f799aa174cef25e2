"""A compiled function: the call path from `wrapper` on, top to bottom.

A call flattens its arguments once, looks up the plan for them, asks `ownership` which of the leaves that the plan
would overwrite are still alive, gives the program private copies of those, and runs it. From where that has gone well
with nothing to copy, the next call goes straight to `jax.jit` if it can (`direct`).

    seen from here    wrapper.compiled   -> Direct.call
    known leaves      wrapper.compiled   -> Lookup.find -> Function.run
    anything else     wrapper.compiled   -> Function.call -> Lookup.candidates -> Function.run
    in run            decide.first_look, look_again   which plan this place in the caller's code uses (`planner`)
                      decide.prove                    what of it is dead: `ownership.held`; copies of the rest
                      Emitted.call, Emitted.result    `jax.jit` runs it; the result is put together

    layout      the tree of the arguments and the types of their leaves
    signature   a layout with static values, sharing of arrays, shapes, dtypes and meshes: one staged program
    plan        a signature with a choice of what may be donated: one compiled executable

The fast path does not check the shapes and dtypes of all leaves: `jax.jit`, which runs the plan, does that anyway, in
C++. Where it would trace again, because the plan is not for these leaves, `Retrace` is raised before anything ran, and
the call takes the slow path (`Function.call`), which finds or makes the right plan. A call under a transformation or in
a debugging mode takes it, too, and there a compiled function is `jax.jit(fun)`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves

from pytc import ownership
from pytc.arguments.leaves import Parameters
from pytc.calls import asking, decide
from pytc.calls.cache import Signature, Signatures
from pytc.calls.deleted import check_not_deleted
from pytc.calls.instead import Instead, JitInstead
from pytc.calls.instead_mapped import PmapInstead
from pytc.calls.known import Known, known_of
from pytc.calls.layout import describe, describe_placed
from pytc.calls.lookup import Lookup, Stopped
from pytc.calls.numpy_data import NumpyData, put_replaced_on_device
from pytc.calls.planner import Planner
from pytc.calls.ways import Ways
from pytc.calls.wrapper import wrap
from pytc.donation import read_policy
from pytc.emit import EmittedWhole, Retrace, emit_pmap
from pytc.errors import LeftToJit
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.running import config, is_of_no_tracing
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.move import Moved, moved_leaves, unmoved, use_up
from pytc.options import Options
from pytc.ownership import Call
from pytc.stage import Stageable
from pytc.stage_mapped import MappedStageable


class Function:
    """A function being compiled: its options, its caches, and what becomes of a call that does not go straight to
    `jax.jit` (`direct`)."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        self._options = options
        jit_options = dict(options.jit)
        promised = {name: jit_options.pop(name, None) for name in ("donate_argnums", "donate_argnames")}
        shardings = {name: jit_options.pop(name, None) for name in ("in_shardings", "out_shardings")}
        self.parameters = Parameters(fun, options.static_argnums, options.static_argnames)
        policy = read_policy(options.donate, self.parameters, **promised)
        self.stageable: Stageable
        self.instead: Instead
        if options.mapped is None:
            self.stageable = Stageable(fun, self.parameters, options.python_scalars, **shardings)
            self.planner = Planner(policy, options.pipeline, jit_options, options.effort)
            self.instead = JitInstead(self.stageable, self.planner)
        else:
            self.stageable = MappedStageable(fun, self.parameters, options.python_scalars, mapped=options.mapped)
            self.planner = Planner(policy, options.pipeline, jit_options, options.effort, emit_pmap)
            self.instead = PmapInstead(self.stageable, self.planner)
        self.directly = Ways(options.share, options.python_scalars)
        self.kept_alive: list[Any] = []
        """What the latest call has used: the tree of its arguments (a custom node's `tree_flatten` may make its
        auxiliary data anew each time), its signature, its direct way. Kept until the next call begins, since code may
        run when it dies (a `__del__`), and none may between the proof and the store of the result. (Caches have most of
        it; but what runs while a call is looked up may clear them, or make another call.)"""
        has_static = bool(self.parameters.static_argnums or self.parameters.static_argnames)
        self.wrap_static = self.parameters.wrap_static if has_static else None

    @functools.cached_property
    def share(self) -> bool:
        """Whether an array that is passed twice is passed once. Not where other processes run the same program: theirs
        may pass two that are equal, and the executables must not differ. (How many there are is known from the first
        call on, which has JAX start.)"""
        return self._options.share and jax.process_count() == 1

    @functools.cached_property
    def lookup(self) -> Lookup:
        """Which staged program serves a call."""
        stageable = self.stageable
        # Where options say where arguments go, it does not matter where they are.
        places_matter = stageable.in_shardings is None and not isinstance(stageable, MappedStageable)
        tell_apart = describe_placed if places_matter else describe
        are_placed = not places_matter or self._options.jit.keys() & {"device", "backend"}
        takes_none = self.planner.policy.modes == {"none"}
        which: NumpyData = "none" if are_placed or takes_none else "all" if jax.process_count() > 1 else "replaced"
        return Lookup(stageable, self.planner, self.share, tell_apart, self._known(), which)

    def _known(self) -> Known:
        """What has been staged and compiled of the function with these options."""
        return known_of(self.stageable.fun, self._options)

    def signatures(self) -> list[Signature]:
        """All that are known. Before the first call none are, and JAX need not start to tell."""
        return [*self.lookup] if "lookup" in vars(self) else []

    def __reduce__(self) -> tuple[type[Function], tuple[Any, ...]]:
        """A copy made by `cloudpickle`, in another process as a rule, begins with nothing compiled."""
        return type(self), (self.stageable.fun, self._options)

    # -- a call, the fast way ------------------------------------------------------------------------------------

    def run(self, signature: Signature, call: Call, landed: list[Any]) -> Any:
        """Run the plan for this call site and return the result; raises `Retrace` if it is not for these leaves.

        `landed` has [emitted, handed back] when the program is about to run, and [emitted, handed back, results] once
        it has taken over its arguments: from then on the call must return a result, whatever is raised. (What it hands
        back it does not take over: whoever has got hold of `landed` finds nothing deleted.) PRNG keys among the leaves
        are replaced by their bits, to which nothing but the keys themselves must refer for them to be dead.
        """
        keys = signature.keys
        if keys and [call.leaves[i].dtype for i in keys] != signature.key_dtypes:
            raise Retrace
        site = signature.site(call.frame)
        is_due = site is None or site.to_be_looked_at()
        if site is None:
            self.directly.make_room(signature)
            site = decide.first_look(self.planner, signature, call)
        elif is_due:
            decide.look_again(self.planner, signature, site, call)
        could_not_go_straight = self.directly.learn(signature, site, call) or is_due
        for i in keys:
            call.leaves[i] = bits_of(call.leaves[i])
        # Two keys may hold the same bits; then there are more references to these than from one key and `leaves`.
        may_share = (
            not self.share
            or signature.passes_one_twice
            or (keys and any(sys.getrefcount(call.leaves[i]) > 3 for i in keys))
        )
        given: Sequence[Any]
        try:
            plan = site.plan
            if plan.to_prove:
                plan, given = decide.prove(self.planner, signature, site, call)
            else:
                given = call.leaves
            emitted, leaves = plan.emitted, call.leaves
            copied = [] if given is leaves else [i for i in emitted.program.donated if given[i] is not leaves[i]]
            if may_share:
                given = decide.apart(given, emitted.program)
            warm = not emitted.is_new
            landed[:] = emitted, emitted.hand_back(leaves)
            collections = ownership.collections_so_far()
            emitted.call(given, landed)
            site.count(plan, copied)
            if warm:
                in_one_go = not (plan.outcome.calls_python or ownership.collected_since(collections))
                emitted.remember(landed[2], in_one_go)
        except Retrace:
            self._start_over(signature, call, landed)
            raise
        except (RuntimeError, ValueError) as error:
            if len(landed) < 3:
                may_be_traced_anew = len(landed) == 2 and warm
                self._raise_instead(error, may_be_traced_anew, signature, call, landed)
            raise
        finally:
            site.go_back()
        if warm and given is leaves and type(emitted) is EmittedWhole:
            self.directly.went_well(site, could_not_go_straight)
        return emitted.result(landed[2], landed[1])

    def run_moved(self, moved: frozenset[int], signature: Signature, call: Call, landed: list[Any]) -> Any:
        """As `run`, where the caller has moved these leaves: exactly those are taken over, with no proof."""
        try:
            emitted = self.planner.emitted_moved(signature, call.leaves, moved)
            given = [bits_of(leaf) for leaf in call.leaves]
            results: list[Any] = []
            emitted.call(decide.apart(given, emitted.program), results)
            return emitted.result(results[0], emitted.hand_back(given))
        except (RuntimeError, ValueError) as error:
            check_not_deleted(error, signature.program.leaves, call.leaves)
            self._say_as_jit(error, call)
            raise

    def _raise_instead(
        self, error: Exception, may_be_traced_anew: bool, signature: Signature, call: Call, landed: list[Any]
    ) -> None:
        """Raise what is to be raised in place of an error of a call that has taken over nothing: what `jax.jit(fun)`
        says, and `Retrace` where another program may serve."""
        other_may_serve = may_be_traced_anew and is_of_no_tracing(error)
        if not other_may_serve:
            check_not_deleted(error, signature.program.leaves, call.leaves)
            self._say_as_jit(error, call)
            other_may_serve = self.share and _shares_unseen(signature, call.leaves)
        if other_may_serve:
            self._start_over(signature, call, landed)
            raise Retrace from error

    def _say_as_jit(self, error: Exception, call: Call) -> None:
        """Raise what `jax.jit(fun)` raises if `error` is of its `out_shardings`: it names the outputs by their paths in
        the result, of which a program has only their numbers."""
        if self.stageable.out_shardings is not None and isinstance(error, ValueError):
            try:
                self.lower(*call.args, **call.kwargs)
            except ValueError as by_jit:
                raise by_jit from None

    def _start_over(self, signature: Signature, call: Call, landed: list[Any]) -> None:
        """Undo what `run` has done to the leaves and `landed`, so that another program can be tried."""
        landed.clear()  # now: it may hold the last reference to the program, which must not die after the next proof
        if signature.keys:
            anew = tree_leaves(self.parameters.wrap_static(call.args, call.kwargs))
            for i in signature.keys:
                call.leaves[i] = anew[i]

    # -- a call, the slow way round ------------------------------------------------------------------------------

    def call(self, call: Call, tree: PyTreeDef, landed: list[Any]) -> Any:
        """A call that the fast path does not serve: the first of its kind, one with `Moved` arguments, or one that is
        left to `jax.jit` (under a transformation, in a debugging mode)."""
        if config.jax_disable_jit:
            return self.instead.without_jit(*unmoved(call.args, call.kwargs))
        if any(type(leaf) is Moved for leaf in call.leaves):
            return self.call_moved(call, landed)
        signatures = self.lookup.signatures(call, tree)
        if signatures is None:
            return self.instead.call(call.args, call.kwargs, call.leaves)
        if self.lookup.numpy_data == "replaced" and signatures.note_call() and put_replaced_on_device(call):
            signatures = self.lookup.signatures(call, tree) or signatures
        return self._by_program(signatures, self.run, lambda: asking.staying(call), call, tree, landed)

    def call_moved(self, call: Call, landed: list[Any]) -> Any:
        """A call with arguments that the caller moved: exactly those are taken over, with no proof."""
        moved = moved_leaves(*self.parameters.wrap_static(call.args, call.kwargs))
        args, kwargs = unmoved(call.args, call.kwargs)
        leaves, tree = tree_flatten(self.parameters.wrap_static(args, kwargs))
        call = Call(call.frame, args, kwargs, leaves)
        signatures = self.lookup.signatures(call, tree)
        if signatures is None:
            return self.instead.call(args, kwargs, leaves)
        run = functools.partial(self.run_moved, moved)
        result = self._by_program(signatures, run, lambda: None, call, tree, landed)
        use_up([leaves[i] for i in moved], result)
        return result

    def _by_program(
        self,
        signatures: Signatures,
        run: Callable[..., Any],
        staying: Callable[[], Set[int] | None],
        call: Call,
        tree: PyTreeDef,
        landed: list[Any],
    ) -> Any:
        """What `run` returns for the first program for such leaves by which it does not raise `Retrace`; where there is
        none, what JAX returns. `staying` is what `Lookup.candidates` asks."""
        try:
            found = self.lookup.candidates(signatures, lambda: (call, tree), staying)
            try:
                for signature in found:
                    try:
                        result = run(signature, call, landed)
                    except Retrace:
                        continue
                    signatures.add(signature)  # only now: a program that failed to compile is forgotten
                    self.kept_alive += [signature]  # only `signatures` has it, and may have been cleared meanwhile
                    return result
            finally:
                found.close()  # by a call that nothing can come before: it lets go of a lock
        except LeftToJit:
            pass
        except Stopped as stopped:
            raise stopped.args[0] from None
        # The function reads what only `jax.jit` can pass to it. Or JAX would trace it again for the very arguments that
        # it was staged for: such as it refuses, like an array that was put from a mesh of explicit axes onto one of its
        # devices. `jax.jit` says what is wrong.
        return self.instead.call(call.args, call.kwargs, call.leaves)

    # -- ahead of time -------------------------------------------------------------------------------------------

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """`jax.jit(fun).lower(...)`: JAX's own stage.

        There is no call to look at, so `"auto"` donates nothing. Where the caller promises (`"all"`, `"warn"`),
        arguments that the program can reuse are donated whole, as `donate_argnums` does. Where leaves are static,
        what it compiles to is called with all arguments of the function.
        """
        lower = functools.partial(self.instead.ahead, *unmoved(args, kwargs), lambda jitted: jitted.lower)
        lowered: jax.stages.Lowered = unusable_donations_ignored(lower)
        return lowered

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """`jax.jit(fun).trace(...)`: JAX's own stage, with donation as in `lower`."""
        traced: jax.stages.Traced = self.instead.ahead(*unmoved(args, kwargs), lambda jitted: jitted.trace)
        return traced

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """`jax.eval_shape` of the function."""
        return self.instead.ahead(*unmoved(args, kwargs), lambda jitted: jitted.eval_shape)

    def cache_size(self) -> int:
        """How many signatures it has been compiled for: what users' tests ask `jax.jit(fun)._cache_size()`."""
        return len(self.signatures()) + self.instead.cache_size()

    def clear_cache(self) -> None:
        """Forget every compiled program and call site."""
        if "lookup" in vars(self):
            self.lookup.layouts.clear()
            self.lookup.known.clear()
        else:
            self._known().clear()
        self.directly.clear()
        self.kept_alive = []
        self.stageable.jitted.clear_cache()
        self.instead.clear_cache()

    def explain(self, /, *args: Any, **kwargs: Any) -> Any:
        """`pytc.explain` of the function: for such arguments or, with none, of its calls so far."""
        from pytc.explain import explain  # explains compiled functions, so it is loaded after this file

        return explain(wrap(self), *args, **kwargs)


def _shares_unseen(signature: Signature, leaves: Sequence[Any]) -> bool:
    """Whether an array is at two leaves that the program takes for different ones.

    `Lookup.find` takes an array for unshared if its reference count is no more than `UNSHARED`. That is wrong of an
    array that a custom node's `tree_flatten` has made for this call and returned twice: no container refers to it, so
    its count is as low as that of an array in a container that is passed once.
    """
    if signature.passes_one_twice or any(leaf.same_as is not None for leaf in signature.program.leaves):
        return False
    arrays = [id(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]
    return len(set(arrays)) < len(arrays)
