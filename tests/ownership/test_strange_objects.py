"""More of the programs of `test_strange`: odd attributes, items and objects, odd ways out, odd onlookers."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import gc
import signal
import sys
import traceback
import types
import weakref
from typing import Any

import pytest

from tests.ownership.harness import expect_nothing_deleted

ALL: list[Any] = []


def strange(program):
    ALL.append(program)
    return program


@strange
def setter_chain(s, f, f2):
    class H:
        @property
        def hook(self):
            return None

        @hook.setter
        def hook(self, v):
            return self.helper()

        def helper(self):
            return f2(box.a, s.new())

    h = H()
    box = types.SimpleNamespace(a=s.new(), b=0)
    try:
        h.hook = box.a, box.b = (1, 2, 3)
    except ValueError:
        s.read(box.a)


@strange
def setitem_chain(s, f, f2):
    class H:
        def __setitem__(self, k, v):
            return f2(box.a, s.new())

    h = H()
    box = types.SimpleNamespace(a=s.new(), b=0)
    try:
        h[0] = box.a, box.b = (1, 2, 3)
    except ValueError:
        s.read(box.a)


@strange
def getitem_then_unpack(s, f, f2):
    class H:
        def __getitem__(self, k):
            return f2(box.a, s.new())

    h = H()
    box = types.SimpleNamespace(a=s.new(), b=0)
    for _ in range(20):
        box.a, box.b = h[0]
    s.read(box.a)


@strange
def contains_then_store(s, f, f2):
    class H:
        def __contains__(self, k):
            return f(box.a)

    h = H()
    box = types.SimpleNamespace(a=s.new(), b=0)
    for _ in range(20):
        try:
            box.a = 0 in h
        except Exception:
            s.read(box.a)
        s.read(box.a)


@strange
def bool_raises(s, f, f2):
    class H:
        def __bool__(self):
            return f(box.a)

    h = H()
    box = types.SimpleNamespace(a=s.new(), b=0)
    try:
        box.a = not h
    except TypeError:
        s.read(box.a)


@strange
def bool_raises_local(s, f, f2):
    class H:
        def __init__(self, x):
            self.x = x

        def __bool__(self):
            y = self.__dict__.pop("x")
            return f(y)

    x = s.new()
    h = H(x)
    try:
        x = not h
    except TypeError:
        s.read(x)


@strange
def len_that_is_no_number(s, f, f2):
    class H:
        def __init__(self, x):
            self.x = x

        def __len__(self):
            return f(self.__dict__.pop("x"))

    x = s.new()
    h = H(x)
    try:
        x = len(h)
    except (TypeError, ValueError):
        s.read(x)


@strange
def init_returns_not_none(s, f, f2):
    class H:
        def __init__(self, x):
            return f(x)

    x = s.new()
    for _ in range(20):
        try:
            x = H(x)
        except TypeError:
            s.read(x)


@strange
def init_returns_not_none_slot(s, f, f2):
    class H:
        def __init__(self):
            return f(box.a)

    box = types.SimpleNamespace(a=s.new())
    for _ in range(20):
        try:
            box.a = H()
        except TypeError:
            s.read(box.a)


@strange
def str_in_fstring(s, f, f2):
    class H:
        def __init__(self, x):
            self.x = x

        def __format__(self, spec):
            return f(self.__dict__.pop("x"))

    x = s.new()
    h = H(x)
    try:
        x = f"{h}"
    except TypeError:
        s.read(x)


@strange
def iter_returns_noniter(s, f, f2):
    class H:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            return f(self.__dict__.pop("x"))

    x = s.new()
    h = H(x)
    try:
        x, y = h
    except TypeError:
        s.read(x)


@strange
def readonly_member(s, f, f2):
    sl = slice(s.new(), None)
    try:
        sl.start = f(sl.start)
    except (AttributeError, TypeError):
        pass
    s.read(sl.start)


@strange
def readonly_member2(s, f, f2):
    p = property(s.new())
    try:
        p.fget = f(p.fget)
    except (AttributeError, TypeError):
        pass
    s.read(p.fget)


@strange
def helper_guard(s, f, f2):
    bad = []

    class Guard:
        def __del__(self):
            bad.append(box.a.is_deleted())

    def helper(x):
        guard = Guard()
        return f(x)

    box = types.SimpleNamespace(a=s.new())
    box.a = helper(box.a)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def negative_index_twice(s, f, f2):
    v = s.new()
    c = [v, 0]
    kept = [v]
    del v
    c[0], c[-2] = f2(c[0], s.new())
    s.read(kept)


@strange
def borg(s, f, f2):
    class P:
        pass

    p, q = P(), P()
    q.__dict__ = p.__dict__
    p.a = s.new()
    kept = [p.a]
    p.a, q.a = f2(p.a, s.new())
    s.read(kept)


@strange
def dict_of_instance(s, f, f2):
    class P:
        pass

    p = P()
    d = p.__dict__
    p.a = s.new()
    kept = [p.a]
    p.a, d["a"] = f2(p.a, s.new())
    s.read(kept)


@strange
def module_and_global(s, f, f2):
    m = types.ModuleType("m")
    m.f2, m.new, m.x, m.kept = f2, s.new, s.new(), []
    m.me = m
    exec("def run():\n    global x\n    kept.append(x)\n    x, me.x = f2(x, new())\nrun()", vars(m))
    s.read(m.kept)


@strange
def member_alias(s, f, f2):
    class S:
        __slots__ = ("a",)

    S.b = S.a
    o = S()
    o.a = s.new()
    kept = [o.a]
    o.a, o.b = f2(o.a, s.new())
    s.read(kept)


@strange
def alias_of_locals(s, f, f2):
    space = dict(f=f, s=s, L=locals)
    exec("def run(x):\n    y = f(x)\n    s.read(L()['x'])\n", space)
    space["run"](s.new())


@strange
def alias_of_getframe(s, f, f2):
    space = dict(f=f, s=s, G=sys._getframe)
    exec(
        "import operator\nget = operator.attrgetter('f_locals')\ndef run(x):\n    y = f(x)\n    s.read(get(G())['x'])\n",
        space,
    )
    space["run"](s.new())


@strange
def gc_callback(s, f, f2):
    bad = []
    box = types.SimpleNamespace(a=s.new())

    def cb(phase, info):
        bad.append(box.a.is_deleted())

    gc.callbacks.append(cb)
    old = gc.get_threshold()
    was = gc.isenabled()
    gc.enable()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(5):
            box.a = f(box.a)
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(cb)
        if not was:
            gc.disable()
    if any(bad):
        raise RuntimeError("deleted")


@strange
def swallowing_context(s, f, f2):
    x = s.new()
    with contextlib.suppress(Exception):
        y = f(x)
        raise ValueError
    s.read(x)


@strange
def try_finally_return(s, f, f2):
    def run(x):
        try:
            return f(x)
        finally:
            return s.read(x)

    run(s.new())


@strange
def for_target_attribute(s, f, f2):
    class T:
        pass

    t = T()
    t.x = s.new()
    for t.x in [s.new(), s.new()]:
        y = f(t.x)
        s.read(t.x)


@strange
def generator_args_yield(s, f, f2):
    def g(x):
        y = f((yield x))
        yield y

    x = s.new()
    it = g(x)
    z = next(it)
    it.send(z)
    s.read(z)


@strange
def augmented(s, f, f2):
    class A:
        def __init__(self, x):
            self.x = x

        def __iadd__(self, o):
            f(self.x)
            return self

    a = A(s.new())
    a += 1
    s.read(a.x)


@strange
def augmented_raise(s, f, f2):
    class A:
        def __init__(self, x):
            self.x = x

        def __iadd__(self, o):
            y = f(self.x)
            self.x = None
            raise ValueError

    x = s.new()
    a = A(x)
    try:
        a += 1
    except ValueError:
        s.read(x)


@strange
def nested_finally_slots(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    def helper(x):
        try:
            return f(x)
        finally:
            s.read(box.a)

    box.a = helper(box.a)


@strange
def listcomp_dead_name(s, f, f2):
    x = s.new()
    ys = [f(x) for x in [x]]
    s.read(x)


@strange
def walrus(s, f, f2):
    x = s.new()
    y = (f(x), x)
    s.read(y)


@strange
def class_cell(s, f, f2):
    class A:
        def go(self, x):
            y = f(x)
            return super().__init__, x

    s.read(A().go(s.new())[1])


@strange
def iter_dict_values_slot(s, f, f2):
    d = {"a": s.new(), "b": s.new()}
    for k, v in d.items():
        d[k] = f(v)
        s.read(v)
    s.read(d)


@strange
def iterator_slot(s, f, f2):
    l = [s.new(), s.new()]
    it = iter(l)
    for i, v in enumerate(it):
        l[i] = f(l[i])
        s.read(v)


@strange
def zipped(s, f, f2):
    l = [s.new(), s.new()]
    for i, (v, w) in enumerate(zip(l, l)):
        l[i] = f(v)
        s.read(w)


@strange
def deep_recursion(s, f, f2):
    def rec(n, x):
        if n:
            return rec(n - 1, x)
        try:
            x = f(x)
        except RecursionError:
            pass
        s.read(x)

    old = sys.getrecursionlimit()
    for n in range(20, 90, 5):
        depth = len(traceback.extract_stack())
        sys.setrecursionlimit(depth + 100)
        try:
            rec(n, s.new())
        except RecursionError:
            pass
        finally:
            sys.setrecursionlimit(old)


@strange
def getattr_hook(s, f, f2):
    class A:
        def __getattr__(self, name):
            return self.__dict__["_" + name]

    a = A()
    a._x = s.new()
    a.x = f(a.x)
    s.read(a._x)


@strange
def global_redirect(s, f, f2):
    g = {"f": f, "x": s.new(), "s": s}
    exec("def run():\n    global x\n    def peek():\n        return s.read(x)\n    x = f(x)\n    peek()\nrun()", g)


@strange
def exception_between_two(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    class D(dict):
        def __setitem__(self, k, v):
            raise KeyError

    d = D()
    try:
        d["k"], box.a = f2(box.a, s.new())
    except KeyError:
        s.read(box.a)


@strange
def list_index_error(s, f, f2):
    box = types.SimpleNamespace(a=s.new())
    l = []
    try:
        l[0], box.a = f2(s.new(), box.a)
    except IndexError:
        s.read(box.a)


@strange
def list_shrinks(s, f, f2):
    l = [s.new(), s.new()]

    class E:
        pass

    def helper(x):
        y = f(x)
        return y

    l[-1] = helper(l[-1])
    s.read(l)


@strange
def suspended_reader(s, f, f2):
    box = types.SimpleNamespace(a=s.new())

    def reader():
        while True:
            yield s.read(box.a)

    r = reader()
    next(r)
    box.a = f(box.a)
    next(r)


@strange
def default_dict_factory(s, f, f2):
    d = collections.defaultdict(s.new)
    d["k"] = f(d["k"])
    s.read(d["k"])


@strange
def module_level_comp(s, f, f2):
    g = {"f": f, "x": s.new(), "s": s}
    exec("y = [f(x) for x in [x]]\ns.read(x)", g)


@strange
def del_in_helper_temp(s, f, f2):
    bad = []

    class Guard:
        def __init__(self, v):
            self.v = v

        def __del__(self):
            bad.append(box.a.is_deleted())

        def go(self, x):
            return f(x)

    box = types.SimpleNamespace(a=s.new())
    box.a = Guard(1).go(box.a)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def iterator_in_helper(s, f, f2):
    bad = []

    def gen():
        try:
            yield 1
        finally:
            bad.append(box.a.is_deleted())

    def helper(x):
        for _ in gen():
            return f(x)

    box = types.SimpleNamespace(a=s.new())
    box.a = helper(box.a)
    if any(bad):
        raise RuntimeError("deleted")


@strange
def signal_handler_that_raises(s, f, f2):
    """A handler that raises when the call has donated already: the program goes on with the old value."""

    class Late(Exception):
        pass

    def late(*_):
        raise Late

    def struck(x):
        signal.raise_signal(signal.SIGALRM)
        return x

    step = s.compile(struck)
    before = signal.signal(signal.SIGALRM, late)
    x = s.new()
    try:
        try:
            x = step(x)
        except Late:
            s.read(x)
    finally:
        signal.signal(signal.SIGALRM, before)
    s.read(x)


@strange
def handlers_of_signals_and_slots(s, f, f2):
    class Late(Exception):
        pass

    def late(*_):
        raise Late

    def struck(x):
        signal.raise_signal(signal.SIGALRM)
        return x

    step = s.compile(struck)
    before = signal.signal(signal.SIGALRM, late)
    box = types.SimpleNamespace(a=s.new())
    try:
        with contextlib.suppress(Late):
            box.a = step(box.a)
    finally:
        signal.signal(signal.SIGALRM, before)
    s.read(box.a)


@contextlib.contextmanager
def not_interrupted():
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@strange
def function_that_is_next_of_its_arguments(s, f, f2):
    """The instruction of the call makes a tuple first, and asks the iterator for items by the function to be called."""

    class Arguments:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            return self

        def __next__(self):
            return f(self.__dict__.pop("x"))

    function = Arguments.__next__

    def run(x):
        arguments = Arguments(x)
        try:
            x = function(*arguments)
        except KeyError:
            s.read(x)

    with not_interrupted():
        for _ in range(8):
            run(s.new())


@strange
def function_that_is_next_of_its_arguments_and_keywords(s, f, f2):
    kept = []

    class Arguments:
        def __iter__(self):
            return self

        def __next__(self, state=None):
            f(kept[0])
            raise StopIteration

    function = Arguments.__next__
    for _ in range(8):
        kept[:] = [s.new()]
        with contextlib.suppress(TypeError):
            function(*Arguments(), **{"state": kept[0]})
        s.read(kept)


@strange
def destructor_after_a_starred_call(s, f, f2):
    """What was called is gone when the arguments die, but its place on the stack still says where it was."""

    kept = [s.new()]

    class Guard:
        def __del__(self):
            f(kept[0])  # so every caller is looked at, every time

    class Owner:
        def method(self, *_):
            return 0

    owner = Owner()
    for _ in range(500):
        owner.method(*(Guard(),))
        (lambda *_: 0)(*(Guard(),))
        methods, functions = [owner.method for _ in range(50)], [lambda: 0 for _ in range(50)]
        if len({*map(id, methods), *map(id, functions)}) != 100:
            raise RuntimeError("two objects in one place")
    gc.collect()


class Watched:
    """What weak references refer to."""


class Reference(weakref.ref):
    """One with a `__dict__`."""


@strange
def weak_references_that_call_back(s, f, f2):
    """They are kept for that, in variables, fields and arguments that nobody reads."""

    def keep(x, _):
        seen.append(x)

    def programs():
        watched, x = Watched(), s.new()
        reference = weakref.ref(watched, functools.partial(keep, x))  # noqa: F841
        x = f(x)
        yield
        watched, x = Watched(), s.new()
        proxy = weakref.proxy(watched, functools.partial(keep, x))  # noqa: F841
        x = f(x)
        yield
        watched, x = Watched(), s.new()
        d = {"kept": weakref.ref(watched, functools.partial(keep, x)), "x": x, "n": 0}
        x = None
        d = {"x": f(d["x"]), "n": d["n"]}
        watched = None
        yield

    seen = []
    for _ in range(2):
        for _ in programs():
            s.read(seen)
        s.read(seen)
        seen.clear()


@strange
def weak_references_that_are_found(s, f, f2):
    watched = Watched()
    reference = Reference(watched)
    reference.x = s.new()
    x = f(reference.x)
    s.read((x, weakref.getweakrefs(watched)[0].x))
    keyed = weakref.KeyedRef(watched, None, s.new())
    x = f(keyed.key)
    s.read((x, [getattr(each, "key", None) for each in weakref.getweakrefs(watched)]))


@strange
def what_c_code_calls_by_its_address(s, f, f2):
    def keep(x, _):
        seen.append(x)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    seen = []
    for _ in range(2):
        x = s.new()
        kept = kind(functools.partial(keep, x))
        called = kind(ctypes.c_void_p.from_buffer(kept).value)
        x = f(x)
        called(None)
        s.read((seen, x))


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_deleted_array(program):
    expect_nothing_deleted(program)
