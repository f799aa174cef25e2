"""A compiled function: the call path behind `wrapper`, top to bottom.

A call flattens its arguments once, looks up the plan for them, asks `ownership` which of the leaves that the plan
would overwrite are still alive, gives the program private copies of those, and runs it. From where that has gone well
with nothing to copy, the next call goes straight to `jax.jit` if it can (`direct`).

    layout      the tree of the arguments and the types of their leaves
    signature   a layout with static values, sharing of arrays, shapes, dtypes and meshes: one staged program
    plan        a signature with a choice of what may be donated: one compiled executable

The fast path does not check the shapes and dtypes of all leaves: `jax.jit`, which runs the plan, does that anyway, in
C++. Where it would trace again, because the plan is not for these leaves, `Retrace` is raised before anything ran, and
the call takes the slow path (`Function.call`), which finds or makes the right plan. A call under a transformation or in
a debugging mode takes it, too, and there a compiled function is `jax.jit(fun)`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves

from pytc import ownership
from pytc import passes as _passes
from pytc.arguments.leaves import Parameters, PythonScalars, StaticArgument, kind_of
from pytc.attributes import plain
from pytc.calls import asking, decide
from pytc.calls.cache import Signature
from pytc.calls.deleted import check_not_deleted
from pytc.calls.direct import Ways
from pytc.calls.hiding import JitHiding
from pytc.calls.known import known_of
from pytc.calls.layout import Describe, describe, describe_placed
from pytc.calls.lookup import Lookup, Stopped
from pytc.calls.planner import Planner
from pytc.calls.tracebacks import frames_to_the_caller
from pytc.calls.wrapper import wrap
from pytc.donation import Donate, read_policy
from pytc.effort import Effort
from pytc.emit import EmittedWhole, Retrace
from pytc.errors import LeftToJit
from pytc.jax_compat import api
from pytc.jax_compat.keys import bits_of
from pytc.jax_compat.running import cache_size, config, is_of_no_tracing
from pytc.jax_compat.warned import unusable_donations_ignored
from pytc.move import Moved, moved_leaves, unmoved, use_up
from pytc.stage import Stageable

_DEPRECATED = (
    "backend and device argument on jit is deprecated, and on pytc.compile: put the arguments there with jax.device_put"
)
"""It begins as JAX's warning does, by which programs filter it."""


class Function:
    """A function being compiled: its options, its caches, and what becomes of a call that does not go straight to
    `jax.jit` (`direct`)."""

    def __init__(
        self,
        fun: Callable[..., Any],
        donate: Donate,
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Iterable[str] | None,
        python_scalars: PythonScalars,
        share: bool,
        pipeline: Sequence[_passes.Pass],
        effort: Effort,
        jit_options: dict[str, Any],
    ) -> None:
        self._made_of: tuple[Any, ...] = (
            fun, donate, static_argnums, static_argnames, python_scalars, share, pipeline, effort, jit_options
        )  # fmt: skip
        options = {name: value for name, value in jit_options.items() if value is not api.UNSPECIFIED}
        promised = {name: options.pop(name, None) for name in ("donate_argnums", "donate_argnames")}
        self.parameters = Parameters(fun, static_argnums, static_argnames)
        policy = read_policy(donate, self.parameters, **promised)
        if not isinstance(pipeline, Sequence) or not all(map(callable, pipeline)):
            raise TypeError(f"passes is {pipeline!r}; it can be a list or tuple of functions from Program to Program")
        self.stageable: Stageable = Stageable(
            fun,
            self.parameters,
            python_scalars,
            options.pop("in_shardings", None),
            options.pop("out_shardings", None),
        )
        if not isinstance(share, bool):
            raise TypeError(f"share is {share!r}; it can be True or False")
        self._share = share
        if api.says_where(options):
            warnings.warn(_DEPRECATED, DeprecationWarning, stacklevel=frames_to_the_caller())
            pipeline = [each for each in pipeline if each is not _passes.forward]  # what is returned is put there, too
        if options.get("keep_unused"):  # with which `jax.jit` leaves dead code to XLA
            pipeline = [each for each in pipeline if each is not _passes.prune]
        self.planner = Planner(policy, tuple(pipeline), options, effort)
        self.directly = Ways(share, python_scalars)
        self.kept_alive: list[Any] = []
        """What the latest call has found its way by: the tree of its arguments, of which a custom node's auxiliary data
        may have been made anew by its `tree_flatten`; the program; what told that this is the one. Let go of as the
        next call begins, since code may run when it dies: that must not be between the proof and the store. (Caches
        have most of it, but who is asked as a call is looked up may clear them, or make another call.)"""
        has_static = bool(self.parameters.static_argnums or self.parameters.static_argnames)
        self.wrap_static = self.parameters.wrap_static if has_static else None
        static = {"static_argnums": self.parameters.static_argnums, "static_argnames": self.parameters.static_argnames}
        shardings = {
            name: wanted
            for name in ("in_shardings", "out_shardings")
            if (wanted := getattr(self.stageable, name)) is not None
        }
        self.has_shardings = bool(shardings)
        self.jit_options = {**static, **shardings, **options}
        self.jitted: Any = api.jit(plain(fun), **self.jit_options)
        """What stands in for the compiled function under a transformation, and ahead of time."""
        self.hiding = JitHiding(self.stageable, options)
        """The same for arguments with static leaves that no option names."""

    @functools.cached_property
    def share(self) -> bool:
        """Whether an array that is passed twice is passed once. Not where other processes run the same program: theirs
        may pass two that are equal, and the executables must not differ. (How many there are is known from the first
        call on, which has JAX start.)"""
        return self._share and jax.process_count() == 1

    @functools.cached_property
    def lookup(self) -> Lookup:
        """Which staged program serves a call."""
        known = known_of(*self._made_of, type(self))
        return Lookup(self.stageable, self.planner, self.share, self._describe(), known)

    def signatures(self) -> list[Signature]:
        """All that are known. Before the first call none are, and JAX need not start to tell."""
        return [*self.lookup] if "lookup" in vars(self) else []

    def _describe(self) -> Describe:
        """What tells leaves apart in the cache. Where `in_shardings` places them, it does not matter where they are."""
        return describe_placed if self.stageable.in_shardings is None else describe

    def __reduce__(self) -> tuple[type[Function], tuple[Any, ...]]:
        """A copy made by `cloudpickle`, in another process as a rule, begins with nothing compiled."""
        return type(self), self._made_of

    # -- a call, the fast way ------------------------------------------------------------------------------------

    def run(
        self,
        signature: Signature,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        landed: list[Any],
    ) -> Any:
        """Run the plan for this call site and return the result; raises `Retrace` if it is not for these leaves.

        `landed` has [emitted, handed back] when the program is about to run, and [emitted, handed back, results] once
        it has taken over its arguments: from then on the call must return a result, whatever is raised. (What it hands
        back it does not take over: whoever has got hold of `landed` finds nothing deleted.) PRNG keys in `leaves` are
        replaced by their bits, to which nothing but the keys themselves must refer for them to be dead.
        """
        keys = signature.keys
        if keys and [leaves[i].dtype for i in keys] != signature.key_dtypes:
            raise Retrace
        site = signature.sites.get((id(frame.f_code), frame.f_lasti))
        is_due = site is None or site.to_be_looked_at()
        if site is None:
            self.directly.make_room()
            site = decide.first_look(self.planner, signature, frame, args, kwargs, leaves)
        elif is_due:
            decide.look_again(self.planner, signature, site, frame, args, kwargs, leaves)
        could_not_go_straight = self.directly.learn(signature, site, frame, args, kwargs) or is_due
        for i in keys:
            leaves[i] = bits_of(leaves[i])
        # Two keys may hold the same bits; then there are more references to these than from one key and `leaves`.
        may_share = (
            not self.share or signature.passes_one_twice or (keys and any(sys.getrefcount(leaves[i]) > 3 for i in keys))
        )
        given: Sequence[Any]
        try:
            plan = site.plan
            if plan.proven:
                plan, given = decide.prove(self.planner, signature, site, frame, args, kwargs, leaves)
            else:
                given = leaves
            emitted = plan.emitted
            copied = [] if given is leaves else [i for i in emitted.program.donated if given[i] is not leaves[i]]
            if may_share:
                given = decide.apart(given, emitted.program)
            warm = not emitted.is_new
            landed[:] = emitted, emitted.hand_back(leaves)
            collections = ownership.collections_so_far()
            emitted.call(given, landed)
            site.count(emitted.program, copied)
            if warm:
                in_one_go = not (plan.outcome.calls_python or ownership.collected_since(collections))
                emitted.remember(landed[2], in_one_go)
        except Retrace:
            self._start_over(signature, args, kwargs, leaves, landed)
            raise
        except (RuntimeError, ValueError) as error:
            if len(landed) < 3:
                if len(landed) == 2 and warm and is_of_no_tracing(error):
                    self._start_over(signature, args, kwargs, leaves, landed)
                    raise Retrace from error
                check_not_deleted(error, signature.program.leaves, leaves)
                self._say_as_jit(error, args, kwargs)
                if self.share and _shares_unseen(signature, leaves):
                    self._start_over(signature, args, kwargs, leaves, landed)
                    raise Retrace from error
            raise
        finally:
            site.go_back()
        if warm and given is leaves and type(emitted) is EmittedWhole:
            self.directly.went_well(site, could_not_go_straight)
        return emitted.result(landed[2], landed[1])

    def _say_as_jit(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise what `jax.jit(fun)` raises if `error` is of its `out_shardings`: it names the outputs by their paths in
        the result, of which a program has only their numbers."""
        if self.stageable.out_shardings is not None and isinstance(error, ValueError):
            try:
                self.lower(*args, **kwargs)
            except ValueError as by_jit:
                raise by_jit from None

    def _start_over(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        landed: list[Any],
    ) -> None:
        """Undo what `run` has done to `leaves` and `landed`, so that another program can be tried."""
        landed.clear()  # now: it may hold the last reference to the program, which must not die behind the next proof
        if signature.keys:
            leaves[:] = tree_leaves(self.parameters.wrap_static(args, kwargs))

    # -- a call, the slow way round ------------------------------------------------------------------------------

    def call(
        self,
        frame: types.FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        tree: PyTreeDef,
        landed: list[Any],
    ) -> Any:
        """A call that the fast path does not serve: the first of its kind, one with `Moved` arguments, or one that is
        left to `jax.jit` (under a transformation, in a debugging mode)."""
        if config.jax_disable_jit:
            return self.without_jit(*unmoved(args, kwargs))
        if any(type(leaf) is Moved for leaf in leaves):
            return self.call_moved(args, kwargs)
        signatures = self.lookup.signatures(args, kwargs, leaves, tree)
        if signatures is None:
            return self.as_jit(args, kwargs, leaves)
        try:
            found = self.lookup.candidates(
                signatures,
                lambda: (args, kwargs, leaves, tree),
                lambda: asking.staying(frame, args, kwargs, leaves),
            )
            with contextlib.closing(found) as candidates:
                for signature in candidates:
                    try:
                        result = self.run(signature, frame, args, kwargs, leaves, landed)
                    except Retrace:
                        continue
                    signatures.add(signature)  # only now: a program that failed to compile is forgotten
                    self.kept_alive += [signature]  # only `signatures` has it, and may have been cleared meanwhile
                    return result
        except LeftToJit:
            pass
        except Stopped as stopped:
            raise stopped.args[0] from None
        # The function reads what only `jax.jit` can pass to it. Or JAX would trace it again for the very arguments that
        # it was staged for: such as it refuses, like an array that was put from a mesh of explicit axes onto one of its
        # devices. `jax.jit` says what is wrong.
        return self.as_jit(args, kwargs, leaves)

    def without_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call with `jax_disable_jit`."""
        return self.stageable.fun(*args, **kwargs)

    def call_moved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with arguments that the caller moved: exactly those are taken over, with no proof."""
        moved = moved_leaves(*self.parameters.wrap_static(args, kwargs))
        args, kwargs = unmoved(args, kwargs)
        leaves, tree = tree_flatten(self.parameters.wrap_static(args, kwargs))
        signatures = self.lookup.signatures(args, kwargs, leaves, tree)
        if signatures is None:
            return self.as_jit(args, kwargs, leaves)
        try:
            found = self.lookup.candidates(signatures, lambda: (args, kwargs, leaves, tree))
            with contextlib.closing(found) as candidates:
                for signature in candidates:
                    try:
                        emitted = self.planner.plan_moved(signature, leaves, moved).emitted
                        results: list[Any] = []
                        given = [bits_of(leaf) for leaf in leaves]
                        emitted.call(decide.apart(given, emitted.program), results)
                        result = emitted.result(results[0], emitted.hand_back(given))
                    except Retrace:
                        continue
                    except (RuntimeError, ValueError) as error:
                        check_not_deleted(error, signature.program.leaves, leaves)
                        self._say_as_jit(error, args, kwargs)
                        raise
                    signatures.add(signature)
                    use_up([leaves[i] for i in moved], result)
                    return result
        except LeftToJit:
            pass
        except Stopped as stopped:
            raise stopped.args[0] from None
        result = self.as_jit(args, kwargs, leaves)  # as in `call`
        use_up([leaves[i] for i in moved], result)
        return result

    def as_jit(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> Any:
        """What `jax.jit(fun)` returns; where leaves are static, as if they were static arguments."""
        if self.has_shardings and not any(
            kind_of(leaf, self.stageable.python_scalars) == "static" and not isinstance(leaf, StaticArgument)
            for leaf in leaves
        ):
            return self.jitted(*args, **kwargs)
        return self.hiding.call(args, kwargs)

    # -- ahead of time -------------------------------------------------------------------------------------------

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """`jax.jit(fun).lower(...)`: JAX's own stage.

        There is no call to look at, so `"auto"` donates nothing. Where the caller promises (`"all"`, `"warn"`),
        arguments that the program can reuse are donated whole, as `donate_argnums` does. Where leaves are static,
        what it compiles to is called with all arguments of the function.
        """
        with unusable_donations_ignored():
            lowered: jax.stages.Lowered = self._ahead(*unmoved(args, kwargs), lambda jitted: jitted.lower)
        return lowered

    def trace(self, /, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """`jax.jit(fun).trace(...)`: JAX's own stage, with donation as in `lower`."""
        traced: jax.stages.Traced = self._ahead(*unmoved(args, kwargs), lambda jitted: jitted.trace)
        return traced

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """`jax.eval_shape` of the function."""
        return self._ahead(*unmoved(args, kwargs), lambda jitted: jitted.eval_shape)

    def cache_size(self) -> int:
        """How many signatures it has been compiled for: what users' tests ask `jax.jit(fun)._cache_size()`."""
        by_jax = sum(cache_size(jitted) for jitted in (self.jitted, *self.hiding.jitted.values()))
        return len(self.signatures()) + by_jax

    def clear_cache(self) -> None:
        """Forget every compiled program and call site."""
        if "lookup" in vars(self):
            self.lookup.layouts.clear()
            self.lookup.known.clear()
        else:
            known_of(*self._made_of, type(self)).clear()
        self.directly.clear()
        self.kept_alive = []
        for jitted in (self.jitted, self.stageable.jitted, *self.hiding.jitted.values()):
            jitted.clear_cache()

    def explain(self, /, *args: Any, **kwargs: Any) -> Any:
        """`pytc.explain` of the function: for such arguments or, with none, of its calls so far."""
        from pytc.explain import explain  # explains compiled functions, so it is loaded after this file

        return explain(wrap(self), *args, **kwargs)

    def _ahead(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: Callable[[Any], Any]) -> Any:
        """What a method of the jitted function returns for these arguments."""
        named = self.stageable.leaves(args, kwargs, share=False)
        if any(leaf.is_static and not isinstance(leaf.value, StaticArgument) for leaf in named):
            return self.hiding.ahead(args, kwargs, named, method)
        promised = {leaf.parameter for leaf in named if self.planner.promised(leaf)}
        if not promised:
            return method(self.jitted)(*args, **kwargs)
        try:
            program = self.planner.promised_program(self.stageable.stage(args, kwargs, share=False))
        except LeftToJit:  # as is a call of it, which donates nothing
            return method(self.jitted)(*args, **kwargs)
        taken = {program.leaves[i].parameter for i in program.donated} & promised
        numbers = tuple(i for i in range(len(args)) if self.parameters.positional_name(i) in taken)
        donating = api.jit(
            plain(self.stageable.fun),
            **self.jit_options,
            donate_argnums=numbers,
            donate_argnames=tuple(taken & set(kwargs)),
        )
        return method(donating)(*args, **kwargs)


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
