"""What puts a result together may raise, when the arguments are gone: then whoever can still name these keeps them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import json
import operator
import pprint
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.tree_util import register_dataclass, register_pytree_node, register_pytree_node_class, tree_structure

import pytc
from pytc.calls import unflattening
from pytc.calls.unflattening import ArrayOf, of_tree

X = jnp.arange(3.0)


class Bare:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def node(unflatten):
    """One of a class whose `x` and `more` are its children, and that is put together by `unflatten`."""
    kind = type("Node", (Bare,), {})
    register_pytree_node(kind, lambda each: ((each.x, each.more), (True, "name")), functools.partial(unflatten, kind))
    return kind(x=X, more=X)


# -- what a user sees --------------------------------------------------------------------------------------------------


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Checked:
    x: jax.Array

    def __post_init__(self):
        if isinstance(self.x, jax.Array) and not isinstance(self.x, jax.core.Tracer) and float(self.x[0]) > 5:
            raise FloatingPointError(float(self.x[0]))


def in_a_variable(step):
    state = Checked(jnp.zeros(3))
    try:
        for _ in range(10):
            state = step(state)
    except FloatingPointError:
        return state.x.tolist()


def in_an_attribute(step):
    holder = types.SimpleNamespace(state=Checked(jnp.zeros(3)))
    try:
        for _ in range(10):
            holder.state = step(holder.state)
    except FloatingPointError:
        return holder.state.x.tolist()


def through_a_helper(step):
    def advance(state):
        return step(state)

    state = Checked(jnp.zeros(3))
    try:
        for _ in range(10):
            state = advance(state)
    finally:
        return state.x.tolist()  # noqa: B012 - the error is the test's own


@pytest.mark.parametrize("caller", [in_a_variable, in_an_attribute, through_a_helper])
def test_the_last_good_state_is_there_when_the_next_one_is_refused(caller):
    assert caller(pytc.compile(lambda state: Checked(state.x + 1))) == [5, 5, 5]


def test_a_variable_that_nobody_reads_when_it_raises_is_reused():
    step = pytc.compile(lambda state: Checked(state.x * 1))

    def run():
        state = Checked(jnp.zeros(3))
        for _ in range(4):
            state = step(state)
            where.append(state.x.unsafe_buffer_pointer())

    where: list[int] = []
    run()
    assert len(set(where[1:])) == 1


def test_explain_tells_who_might():
    step = pytc.compile(lambda state: Checked(state.x + 1))
    holder = types.SimpleNamespace(state=Checked(jnp.zeros(3)))
    for _ in range(4):
        holder.state = step(holder.state)
    assert "`Checked.__post_init__` may raise" in str(pytc.explain(step))


# -- which code may --------------------------------------------------------------------------------------------------


@register_dataclass
@dataclasses.dataclass
class Plain:
    x: jax.Array
    more: Any = dataclasses.field(default_factory=list)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    x: jax.Array
    more: Any = None


class Named(NamedTuple):
    x: jax.Array


class Made(collections.namedtuple("Made", "x y")):
    def __new__(cls, x, y=None):
        return super().__new__(cls, x, y)


@register_pytree_node_class
class Base:
    def __init__(self, x, *, scale=None):
        self.x = x
        if scale is None:
            scale = 1.0
        self.scale = scale

    def tree_flatten(self):
        return (self.x,), {"scale": self.scale}

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children, **aux)

    def like(self, x):
        self.x, self.scale = x, None
        return self


@register_pytree_node_class
class Derived(Base):
    def __init__(self, x, **more):
        super().__init__(x, **more)
        self.shape = x.shape


def assigned(kind, aux, children):
    made = object.__new__(kind)
    for name, child in zip(("x", "more"), children, strict=True):
        setattr(made, name, child)
    made.__dict__.update({name: name for name in aux[1:]})
    return made


def taken_apart(kind, _, children):
    x, more = children
    made = kind(x=x)
    object.__setattr__(made, "more", tuple(each for each in [more])[0])  # noqa: RUF015
    return made


def named(kind, aux, children):
    made = kind(**dict(zip(("x", "more"), children, strict=True)))
    made.__dict__.update(size=len(children), kind=type(made), first=aux[0])
    return made


def by_a_flag(kind, aux, children):
    flag, _ = aux
    return kind(x=children[0], more=children[1]) if flag else kind(x=children[1], more=children[0])


def in_a_loop(kind, _, children):
    made, rest = kind(x=None), []
    for place, child in enumerate(children):
        if place is None:
            continue
        rest.append(child)
    made.x, *others = rest
    made.more = [each for each in others if each is not None][-1]
    return made


def by_places(kind, _, children):
    count = len(children)
    return kind(x=children[0], more=(*children[1:count], *children[count:count]))


def gathered(kind, aux, children):
    items, found, names = [], {}, {"x"}
    items.append(children[0])
    items.extend(children[1:])
    found.update(zip(("x", "more"), items.copy(), strict=True))
    found["size"] = float(len(children))
    found.setdefault("name", aux[1][1:])
    names.update(("more",))
    found["last"] = {*("last",)}
    made = kind(**found)
    made.pairs, made.values = [*found.items()], [*found.values()]
    made.initial, made.names, made.got = aux[1][0], names, found.get("x")
    return made


def in_turn(kind, _, children):
    places = []
    for place, _ in enumerate(children):
        places.append(place)
    first, second = [each for each in reversed([*reversed(children)])]  # noqa: C416
    rest = [each for each in iter(children)]  # noqa: C416
    more = (last := second, last)
    del last
    return kind(x=first, more=more, rest=rest, places=places, some=("a", "b")[:1])


def by_an_inner_function(kind, _, children):
    made = kind(x=None, more=None)
    x = children[0]

    def chosen(more=children[1]):
        return x if more is None else more

    made.x, made.more = x, chosen()
    return made


def by_names_that_are_captured(names):
    def by_names(kind, _, children):
        return kind(x=children[0], more=children[1], names=[*names])

    return by_names


def beside_a_default(kind, _, children, box=types.SimpleNamespace(a=X)):  # noqa: B008
    return kind(x=children[0], more=children[1] if box is not None else None)


class Told:
    """An attribute whose values are passed on by a function."""

    def __get__(self, instance, owner):
        return instance.told

    def __set__(self, instance, value):
        instance.told = value


@register_pytree_node_class
class Slotted:
    __slots__ = ("more", "told", "x")
    value = Told()

    def __new__(cls, x):
        made = super().__new__(cls)
        made.x = x
        return made

    def __init__(self, x):
        super().__init__()
        object.__init__(self)
        self.both = self.x, x
        self.value = x  # noqa: PLE0237 - a descriptor

    @property
    def both(self):
        return self.more

    @both.setter
    def both(self, value):
        super().__setattr__("more", value)

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls.made_of(*children)

    @classmethod
    def made_of(cls, x):
        return cls(x)


class Module(eqx.Module):
    x: jax.Array
    mlp: eqx.nn.MLP
    size: int = eqx.field(static=True, default=3)

    def __check_init__(self):
        if self.size > 5:
            raise ValueError(self.size)


@flax.struct.dataclass
class Struct:
    x: jax.Array
    size: int = flax.struct.field(pytree_node=False, default=3)


def train_state():
    return TrainState.create(apply_fn=print, params={"w": X}, tx=optax.MultiSteps(optax.adamw(1e-3), 2))


def doubtful(tree):
    """Who may do something else the next time."""
    return of_tree(tree, [ArrayOf((3,), np.float32)] * tree.num_leaves).doubt


CERTAIN = {
    "a dataclass": lambda: Plain(X),
    "a frozen dataclass": lambda: Frozen(X, Frozen(X)),
    "a named tuple": lambda: Named(X),
    "a named tuple with a constructor": lambda: Made(X),
    "ordered": lambda: collections.OrderedDict(b=X, a=X),
    "with a default": lambda: collections.defaultdict(list, a=X),
    "a constructor": lambda: Base(X),
    "a derived class": lambda: Derived(X, scale=2.0),
    "attributes that are assigned": lambda: node(assigned),
    "children that are taken apart": lambda: node(taken_apart),
    "a flag that does not change": lambda: node(by_a_flag),
    "children that get names": lambda: node(named),
    "children that are gone through": lambda: node(in_a_loop),
    "children from one place to another": lambda: node(by_places),
    "children that are gathered": lambda: node(gathered),
    "children in turn": lambda: node(in_turn),
    "an inner function": lambda: node(by_an_inner_function),
    "names of fields": lambda: node(by_names_that_are_captured(("x", "more"))),
    "an object that is only told from nothing": lambda: node(beside_a_default),
    "slots": lambda: Slotted(X),
    "equinox": lambda: eqx.filter(Module(X, eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0))), eqx.is_array),
    "flax.struct": lambda: Struct(X),
    "flax.core": lambda: flax.core.freeze({"a": {"b": X}}),
    "TrainState": train_state,
    "nnx": lambda: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
}


@pytest.mark.parametrize("what", CERTAIN)
def test_what_only_builds(what):
    tree = tree_structure(CERTAIN[what]())
    assert doubtful(tree) == ""


SEEN: list[Any] = []
HOOK = None


def compares(kind, _, children):
    made = kind(x=children[0], more=children[1])
    made.same = made.x == 0
    return made


def refuses_some(kind, aux, children):
    if len(children) != 2:
        raise ValueError(f"{aux} and {children}")
    return kind(x=children[0], more=children[1])


def asserts(kind, _, children):
    assert children[0].ndim == 1
    return kind(x=children[0], more=children[1])


def tries(kind, _, children):
    try:
        return kind(x=children[0], more=children[1])
    finally:
        SEEN.clear()


def reads_a_value(kind, _, children):
    return kind(x=children[0], more=float(children[1]))


def takes_the_last(kind, _, children):
    return kind(x=children[0], more=children[1], last=SEEN.pop())


def takes_the_next(kind, _, children, numbers=iter(range(7))):  # noqa: B008
    return kind(x=children[0], more=children[1], number=next(numbers))


def looks_up(kind, aux, children):
    names = {"name": 1}
    return kind(x=children[0], more=children[1], found=names[aux[1]])


def has_a_hook(kind, _, children):
    hook = HOOK
    if hook is not None:
        hook(children)
    return kind(x=children[0], more=children[1])


def counts(kind, _, children):
    return kind(x=children[0], more=children[1], counted=len(SEEN) + 1)


@functools.cache
def remembered(x):
    return x


def remembers(kind, _, children):
    return kind(x=remembered(children[0]), more=children[1])


def asks_for_its_truth(kind, _, children):
    return kind(x=children[0], more=bool(children[1]))


def checks_by_jax(kind, _, children):
    return kind(x=eqx.error_if(children[0], children[0] < 0, "negative"), more=children[1])


def calls_back(kind, _, children):
    jax.debug.callback(SEEN.append, children[0])
    return kind(x=children[0], more=children[1])


def looks_at_its_callers(kind, _, children):
    return kind(x=children[0], more=children[1], above=sys._getframe(1))


@pytest.mark.parametrize(
    "unflatten",
    [
        compares, refuses_some, asserts, tries, reads_a_value, takes_the_last, takes_the_next, looks_up, has_a_hook,
        counts, remembers, asks_for_its_truth, checks_by_jax, calls_back, looks_at_its_callers,
    ],
)  # fmt: skip
def test_what_may_do_something_else_the_next_time(unflatten):
    SEEN[:] = [1, 2, 3]
    tree = tree_structure(node(unflatten))
    assert f"`{unflatten.__name__}`" in doubtful(tree)


@register_pytree_node_class
class Hooked(Base):
    """One that reads what is elsewhere, as its own `read` does."""

    read = None
    last: Any = None
    hooks: list[Any] = []

    def __init__(self, x, **more):
        super().__init__(x, **more)
        self.more = self.read()


THERE = types.SimpleNamespace(state=X, hook=len)
HOOKS: list[Any] = []
CHECKS = False
ITERATOR = iter([]).__next__


@functools.singledispatch
def dispatched(x):
    return x


def checks(x):
    if CHECKS:
        raise ValueError(x)
    return x


def hooks(self):
    for hook in HOOKS:
        hook(self)


ELSEWHERE = {
    "an object": lambda self: THERE.state,
    "by name": lambda self: getattr(THERE, "state"),  # noqa: B009
    "a hook": lambda self: THERE.hook(()),
    "a list of hooks": hooks,
    "an array": lambda self: X,
    "an iterator": lambda self: ITERATOR,
    "a switch": lambda self: checks(self.x),
    "a class's": lambda self: self.last,
    "a class's list": lambda self: self.hooks,
    "what its type has": lambda self: type(self).hooks,
    "a dispatcher": lambda self: dispatched(self.x),
    "an item": lambda self: SEEN[0],
    "a table": lambda self: {"a": 1}[self.shape],
    "whether it is traced": lambda self: isinstance(self.x, jax.core.Tracer) or self.x,
    "a new array": lambda self: jnp.zeros(3),
    "a partial function": lambda self: PARTIAL(),
}
PARTIAL = functools.partial(next, iter([1, 2, 3]))


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_looks_elsewhere(what, monkeypatch):
    monkeypatch.setattr(Hooked, "read", ELSEWHERE[what])
    monkeypatch.setattr(Hooked, "last", X)
    SEEN[:] = [1, 2, 3]
    tree = tree_structure(Base(X))
    assert doubtful(tree) == ""
    tree = tree_structure(object.__new__(Hooked).like(X))
    assert doubtful(tree) != ""


# -- what looks like building ------------------------------------------------------------------------------------------

STORE = {"a": X}
BOX = types.SimpleNamespace(a=X, size=X, run=None)
OTHER = Bare()
THIS = sys.modules[__name__]


class Dies:
    """It dies by code written in C."""

    __del__ = functools.partial(print)


class Tagged(Bare):
    tag: Any = None


def reads_a_default(kind, _, children, store=STORE):
    return kind(x=children[0], more=store["a"])


def reads_a_default_by_name(kind, _, children, store=STORE):
    return kind(x=children[0], more=store.get("a"))


def reads_what_it_is_given(kind, aux, children):
    return kind(x=children[0], more=aux.__dict__["a"])


def reads_a_size(kind, aux, children):
    return kind(x=children[0], more=aux.size)


def reads_a_module(kind, _, children):
    return kind(x=children[0], more=THIS.__dict__["X"])


def reads_a_module_by_name(kind, _, children):
    return kind(x=children[0], more=THIS.__dict__.get("X"))


def reads_by_an_object_of_c(kind, aux, children):
    return kind(x=children[0], more=operator.attrgetter("a")(aux))


def reads_by_a_slot(kind, aux, children):
    return kind(x=children[0], more=object.__getattribute__(aux, "a"))


def calls_what_it_is_given(kind, aux, children):
    return kind(x=children[0], more=[*map(aux.get, ["a"])])


def hands_on_what_it_is_given(kind, aux, children):
    return kind(x=children[0], more=jax.tree.leaves(aux))


def writes_a_value(kind, _, children):
    return kind(x=children[0], more=str(children[1]))


def computes(kind, _, children):
    return kind(x=children[0], more=jnp.negative(children[1]))


def calls_a_jitted_function(kind, _, children):
    return kind(x=children[0], more=jnp.atleast_1d(children[1]))


def makes_what_dies_by_c_code(kind, _, children):
    return kind(x=children[0], more=Dies())


def stores_into_a_class(kind, _, children):
    Tagged.tag = Bare()
    return kind(x=children[0], more=children[1])


def stores_into_a_default(kind, _, children, box=BOX):
    box.run = kind
    return kind(x=children[0], more=children[1])


def stores_into_what_it_is_given(kind, aux, children):
    aux.run = kind
    return kind(x=children[0], more=children[1])


def stores_into_what_is_around():
    run = None

    def stores_outside(kind, _, children):
        nonlocal run
        run = kind
        return kind(x=children[0], more=run)

    return stores_outside


def sets_by_name(kind, aux, children):
    setattr(aux, "run", kind)  # noqa: B010 - that it is called is the point
    return kind(x=children[0], more=children[1])


def tells_two_leaves_apart(kind, _, children):
    a, b = children
    return kind(x=a, more=1 if a is b else 2)


def hashes_a_leaf(kind, _, children):
    return kind(x=children[0], more=len({children[1]}))  # a tracer can be hashed, and an array cannot


def makes_keys_of_leaves(kind, _, children):
    return kind(x=children[0], more=dict(zip(children, children, strict=True)))


def has_text_made(kind, _, children):
    return kind(x=children[0], more=jax.tree.map(repr, children[1]))


def has_text_made_by_a_class(kind, _, children):
    return kind(x=children[0], more=jax.tree.map(str, children[1]))


def has_the_standard_library_called(kind, _, children):
    return kind(x=children[0], more=jax.tree.map(pprint.pformat, children[1]))


def refuse_all_but_tracers(x, is_traced):
    if is_traced is True:
        return x
    return SEEN[0]


def hands_on_what_is_true_of_tracers(kind, _, children):
    return kind(x=children[0], more=refuse_all_but_tracers(children[1], isinstance(children[1], jax.core.Tracer)))


def goes_through_different_constants(kind, _, children):
    more = None
    for each in (1, None):
        if each is None:
            more = SEEN[0]
    return kind(x=children[0], more=more)


def may_have_a_hook_later(kind, _, children):
    made = kind(x=children[0], more=children[1])
    if made.hook is not None:
        made.hook(children)
    return made


def converted(kind, _, children):
    return kind(x=jnp.asarray(children[0], jnp.float32), more=jnp.asarray(children[1]))


class Another:
    def __new__(cls, box=BOX):
        return box


class Prox:
    __getattr__ = staticmethod(functools.partial(getattr, BOX))


class WithProperty(Bare):
    state = property(operator.attrgetter("box.a"))


class UnderIt(WithProperty):
    def __init__(self, x):
        self.old = super().state


class OfMeta(type):
    state = property(operator.attrgetter("box.a"))


class MadeByMeta(metaclass=OfMeta):
    box = BOX
    state = len


class Items(list):
    def __init__(self, of=HOOKS):
        super().__init__(of)


class FromItems(Items):
    def __init__(self, of=HOOKS):
        super(Items, self).__init__(of)


class Names(frozenset):
    pass


def makes_what_is_another(kind, _, children):
    return kind(x=children[0], more=Another().a)


def reads_through_a_proxy(kind, _, children):
    return kind(x=children[0], more=Prox().a)


def reads_what_a_base_has(kind, _, children):
    return kind(x=children[0], more=UnderIt(children[1]).old)


def reads_what_a_metaclass_has(kind, _, children):
    return kind(x=children[0], more=MadeByMeta.state)


def copies_a_list(kind, _, children):
    return kind(x=children[0], more=Items())


def passes_over_a_base(kind, _, children):
    return kind(x=children[0], more=FromItems())


def makes_a_set_of_leaves(kind, _, children):
    return kind(x=children[0], more=frozenset.__new__(Names, children))


def changes_a_class(kind, _, children):
    made = Bare()
    for name in ("__class__", "y"):
        setattr(made, name, WithProperty)
    return kind(x=children[0], more=made.state)


def has_its_caller_get(kind, _, children):
    return kind(x=children[0], more=jax.tree.map(getattr, THIS, "X"))


def loads_a_file(kind, _, children):
    return kind(x=children[0], more=np.load(__file__))


def fills(made):
    made.__dict__["hook"] = len


def hides_a_hook(kind, _, children):
    made = kind(x=children[0], more=children[1])
    fills(made)
    if made.hook is not None:
        made.hook(children)
    return made


class Shadowed(Bare):
    def look(self):
        return None


def hides_a_method(kind, _, children):
    made = Shadowed(look=print)
    made.look()
    return kind(x=children[0], more=children[1])


def hides_a_branch(kind, aux, children):
    return kind(x=children[0], more=children[1] if aux is children[1] else jnp.asarray(children[1]))


def adds_to_what_it_is_given(kind, aux, children):
    aux.append(len(aux))
    return kind(x=children[0], more=children[1])


def stores_an_item_of_a_default(kind, _, children, store=STORE):
    store["b"] = kind
    return kind(x=children[0], more=children[1])


def may_have_no_such_variable(kind, aux, children):
    if aux:
        more = children[1]
    return kind(x=children[0], more=more)


def may_have_no_such_item(kind, aux, children):
    return kind(x=children[0], more=children[1] if aux else children[2])


def asks_whether_there_are_any(kind, _, children, hooks=HOOKS):
    found = [*children]
    if found:
        return kind(x=children[0], more=children[1])
    return None


def sets_names_that_it_is_given(kind, aux, children):
    made = kind(x=None, more=None)
    for name, child in zip(aux, children, strict=True):
        setattr(made, name, child)
    return made


class Keeps:
    value = property(None, {}.__setitem__)


def sets_what_c_code_keeps(kind, _, children):
    kept = Keeps()
    kept.value = 1
    return kind(x=children[0], more=children[1])


class Above:
    def look(self):
        return self


class Switched(Above):
    def look(self, other=None):
        self, other = other, self
        return super().look()


SWITCHED = Switched()
Switched.look.__defaults__ = (SWITCHED,)


def looks_at_another_by_super(kind, _, children):
    made = object.__new__(kind)
    made.x, made.more = children[0], Switched().look()
    return made


def has_an_inner_function_with_what_comes_later(kind, aux, children):
    def chosen(now):
        return children[1] if now else later

    made = kind(x=children[0], more=chosen(True))
    later = kind
    return made


def reads_a_free_variable():
    found = BOX

    def reads_outside(kind, _, children):
        return kind(x=children[0], more=found.a)

    return reads_outside


NAMELESS: dict[str, Any] = {}
exec(
    """
def check(x):
    if hasattr(x, "block_until_ready"):
        raise ValueError
    return x
""",
    NAMELESS,
)


def has_code_of_no_module(kind, _, children):
    return kind(x=children[0], more=jax.tree.map(NAMELESS_CHECK, children[1]))


NAMELESS_CHECK = NAMELESS["check"]


@pytest.mark.parametrize(
    ("unflatten", "aux"),
    [
        (reads_a_default, None), (reads_a_default_by_name, None), (reads_what_it_is_given, BOX), (reads_a_size, BOX),
        (reads_a_module, None), (reads_a_module_by_name, None), (reads_by_an_object_of_c, BOX), (reads_by_a_slot, BOX),
        (calls_what_it_is_given, types.MappingProxyType({"a": 1})), (hands_on_what_it_is_given, BOX),
        (writes_a_value, None), (computes, None), (converted, None),
        (calls_a_jitted_function, None), (makes_what_dies_by_c_code, None),
        (stores_into_a_class, None), (stores_into_a_default, None), (stores_into_what_it_is_given, BOX),
        (stores_into_what_is_around(), None), (sets_by_name, BOX), (tells_two_leaves_apart, None),
        (has_text_made, None), (has_text_made_by_a_class, None), (has_the_standard_library_called, None),
        (hands_on_what_is_true_of_tracers, None), (goes_through_different_constants, None),
        (makes_what_is_another, None), (reads_through_a_proxy, None), (reads_what_a_base_has, None),
        (reads_what_a_metaclass_has, None), (copies_a_list, None), (changes_a_class, None), (has_its_caller_get, None),
        (loads_a_file, None), (hides_a_hook, None), (hides_a_method, None), (may_have_a_hook_later, None),
        (hashes_a_leaf, None), (makes_keys_of_leaves, None), (passes_over_a_base, None), (makes_a_set_of_leaves, None),
        (hides_a_branch, BOX), (reads_a_free_variable(), None), (has_code_of_no_module, None),
        (adds_to_what_it_is_given, [1]), (stores_an_item_of_a_default, None), (may_have_no_such_variable, 1),
        (may_have_no_such_item, 1), (asks_whether_there_are_any, None), (sets_names_that_it_is_given, ("x", "more")),
        (sets_what_c_code_keeps, None), (looks_at_another_by_super, None),
        (has_an_inner_function_with_what_comes_later, None),
    ],
)  # fmt: skip
def test_what_only_looks_like_building(unflatten, aux):
    kind = type("Node", (Bare,), {"hook": None})
    register_pytree_node(kind, lambda each: ((each.x, each.more), aux), functools.partial(unflatten, kind))
    assert doubtful(tree_structure(kind(x=X, more=X))) != ""


@pytest.mark.parametrize("unflatten", [{None: X}.get, functools.partial(print, end=""), operator.itemgetter(0)])
def test_what_is_put_together_by_c_code(unflatten):
    kind = type("Node", (Bare,), {})
    register_pytree_node(kind, lambda each: ((each.x,), None), unflatten)
    assert doubtful(tree_structure((X, kind(x=X)))) != ""


def test_code_that_switches_off_what_looks_at_it():
    kind = type("Node", (Bare,), {})

    def unflatten(_, children):
        sys.setprofile(None)
        return kind(x=children[0], old=STORE["a"])

    register_pytree_node(kind, lambda each: ((each.x,), None), unflatten)
    assert doubtful(tree_structure(kind(x=X))) != ""


def test_what_a_partial_function_has_is_not_new():
    kind = type("Node", (Bare,), {})

    def unflatten(box, _, children):
        box.run = children
        return kind(x=children[0])

    register_pytree_node(kind, lambda each: ((each.x,), None), functools.partial(unflatten, Bare()))
    assert doubtful(tree_structure(kind(x=X))) != ""


class Pair(collections.namedtuple("Pair", "x y")):
    """It looks like one that `collections` has made."""

    __slots__ = ()

    def __new__(cls, x, y, look=lambda: SEEN.append(BOX.a.is_deleted())):
        look()
        return _tuple_new(cls, (x, y))


_tuple_new = tuple.__new__


def test_the_constructor_of_a_named_tuple_is_not_known_by_a_name():
    step = pytc.compile(lambda x: Pair(x + 1, x * 2))
    SEEN.clear()
    BOX.a = jnp.zeros(8)
    for _ in range(4):
        BOX.a = step(BOX.a)[0]
    assert doubtful(tree_structure(Pair(X, X))) != ""
    assert not any(SEEN)


def looks_at_the_old_value():
    kind = type("Node", (Bare,), {})

    def unflatten(_, children, store=STORE):
        return kind(x=children[0], old=store["a"])

    register_pytree_node(kind, lambda each: ((each.x,), None), unflatten)
    step = pytc.compile(lambda each: kind(x=each.x + 1))
    STORE["a"] = kind(x=jnp.zeros(8))
    for _ in range(4):
        STORE["a"] = step(STORE["a"])
        yield STORE["a"].old.x


def changes_the_way():
    kind = type("Node", (Bare,), {})

    def unflatten(_, children, box=BOX, other=OTHER):
        box.run = other
        return kind(x=children[0])

    register_pytree_node(kind, lambda each: ((each.x,), None), unflatten)
    step = pytc.compile(lambda each: kind(x=each.x + 1))
    for _ in range(4):
        first = BOX.run = Bare(a=kind(x=jnp.zeros(8)))
        BOX.run.a = step(BOX.run.a)
        yield first.a.x


def raises_in_a_formatter():
    kind = type("Node", (Bare,), {})
    register_pytree_node(kind, lambda each: ((each.x,), None), lambda _, c: kind(x=c[0], text=str(c[0])))
    step = pytc.compile(lambda each: kind(x=each.x + 1))

    def formatted(value):
        if value >= 3:
            raise ValueError(value)
        return str(value)

    each = kind(x=jnp.zeros(3))
    with np.printoptions(formatter={"float_kind": formatted}):
        try:
            for _ in range(6):
                each = step(each)
        except ValueError:
            yield each.x


@pytest.mark.parametrize("program", [looks_at_the_old_value, changes_the_way, raises_in_a_formatter])
def test_nothing_that_a_constructor_reads_or_leaves_is_gone(program):
    found = [each.is_deleted() for each in program()]
    assert found
    assert not any(found)


def straight(levels):
    """A function that calls so many others, one inside the other."""
    lines = [f"def f{k}(x): return f{k - 1}(x)" for k in range(1, levels)]
    space = {"__name__": __name__}
    exec("\n".join(["def f0(x): return x", *lines]), space)
    return space[f"f{levels - 1}"]


DEEP = straight(30)


@register_pytree_node_class
class Deep(Base):
    def __init__(self, x, **more):
        super().__init__(DEEP(x), **more)


def test_a_stack_that_is_nearly_full():
    """What puts the result together needs more of it than all that came before."""
    step = pytc.compile(lambda node: Deep(node.x + 1))
    holder = types.SimpleNamespace(state=Deep(jnp.zeros(3)))

    def down(frames):
        if frames:
            down(frames - 1)
        else:
            holder.state = step(holder.state)

    for _ in range(4):
        down(0)
    at = holder.state.x.unsafe_buffer_pointer()
    ran, raised, limit = 0, 0, sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        for frames in range(98):
            try:
                down(frames)
                ran += 1
            except (RecursionError, ValueError) as error:
                raised += "recursion depth" in str(error)  # JAX has a `ValueError` where a cache compares its keys
            if holder.state.x.is_deleted():
                break
    finally:
        sys.setrecursionlimit(limit)
    assert holder.state.x.tolist() == [4 + ran] * 3
    assert ran > 10
    assert raised > 10
    assert ran + raised == 98
    assert holder.state.x.unsafe_buffer_pointer() == at


@pytest.mark.parametrize(
    ("file", "standard"),
    [
        (json.__file__, True),
        ("<frozen abc>", True),
        (str(Path(json.__file__).parent.parent / "site-packages" / "equinox" / "__init__.py"), False),
        (__file__, False),
        ("<string>", False),
    ],
)
def test_where_the_standard_library_is(file, standard):
    assert unflattening._is_standard(file) is standard


def test_a_profiler_is_left_alone():
    tree = tree_structure(Base(X))

    def profile(*_):
        pass

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        found = doubtful(tree)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)
    assert "profiler" in found
