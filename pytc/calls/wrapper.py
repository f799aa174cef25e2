"""The plain function that a user calls, which stands for the one that was compiled.

It tries what is quickest first: straight to `jax.jit` (`direct`), the program that is known for such leaves
(`Function.run`), the slow way round (`Function.call`). And it delivers the result of a call that has landed, whatever
is raised meanwhile (`interrupt.deliver`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jax.tree_util import tree_flatten

from pytc.attributes import give, resemble
from pytc.calls.tracebacks import leave_out_own_frames
from pytc.emit import Retrace
from pytc.interrupt import deliver, is_from_outside
from pytc.jax_compat.running import executing_once
from pytc.ownership import Call
from pytc.ownership.others import collector

if TYPE_CHECKING:
    from pytc.calls.function import Function


def _called_from_nowhere(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that C code makes with no Python frame beneath: the target of a thread or a greenlet, an exit handler. It
    is made once more from here, so that there is a caller's frame."""
    return wrap(function)(*args, **kwargs)


def wrap(function: Function) -> Callable[..., Any]:
    """The plain function that a user calls."""

    def compiled(*args: Any, **kwargs: Any) -> Any:
        # `cloudpickle` copies this function with its globals, modules by reference. So whatever changes at run time is
        # in a module, or in `function`, and never a global here. (A comment in front would be `help`'s text.)
        # The proof counts on what stands here: nothing but `args`, `kwargs` and `call` has the arguments; the caller is
        # one frame up.
        try:
            call = Call(sys._getframe(1), args, kwargs, [])
        except ValueError as error:
            if is_from_outside(error):
                raise
            call = None
        if call is None:
            return _called_from_nowhere(function, args, kwargs)
        function.kept_alive = []
        landed: list[Any] = []
        direct = tree = signature = None
        try:
            direct = function.directly.find(call)
            if direct is not None and executing_once():
                if gone := direct.call(call, landed):
                    return landed[0].result(landed[2], ())
                if gone is None:
                    function.directly.stay_away(direct)
            direct = None  # what is forgotten dies before the call, not as this returns: it may run code
            call.leaves, tree = tree_flatten(
                (args, kwargs) if (hidden := function.wrap_static) is None else hidden(args, kwargs)
            )
            signature = function.lookup.find(call.leaves, tree)
            if signature is not None:
                try:
                    return function.run(signature, call, landed)
                except Retrace:
                    signature = None  # as above
            return function.call(call, tree, landed)
        except BaseException as raised:
            # Several may come at once: by different signals, from other threads, or one after the other.
            try:
                delivered = deliver(landed, raised)
            except BaseException as second:  # noqa: BLE001 - it is raised again, here or after the store
                try:
                    delivered = deliver(landed, raised, second)
                except BaseException as third:  # noqa: BLE001 - as above
                    delivered = deliver(landed, raised, second, third)
            if delivered:
                return delivered[0]
            leave_out_own_frames(raised)
            del args, kwargs, call, landed  # the traceback, which people keep, has this frame
            raise
        finally:
            # CPython looks for pending signals after calls and at jumps backwards, and not after operators. A handler
            # that ran here would still see a slot's old value, which has been donated. So from here to the store there
            # are operators and returns alone: what follows is `collector.resume`, where `-X` calls a function in C.
            function.kept_alive += tree, signature, direct
            if collector.STATE.paused:
                collector.STATE.paused = False
                collector.STATE.ballast = ()
                # CPython 3.11 may collect garbage as the caller makes an object. If that is near, all is to look old.
                near = (
                    collector.WHILE_ALLOCATING
                    and (-collector.COUNT)[0] + collector.MOST > (-collector.THRESHOLD)[0] > 0
                )
                frozen = near and -collector.FROZEN
                _ = near and (-collector.FREEZE, frozen or -collector.UNFREEZE)
                collector.STATE.aged += near
                _ = -collector.COLLECTING

    _dress(compiled, function)
    return compiled


def _dress(compiled: Callable[..., Any], function: Function) -> None:
    """Give it the name, the doc and the signature of the function that it stands for, and its own methods."""
    resemble(compiled, function.stageable.fun)
    # For those who do not ask what is wrapped, as `inspect.getfullargspec` does not.
    signature = function.parameters.signature
    told = {} if signature is None else {"__signature__": signature}
    # Nothing here refers to `compiled`: when it is let go of, what it has captured and compiled goes with it.
    give(
        compiled,
        **told,
        **{name: getattr(function, name) for name in ("lower", "trace", "eval_shape", "explain", "clear_cache")},
        _cache_size=function.cache_size,
        __pytc__=function,
    )
