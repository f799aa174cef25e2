"""What may be remembered about a function without keeping it alive."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

from pytc.attributes import name_of
from pytc.classes import shares
from pytc.interrupt import is_from_outside


def told_by_identity(fun: Callable[..., Any]) -> bool:
    """Whether something can be remembered of this very function: others like it are not equal to it (a method, which is
    made anew each time, is), and there can be weak references to it."""
    if not shares(type(fun), object, "__hash__", "__eq__"):
        return False
    try:
        weakref.ref(fun)
    except TypeError as error:
        if is_from_outside(error):
            raise
        return False
    return True


class Unheld:
    """Stands for a function that somebody else keeps alive: called as it is, and named like it."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._fun = weakref.ref(fun)
        for name in functools.WRAPPER_ASSIGNMENTS:
            with contextlib.suppress(AttributeError):
                setattr(self, name, getattr(fun, name))
        self.__name__ = name_of(fun)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, for its signature and its source."""
        if (fun := self._fun()) is None:
            raise AttributeError(f"{self.__name__} is gone")
        return fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*args, **kwargs)
