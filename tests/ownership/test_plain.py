"""Attributes that are plain, until somebody changes that: what is remembered of classes does not outlive the change."""

import pytest

from pytc.ownership.cpython import interpreter, plain
from pytc.ownership.cpython.interpreter import UNBOUND


class Above:
    pass


class OtherAbove:
    @property
    def state(self):
        return "made up"


class OddKey:
    def __hash__(self):
        return hash("elsewhere")


def new():
    """An object of a class of its own, with an attribute."""

    class Middle(Above):
        pass

    class Kind(Middle):
        pass

    value = Kind()
    value.state = "there"
    return value


def property_in_class(value):
    type(value).state = property(lambda self: "made up")


def property_in_class_above(value):
    type(value).__mro__[1].state = property(lambda self: "made up")


def another_base(value):
    type(value).__bases__ = (OtherAbove,)


def another_class(value):
    value.__class__ = type("Other", (OtherAbove,), {})


def getattribute(value):
    type(value).__mro__[1].__getattribute__ = object.__getattribute__.__get__(value)


def odd_key(value):
    vars(value)[OddKey()] = None


class Watching:
    """What a class has under the name may become a descriptor through a change of its own class alone."""


def descriptor_late(value):
    type(value).state = Watching()
    assert plain.attribute(value, "state", False) == "there"
    Watching.__get__ = lambda self, instance, owner: "made up"
    Watching.__set__ = lambda self, instance, value: None


CHANGES = [
    property_in_class,
    property_in_class_above,
    another_base,
    another_class,
    getattribute,
    odd_key,
    descriptor_late,
]


@pytest.mark.parametrize("storing", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_makes_an_attribute_run_code_is_seen(change, storing):
    value = new()
    for _ in range(3):
        assert plain.attribute(value, "state", storing) == "there"
    change(value)
    for _ in range(3):
        with pytest.raises(plain.NotPlain):
            plain.attribute(value, "state", storing)
    if change is descriptor_late:
        del Watching.__get__, Watching.__set__


def test_what_makes_a_store_run_code_is_seen():
    value = new()
    for _ in range(3):
        assert plain.attribute(value, "state", True) == "there"
    type(value).__setattr__ = lambda self, name, value: None
    with pytest.raises(plain.NotPlain):
        plain.attribute(value, "state", True)
    assert plain.attribute(value, "state", False) == "there"


def test_slots_are_told_apart_from_what_is_no_slot_any_more():
    class Slotted:
        __slots__ = ("state",)

    value = Slotted()
    for _ in range(3):
        assert plain.attribute(value, "state", True) is UNBOUND
    value.state = 1
    assert plain.attribute(value, "state", True) == 1
    del Slotted.state
    with pytest.raises(plain.NotPlain):
        plain.attribute(value, "state", True)


def test_classes_are_not_remembered_for_ever():
    most = 0
    for _ in range(plain._MOST_KNOWN + 10):
        value = new()
        assert value.state == "there"  # from here on its class has a version
        assert plain.attribute(value, "state", True) == "there"
        most = max(most, len(plain._left_to_objects))
    assert most == plain._MOST_KNOWN


def test_versions_are_found_on_this_interpreter():
    value = new()
    assert interpreter.version_at
    assert plain.attribute(value, "state", True) == "there"
    before = interpreter.version(type(value))
    assert before
    Above.changed = True
    assert interpreter.version(type(value)) != before
