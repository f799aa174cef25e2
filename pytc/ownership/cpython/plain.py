"""Plain access: attributes and items that are read and stored without any code being run.

Plain are attributes in the `__dict__` of an object, or in the `__slots__` of its class, if its class and those it
inherits from do not interfere (no property or other descriptor, no `__getattribute__`, no `__setattr__`); and items of
exact dicts and lists under string or integer keys. Fields of named tuples and items of exact tuples are plain to read.
Looking for a name in a dictionary may ask keys that are not strings whether they are equal to it. So nothing is plain
in a dictionary that has such keys.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from types import MemberDescriptorType, ModuleType
from typing import Any

from pytc.classes import attributes_of, bases_of, defined, defines, has_dictionary, ids_of, shares
from pytc.ownership.cpython.facts import Fact
from pytc.ownership.cpython.interpreter import UNBOUND, comes_from_python, version
from pytc.ownership.cpython.native import COUNTED, native

# By identity, since users' objects may be equal to anything.
_PLAIN_ACCESS = frozenset(
    id(vars(kind)[name])
    for kind in (object, types.SimpleNamespace, ModuleType, tuple)
    for name in ("__getattribute__", "__setattr__")
    if name in vars(kind)
)
_GENERIC = COUNTED | ids_of(ModuleType, types.FunctionType)
"""Classes (ids) written in C whose objects have their attributes where those of any object are."""
_DICTS = ids_of(dict, collections.OrderedDict, collections.defaultdict)
_KEYS = ids_of(str, int)
_MOST_KEYS = 1024
"""Up to so many keys are looked at one by one, which takes some 50 ns each."""
_MOST_KNOWN = 1024
_GETTERS = (types.GetSetDescriptorType, MemberDescriptorType)
_FIELD = type(vars(collections.namedtuple("_", "field"))["field"])
"""What a named tuple's class has for each field."""


class NotPlain(Exception):
    """Reaching a place, or storing there, may run code."""


def attribute(target: Any, name: str, storing: bool) -> Any:
    """The value of a plain attribute in `target` itself, `UNBOUND` if it has none there; raises if it is not plain. (If
    the value is also that of the class, the answer is `UNBOUND`.)"""
    value, in_class = _looked_up(target, name, storing)
    return UNBOUND if value is in_class else value


def why_attribute_is_odd(kind: type, name: str) -> str:
    """Why this attribute of the objects of a class is not plain to store, as words after it; empty if nothing is known
    of that."""
    if issubclass(kind, type):
        return ": attributes of classes, which Python looks for and stores in another way, are not looked at"
    setter, getter = (defined(kind, special) for special in ("__setattr__", "__getattribute__"))
    found = defined(kind, name)
    run = ""
    if type(setter) is not types.WrapperDescriptorType:
        run = "`__setattr__` run as the result is stored"
    elif defines(type(found), "__set__") and not _is_slot(found):
        run = f"`{name}`, a {type(found).__name__}, run as the result is stored"
    elif type(getter) is not types.WrapperDescriptorType:
        run = "`__getattribute__` run as the value is looked up"
    if run:
        return f", whose class has {run} there, which may read it"
    made_like = native(kind)
    if id(made_like) in _GENERIC and id(setter) in _PLAIN_ACCESS and id(getter) in _PLAIN_ACCESS:
        return ""
    base = f"{'' if made_like is kind else 'derived from '}{made_like.__qualname__}"
    return f", whose class is {base}, which is written in C and may store it in a way of its own"


def why_item_is_odd(kind: type) -> str:
    """Why an item of the objects of a class is not plain to store, as words after it; empty if nothing is known of
    that."""
    if kind is list or id(kind) in _DICTS:
        return ""
    return f": {kind.__qualname__} is a class of its own, and only items of a dict or a list itself are looked at"


def _is_slot(found: Any) -> bool:
    return type(found) is MemberDescriptorType


def read(target: Any, name: str) -> Any:
    """The value of a plain attribute of `target` or its class, or `UNBOUND`; raises if it is not plain."""
    return _looked_up(target, name, False)[0]


def _looked_up(target: Any, name: str, storing: bool) -> tuple[Any, Any]:
    """The value of a plain attribute, or `UNBOUND`, and what the class has under its name, where that matters."""
    kind = type(target)
    asked = version(kind), name, storing
    in_class: Any = UNBOUND
    if asked not in _left_to_objects or _odd_dictionaries(target):
        # Past the metaclass, which may say anything.
        classes = [attributes_of(base) for base in bases_of(kind)]
        if _has_odd_keys(target, classes):
            raise NotPlain
        in_class, is_left = _in_classes(kind, classes, name, storing)
        if is_left and asked[0]:
            if len(_left_to_objects) >= _MOST_KNOWN:
                _left_to_objects.clear()
            _left_to_objects.add(asked)
    try:
        value = object.__getattribute__(target, name)
    except (AttributeError, IndexError) as error:  # the latter of a named tuple that is too short
        if comes_from_python(error):
            raise
        return UNBOUND, in_class
    return value, in_class


def is_field(kind: type, name: str, position: int) -> bool:
    """Whether this attribute of a named tuple of a class is the item at this position."""
    if has_odd_keys(kind) or not shares(kind, tuple, "__getattribute__") or type(defined(kind, name)) is not _FIELD:
        return False
    try:
        return bool(_FIELD.__get__(defined(kind, name), tuple(range(position + 1))) == position)
    except IndexError as error:
        if comes_from_python(error):
            raise
        return False


def method(target: Any, name: str) -> Any:
    """The function that a method of `target` is made of, one of its class; raises if it is not plain."""
    if has_odd_keys(type(target)):
        raise NotPlain
    found = defined(type(target), name)
    if type(found) is not types.FunctionType or function_of(target, name, target) is not found:
        raise NotPlain  # or the object has an attribute of this name
    return found


def function_of(target: Any, name: str, bound_to: Any) -> Any:
    """The function of a method that `target` has under this name, and that passes `bound_to` first; raises if to get it
    is not plain, or there is none."""
    kind = type(target)
    if has_odd_keys(kind) or id(defined(kind, "__getattribute__")) not in _PLAIN_ACCESS or _odd_dictionaries(target):
        raise NotPlain
    bound = object.__getattribute__(target, name)
    if type(bound) is not types.MethodType or bound.__self__ is not bound_to:
        raise NotPlain
    return bound.__func__


def has_odd_keys(kind: type) -> bool:
    """Whether a class, or one that it inherits from, has keys that are no strings, so that to look for a name there may
    run code."""
    return not _has_strings_alone(kind)


_left_to_objects: set[tuple[int, str, bool]] = set()
"""Attributes in which the classes of an object have no say, but for a slot: the version of its class, the name, and
whether it may be stored there, too. The version that a class had before it was looked at: if it was changed meanwhile,
it never has that again."""


def _in_classes(kind: type, classes: Sequence[Mapping[Any, Any]], name: str, storing: bool) -> tuple[Any, bool]:
    """What the classes of an object have under the name of an attribute, and whether they leave it to the object what
    is there; raises if it is not plain."""
    if id(native(kind)) not in _GENERIC:
        raise NotPlain  # what C code does to get at an attribute need not show in the class
    for special in ("__getattribute__", "__setattr__") if storing else ("__getattribute__",):
        if next(id(attributes[special]) for attributes in classes if special in attributes) not in _PLAIN_ACCESS:
            raise NotPlain
    found: Any = next((attributes[name] for attributes in classes if name in attributes), UNBOUND)
    if type(found) is MemberDescriptorType:
        # A slot of a Python class, under its own name; one of a class written in C may be read-only.
        own = any(base is found.__objclass__ for base in bases_of(kind))
        if not own or found.__name__ != name or "__slots__" not in vars(found.__objclass__):
            raise NotPlain
        return found, True
    if type(found) is _FIELD and not storing and issubclass(kind, tuple):
        return found, True
    if storing and not has_dictionary(kind):
        raise NotPlain  # to store there raises
    if found is not UNBOUND and any(defines(type(found), name) for name in ("__get__", "__set__", "__delete__")):
        raise NotPlain  # one that only deletes refuses stores, too
    return found, found is UNBOUND


def _sizes(key: Callable[[int], object]) -> set[int]:
    """The sizes, in bytes, of dictionaries with up to a few thousand such keys."""
    made: dict[object, None] = {}
    sizes = set()
    for n in range(4096):
        made[key(n)] = None
        sizes.add(sys.getsizeof(made))
    return sizes


_OF_STRINGS_ALONE = _sizes(str) - _sizes(int)
"""CPython leaves out the hashes where all keys are strings, so that the size alone shows it."""


def of_strings(space: dict[Any, Any]) -> bool:
    """Whether all keys are strings, so that to look for one runs no code. It has to be a `dict` itself: the sizes of
    other classes' objects tell nothing."""
    return sys.getsizeof(space) in _OF_STRINGS_ALONE or all(map(operator.is_, map(type, space), itertools.repeat(str)))


def _has_plain_keys(space: dict[Any, Any]) -> bool:
    """Whether to look for a string or an integer runs no code: another key might have an `__eq__`, and be asked."""
    if type(space) is dict and sys.getsizeof(space) in _OF_STRINGS_ALONE:
        return True
    # By identity, as the class of a key may have a metaclass with an `__eq__`.
    return len(space) <= _MOST_KEYS and len(space) == sum(
        sum(map(operator.is_, map(type, space), itertools.repeat(kind))) for kind in (str, int)
    )


def _odd_dictionaries(*values: Any) -> list[dict[Any, Any]]:
    """Those among what these refer to that may have keys which are no strings."""
    found = [v for v in gc.get_referents(*values) if issubclass(type(v), dict)]
    return [v for v in found if type(v) is not dict or not of_strings(v)]


_has_strings_alone = Fact(lambda kind: not _odd_dictionaries(*[attributes_of(base) for base in bases_of(kind)]))


def _has_odd_keys(target: Any, classes: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether the `__dict__` of an object, or of one of its classes, has keys that are no strings, so that to look for
    a name there may run code.

    Such a `__dict__` is one that the object refers to as to any other.
    """
    odd = set(map(id, _odd_dictionaries(target, *classes)))
    if not odd:
        return False
    spaces = gc.get_referents(*classes)
    getters = [attributes["__dict__"] for attributes in classes if "__dict__" in attributes]
    if getters:
        if type(getters[0]) not in _GETTERS:
            return True  # what the class calls so is something else
        spaces.append(getters[0].__get__(target))
    return not odd.isdisjoint(map(id, spaces))


def is_key(key: Any) -> bool:
    """Whether to look for this key, among others of its kind, runs no code."""
    return id(type(key)) in _KEYS


def item(target: Any, key: Any, storing: bool) -> Any:
    """The value of an item; raises if finding it may run code, or storing something there."""
    if not is_key(key):
        raise NotPlain
    if id(type(target)) in _DICTS:
        if not _has_plain_keys(target):
            raise NotPlain
        return dict.get(target, key, UNBOUND)
    is_sequence = type(target) is list or (type(target) is tuple and not storing)
    if is_sequence and type(key) is int and -len(target) <= key < len(target):
        return target[key]
    raise NotPlain


_SMALL = 2**53


def is_small_number(value: Any) -> bool:
    """Whether arithmetic with it, and another such number, runs no code and does not fail. (An integer may be too large
    to be made a float.)"""
    return type(value) is float or (type(value) is int and -_SMALL < value < _SMALL)
