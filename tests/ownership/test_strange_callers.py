"""Programs that go behind the proof's back, as text: each must read the same under the prover as without donation.

Besides what a program reads itself, everything that it leaves behind in its namespace is read at its end. `f` returns
its first argument anew, `f2` both; `new` makes an array, `read` reads all arrays in a value.
"""

from __future__ import annotations

import itertools
import textwrap
import types
from typing import Any

import pytest

import pytc
from tests.ownership.fuzz_compiled import Compiled, automatic, plain
from tests.ownership.harness import Stub, both, first

PROGRAMS = {
    "a helper that looks at its caller": """
        import inspect
        def logged(x):
            x = f(x)
            read(list(inspect.currentframe().f_back.f_locals.values()))
            return x
        def run():
            x = new()
            y = logged(x)
            return y
        run(); run(); run()
        """,
    "a helper that looks at a field of its caller's": """
        import sys
        def logged(x):
            x = f(x)
            read(sys._getframe(1).f_locals["state"])
            return x
        def run():
            state = {"a": new(), "b": new()}
            y = logged(state["a"])
            read(state["b"])
            return y
        run(); run(); run()
        """,
    "a helper whose frame is held while it runs": """
        import sys
        def frame(): return sys._getframe(1)
        def inner(x): return f(x)
        def middle(x, held):
            held.append(frame())
            x = inner(x)
            read(held.pop().f_back.f_locals["x"])
            return x
        def run():
            x = new()
            return middle(x, [])
        run(); run(); run()
        """,
    "a thread that reads a local's list": """
        import threading
        kept = [new()]
        def run():
            x = kept[0]
            thread = threading.Thread(target=lambda: read(kept))
            thread.start()
            x = f(x)
            thread.join()
            read(x)
        run(); run()
        """,
    "loops in threads": """
        import threading
        box = Box(a=new())
        def loop():
            for _ in range(5):
                box.a = f(box.a)
        threads = [threading.Thread(target=loop) for _ in range(2)]
        for t in threads: t.start(); t.join()
        """,
    "two tasks on one state": """
        import asyncio
        box = Box(a=new())
        async def work():
            for _ in range(3):
                x = box.a
                await asyncio.sleep(0)
                y = f(x)
                await asyncio.sleep(0)
                read(box.a)
                box.a = y
        async def main():
            await asyncio.gather(work(), work())
        asyncio.run(main())
        """,
    "a task that is cancelled": """
        import asyncio, contextlib
        async def work(x):
            try:
                while True:
                    y = f(x)
                    await asyncio.sleep(0)
                    x = y
            except asyncio.CancelledError:
                read(x)
        async def main():
            task = asyncio.create_task(work(new()))
            for _ in range(4):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        asyncio.run(main())
        """,
    "a generator that is thrown at": """
        def states(x):
            while True:
                try:
                    y = f(x)
                    yield y
                    x = y
                except ValueError:
                    yield read(x)
        it = states(new())
        for _ in range(3):
            read(next(it)); read(it.throw(ValueError)); next(it)
        """,
    "a generator that is closed": """
        def states(x):
            try:
                y = f(x)
                yield y
            finally:
                read(x)
        for _ in range(3):
            it = states(new()); next(it); it.close()
        """,
    "a generator that is sent its own state": """
        def states(x):
            while True:
                x = yield f(x)
        it = states(new())
        y = next(it)
        for _ in range(3):
            z = it.send(y); read((y, z)); y = z
        """,
    "delegation": """
        def inner(x):
            y = yield x
            return f(x), y
        def outer(x):
            pair = yield from inner(x)
            yield pair
            read(x)
        for _ in range(3):
            it = outer(new()); read(next(it)); read(it.send(1)); list(it)
        """,
    "an asynchronous generator": """
        import asyncio
        async def states(x):
            for _ in range(3):
                y = f(x)
                yield x
                x = y
        async def main():
            async for x in states(new()):
                read(x)
        asyncio.run(main())
        """,
    "a walrus in a comprehension": """
        def run(x):
            ys = [(x := f(x)) for _ in range(3)]
            read((x, ys))
        run(new()); run(new())
        """,
    "a walrus in a condition": """
        def run(x):
            while (y := f(x)) is not None and len(kept) < 3:
                kept.append(x); x = y
            read((x, y))
        kept = []
        run(new())
        """,
    "match captures": """
        def run(state):
            for _ in range(3):
                match state:
                    case {'p': part, **rest}:
                        new_part = f(part)
                        read((part, rest))
                        state = {'p': new_part, **rest}
        run({'p': new(), 'q': new()})
        """,
    "match on a class": """
        class Point:
            __match_args__ = ('x', 'y')
            def __init__(self, x, y): self.x, self.y = x, y
        def run(p):
            match p:
                case Point(x, y):
                    x, y = f2(x, y)
            read((p.x, p.y, x, y))
        for _ in range(3): run(Point(new(), new()))
        """,
    "exception groups": """
        def run(x):
            try:
                y = f(x)
                raise ExceptionGroup('', [ValueError(y), TypeError()])
            except* ValueError as group:
                read((x, group.exceptions[0].args))
            except* TypeError:
                read(x)
        for _ in range(3): run(new())
        """,
    "a group that goes on": """
        def run(x):
            try:
                try:
                    x2 = f(x)
                    raise ExceptionGroup('', [ValueError()])
                except* TypeError:
                    pass
            except* ValueError:
                read(x)
        for _ in range(3): run(new())
        """,
    "a manager that swallows": """
        class Swallow:
            def __enter__(self): return self
            def __exit__(self, *_): return True
        def run(x):
            with Swallow():
                y = f(x)
                raise ValueError
            read(x)
        for _ in range(3): run(new())
        """,
    "a manager that looks": """
        class Looks:
            def __init__(self, box): self.box = box
            def __enter__(self): return self
            def __exit__(self, *_): read(self.box.a)
        box = Box(a=new())
        for _ in range(3):
            with Looks(box):
                y = f(box.a)
            box.a = y
        """,
    "a manager whose exit returns from a loop": """
        class Breaks:
            def __enter__(self): return self
            def __exit__(self, *_): return True
        def run(x):
            for _ in range(3):
                with Breaks():
                    x2 = f(x)
                    if len(seen) == 1: return read(x)
                    seen.append(1)
                    x = x2
                    continue
        seen = []
        run(new())
        """,
    "a descriptor": """
        class Logged:
            def __set_name__(self, owner, name): self.name = '_' + name
            def __get__(self, owner, kind): return getattr(owner, self.name)
            def __set__(self, owner, value): log.append(getattr(owner, self.name, None)); setattr(owner, self.name, value)
        class Owner:
            a = Logged()
        log, owner = [], Owner()
        owner.a = new()
        for _ in range(3): owner.a = f(owner.a)
        read(log)
        """,
    "a descriptor that only reads": """
        class First:
            def __get__(self, owner, kind): return owner.states[0]
        class Owner:
            a = First()
        owner = Owner(); owner.states = [new()]
        for _ in range(3):
            y = f(owner.a); read(owner.states); owner.states[0] = y
        """,
    "getattr that hands on": """
        class Proxy:
            def __init__(self, to): self.__dict__['to'] = to
            def __getattr__(self, name): return getattr(self.to, name)
        box = Box(a=new()); proxy = Proxy(box)
        for _ in range(3):
            proxy.a = f(proxy.a); read(box.a)
            del proxy.__dict__['a']
        """,
    "setattr that keeps the old one": """
        class Undo:
            def __setattr__(self, name, value):
                self.__dict__.setdefault('old', []).append(self.__dict__.get(name)); self.__dict__[name] = value
        undo = Undo(); undo.a = new()
        for _ in range(3): undo.a = f(undo.a)
        read(undo.old)
        """,
    "getattribute that counts": """
        class Counts:
            def __getattribute__(self, name):
                value = object.__getattribute__(self, name)
                seen.append(value)
                return value
        seen, owner = [], Counts()
        owner.a = new()
        for _ in range(3): owner.a = f(owner.a)
        """,
    "a class whose setattr comes later": """
        class Owner: pass
        owner = Owner(); owner.a = new()
        def step(): owner.a = f(owner.a)
        step(); step()
        old = []
        Owner.__setattr__ = lambda self, name, value: (old.append(self.a), object.__setattr__(self, name, value))
        step(); step()
        """,
    "a property that comes later": """
        class Owner: pass
        owner = Owner(); owner.a = new()
        def step(): owner.a = f(owner.a)
        step(); step()
        history = [owner.a]
        Owner.a = property(lambda self: history[-1], lambda self, value: history.append(value))
        step(); step()
        """,
    "slots with a property of the same name": """
        class Base: __slots__ = ('a',)
        class Derived(Base):
            @property
            def a(self): return Base.a.__get__(self)
            @a.setter
            def a(self, value): old.append(Base.a.__get__(self)); Base.a.__set__(self, value)
        old, owner = [], Derived()
        Base.a.__set__(owner, new())
        for _ in range(3): owner.a = f(owner.a)
        """,
    "an object that changes its class": """
        class A: pass
        class B:
            def __setattr__(self, name, value): old.append(self.a); self.__dict__[name] = value
        old, owner = [], A()
        owner.a = new()
        for i in range(4):
            if i == 2: owner.__class__ = B
            owner.a = f(owner.a)
        """,
    "a weak reference's callback": """
        import weakref
        class Holder: pass
        box = Box(a=new(), b=Holder())
        watch = weakref.ref(box.b, lambda _: read(box.a))
        def both_at_once(): return f(box.a), 0
        box.b, box.a = f2(new(), box.a)
        """,
    "a weak dictionary": """
        import weakref
        cache = weakref.WeakValueDictionary()
        def run(x):
            cache['x'] = x
            y = f(x)
            read(dict(cache))
            return y
        x = new()
        for _ in range(3): x = run(x)
        """,
    "finalize": """
        import weakref
        def run():
            x = new()
            finalizer = weakref.finalize(x, print, end='')
            y = f(x)
            read(finalizer.peek()[0])
        run(); run()
        """,
    "a chain of maps": """
        from collections import ChainMap
        base = {'k': new()}
        chain = ChainMap({}, base)
        for _ in range(3):
            chain['k'] = f(chain['k']); read(base)
            del chain.maps[0]['k']
        """,
    "context variables": """
        import contextvars
        var = contextvars.ContextVar('state')
        var.set(new())
        def step(): var.set(f(var.get()))
        before = contextvars.copy_context()
        for _ in range(3): step()
        read((var.get(), before[var]))
        token = var.set(f(var.get()))
        var.reset(token)
        read(var.get())
        """,
    "partial with the state": """
        import functools
        x = new()
        step = functools.partial(f, x)
        for _ in range(3): y = step()
        read((x, step.args))
        """,
    "a cache keyed by nothing": """
        import functools
        @functools.cache
        def initial(): return new()
        def run():
            x = initial()
            for _ in range(3): x = f(x)
            return x
        read((run(), run(), initial()))
        """,
    "a cached property": """
        import functools
        class Model:
            @functools.cached_property
            def state(self): return new()
        model = Model()
        for _ in range(3): y = f(model.state)
        read(model.state)
        for _ in range(3): model.state = f(model.state)
        read(model.state)
        """,
    "a copy that shares": """
        import copy
        class Model: pass
        model = Model(); model.state = {'w': new()}
        for _ in range(3):
            best = copy.copy(model)
            model.state = f(model.state)
            read(best.state)
        """,
    "a shallow copy of the state": """
        state = {'w': new(), 'inner': {'v': new()}}
        def run(state):
            for _ in range(3):
                best = dict(state)
                state = f(state)
                read(best)
        run(state); read(state)
        """,
    "a deep copy's memo": """
        import copy
        def run(x):
            memo = {}
            kept = copy.deepcopy({'x': [1], 'y': (x,)}, memo) if False else {'y': (x,)}
            x = f(x)
            read(kept)
        run(new()); run(new())
        """,
    "pickling in the loop": """
        import pickle
        class Box2(dict):
            def __reduce__(self): read(self['x']); return (int, ())
        def run(x):
            for _ in range(3):
                holder = Box2(x=x)
                y = f(x)
                pickle.dumps(holder)
                x = y
        run(new())
        """,
    "a profiler for a while": """
        import sys
        def run(x):
            y = f(x)
            return y
        def look(frame, event, arg):
            if frame.f_code is run.__code__ and event == 'return': read(dict(frame.f_locals).get('x'))
        run(new())
        sys.setprofile(look); run(new()); run(new()); sys.setprofile(None)
        run(new())
        """,
    "a monitor for a while": """
        import sys
        def run(x):
            y = f(x)
            return y
        def look(code, *_):
            if code is run.__code__: read(dict(sys._getframe(1).f_locals).get('x'))
        run(new()); run(new())
        if hasattr(sys, 'monitoring'):
            m = sys.monitoring
            m.use_tool_id(3, 'looks'); m.register_callback(3, m.events.PY_RETURN, look)
            m.set_local_events(3, run.__code__, m.events.PY_RETURN)
            run(new()); run(new())
            m.set_local_events(3, run.__code__, 0); m.free_tool_id(3)
        run(new())
        """,
    "a decorator that keeps arguments": """
        import functools
        seen = []
        def logged(fun):
            @functools.wraps(fun)
            def wrapper(*args, **kwargs):
                seen.append(args)
                return fun(*args, **kwargs)
            return wrapper
        step = logged(f)
        def run(x):
            for _ in range(3): x = step(x)
            return x
        run(new())
        """,
    "a decorator that tries again": """
        def retry(fun):
            def wrapper(*args):
                y = fun(*args)
                return fun(*args)
            return wrapper
        step = retry(f)
        def run(x):
            for _ in range(3): x = step(x)
            return x
        read(run(new()))
        """,
    "a decorator that tries again on failure": """
        class Once(Exception): pass
        failed = []
        def flaky(x):
            y = f(x)
            if len(failed) < 2:
                failed.append(1)
                raise Once
            return y
        def retry(*args):
            while True:
                try:
                    return flaky(*args)
                except Once:
                    read(args)
        def run(x):
            for _ in range(3): x = retry(x)
            return x
        run(new())
        """,
    "compiled calls compiled": """
        def inner(x): return f(x)
        def outer(x): return inner(f(x)), x
        def run(x):
            for _ in range(3): x, old = outer(x); read(old)
            return x
        run(new())
        """,
    "a subclass of dict that keeps": """
        class Keeps(dict):
            def __setitem__(self, key, value):
                old.append(self.get(key)); super().__setitem__(key, value)
        old, d = [], Keeps(k=new())
        for _ in range(3): d['k'] = f(d['k'])
        """,
    "a subclass of list that keeps": """
        class Keeps(list):
            def __setitem__(self, key, value):
                old.append(self[key]); super().__setitem__(key, value)
        old, c = [], Keeps([new()])
        for _ in range(3): c[0] = f(c[0])
        """,
    "a dictionary with a default": """
        from collections import defaultdict
        d = defaultdict(new)
        for k in 'aab': d[k] = f(d[k]); read(dict(d))
        """,
    "globals edited": """
        x = new()
        def run():
            global x
            globals()['y'] = x
            x = f(x)
            read(y)
        run(); run()
        """,
    "globals swapped by a helper": """
        x = new()
        def helper(value):
            global y
            y = value
            return f(value)
        def run():
            global x
            x = helper(x)
            read(y)
        run(); run()
        """,
    "a module's attribute": """
        import types
        m = types.ModuleType('m'); m.x = new(); alias = vars(m)
        for _ in range(3): m.x = f(m.x); read(alias['x'])
        class M(types.ModuleType):
            x = property(lambda self: kept[-1], lambda self, value: kept.append(value))
        kept = [new()]; m2 = M('m2')
        for _ in range(3): m2.x = f(m2.x)
        """,
    "executed code": """
        space = {'f': f, 'read': read, 'x': new()}
        for _ in range(3): exec('old = [x]\\nx = f(x)\\nread(old)', space)
        """,
    "executed with two namespaces": """
        outer, inner = {'f': f, 'x': new(), 'read': read}, {}
        for _ in range(3): exec('x = f(x)', outer, inner); read((outer['x'], inner['x'])); inner.clear()
        """,
    "executed in a mapping": """
        class Names(dict):
            def __missing__(self, key): return outer[key]
        outer = {'x': new(), 'f': f}
        names = Names()
        for _ in range(3): exec('x = f(x)', {'__builtins__': {}}, names); read((outer['x'], names['x'])); names.clear()
        """,
    "class bodies": """
        x = new()
        class A:
            x = f(x)
            y = x
            x = f(x)
        read((A.x, A.y))
        """,
    "a class attribute": """
        class A: state = new()
        class B(A): pass
        for _ in range(3): B.state = f(B.state); read(A.state)
        for _ in range(3): A.state = f(A.state)
        read((A.state, B.state))
        """,
    "an instance in front of a class": """
        class A: state = new()
        a, b = A(), A()
        for _ in range(3): a.state = f(a.state)
        read((a.state, b.state, A.state))
        """,
    "a signal that comes later": """
        import signal
        box = Box(a=new())
        def step(): box.a = f(box.a)
        step(); step()
        before = signal.signal(signal.SIGUSR1, lambda *_: read(box.a))
        step(); signal.raise_signal(signal.SIGUSR1); step()
        signal.signal(signal.SIGUSR1, before)
        """,
    "at exit": """
        import atexit
        box = Box(a=new())
        def last(): read(box.a)
        atexit.register(last)
        for _ in range(3): box.a = f(box.a)
        atexit.unregister(last); last()
        """,
    "a callback registered with the state": """
        import atexit
        def run(x):
            atexit.register(read, x)
            y = f(x)
            atexit.unregister(read)
            read(x)
        run(new()); run(new())
        """,
    "an exit stack": """
        import contextlib
        def run(x):
            with contextlib.ExitStack() as stack:
                stack.callback(read, x)
                x = f(x)
                x = f(x)
        run(new()); run(new())
        """,
    "a double buffer": """
        def run(a, b):
            for _ in range(4):
                c = f(a)
                a, b = b, c
                read((a, b))
        run(new(), new())
        """,
    "shuffled slots": """
        box = Box(a=new(), b=new(), c=new())
        for _ in range(4):
            box.a, box.b, box.c = box.b, box.c, f(box.a)
        for _ in range(4):
            box.a, box.b = box.b, f(box.a); read((box.a, box.b))
        """,
    "two names in one assignment": """
        box = Box(a=new())
        def run(x):
            for _ in range(3):
                y = x
                x = box.a = f(x)
                read((x, box.a))
            read(y)
        run(box.a)
        """,
    "augmented items": """
        class Sum:
            def __init__(self, x): self.x = x
            def __add__(self, other): return Sum(f(self.x))
        d = {'s': Sum(new())}
        kept = [d['s']]
        for _ in range(3): d['s'] += 1; kept.append(d['s'])
        read([s.x for s in kept])
        """,
    "an operator that returns its left side": """
        class Acc:
            def __init__(self, x): self.x = x
            def __iadd__(self, other): old.append(self.x); self.x = f(self.x); return self
        old, acc = [], Acc(new())
        for _ in range(3): acc += 1
        """,
    "chained comparison": """
        class C:
            def __init__(self, x): self.x = x
            def __lt__(self, other): f(self.x); return True
        def run(a, b, c):
            a < b < c
            read((a.x, b.x, c.x))
        for _ in range(3): run(C(new()), C(new()), C(new()))
        """,
    "sorting states": """
        states = [{'x': new()} for _ in range(3)]
        states.sort(key=lambda s: len(f(s)))
        read(states)
        """,
    "iterating over what is replaced": """
        states = [new(), new()]
        def run():
            for i, x in enumerate(states):
                states[i] = f(x)
                read(x)
        run(); run()
        """,
    "items of a dictionary while it changes": """
        d = {k: new() for k in 'abc'}
        def run():
            for k, x in d.items():
                d[k] = f(x)
            read(x)
        run(); run()
        """,
    "an iterator that is copied": """
        import itertools
        a, b = itertools.tee([new(), new(), new()])
        for x in a: y = f(x)
        read(list(b))
        """,
    "cycles of a pool": """
        import itertools
        pool = itertools.cycle([new(), new()])
        for x, _ in zip(pool, range(5)): y = f(x)
        read(next(pool))
        """,
    "zip with itself": """
        it = iter([new() for _ in range(4)])
        for x, y in zip(it, it): x2 = f(x); read((x, y))
        """,
    "a comprehension that fails, and its list read then": """
        def run(n):
            states = [new(), new(), new()]
            try:
                states = [f(x) if i < n else 1 / 0 for i, x in enumerate(states)]
            except ZeroDivisionError:
                pass
            read(states)
        for n in (3, 3, 3, 1, 2): run(n)
        """,
    "a comprehension that fails in a helper": """
        def step(states, n):
            return {k: f(x) if k != n else 1 / 0 for k, x in states.items()}
        def run(n):
            states = {'a': new(), 'b': new()}
            try:
                states = step(states, n)
            except ZeroDivisionError:
                read(states)
            return states
        for n in ('c', 'c', 'c', 'b', 'a'): read(run(n))
        """,
    "one state twice in a list": """
        def run():
            x = new()
            states = [x, new(), x]
            del x
            states = [f(x) for x in states]
            read(states)
        for _ in range(3): run()
        """,
    "one state twice in a dictionary": """
        def run():
            x = new()
            states = {'a': x, 'b': new(), 'c': x}
            del x
            states = {k: f(x) for k, x in states.items()}
            read(states)
        for _ in range(3): run()
        """,
    "two loops through one list": """
        def run():
            states = [new(), new()]
            for x in states:
                for y in states:
                    z = f(y)
                read(x)
            read(z)
        for _ in range(3): run()
        """,
    "a list in two loops of one `zip`": """
        def run():
            states = [new(), new(), new()]
            read([f2(x, y) for x, y in zip(states, states)])
            read([f(x) for x, y in zip(states, states[1:]) if read(y) is None])
        for _ in range(3): run()
        """,
    "an iterator that goes on in its loop": """
        def run():
            states = [new() for _ in range(4)]
            it = iter(states)
            del states
            for x in it:
                y = f(x)
                read((y, next(it)))
        for _ in range(3): run()
        """,
    "an iterator that goes on in a function": """
        def step(it):
            for i, x in it:
                return f(x), next(it, None)
        def run():
            states = [new() for _ in range(4)]
            it = enumerate(states)
            del states
            read((step(it), step(it)))
        for _ in range(3): run()
        """,
    "pairs that are kept": """
        def run():
            states = {'a': new(), 'b': new()}
            old = []
            for pair in states.items():
                k, x = pair
                del k
                if len(old) == 1: old.append(pair)
                else: old.append(None)
                del pair
                x = f(x)
            read(old)
        for _ in range(3): run()
        """,
    "a list that begins anew": """
        def run():
            states = [new(), new()]
            while True:
                for x in states:
                    y = f(x)
                    if flips.pop(): break
                else:
                    break
            read(y)
        for _ in range(3):
            flips = [False, False, True, True]
            run()
        """,
    "a list in front of which something is put": """
        def run():
            states = [new(), new(), new()]
            for i, x in enumerate(states):
                if i == 1: states.insert(0, new())
                if i < 4: states[i] = f(x)
                read(states)
        for _ in range(3): run()
        """,
    "a list that counts how often it is asked": """
        class Asked(list):
            def __len__(self):
                asked.append(f(self[-1]))
                return super().__len__()
        asked = []
        def run():
            states = Asked([new(), new()])
            read([f(x) for x in states])
        for _ in range(3): run()
        """,
    "generators that share a list": """
        def each(states):
            for x in states: yield f(x)
        def run():
            states = [new(), new(), new()]
            one, other = each(states), each(states)
            del states
            for a, b in zip(one, other): read((a, b))
        for _ in range(3): run()
        """,
    "a loop through a list that a generator has": """
        def each(states):
            for x in states: yield x
        def run():
            read([f(x) for x in each([new(), new(), new()])])
            states = [new(), new()]
            last = [f(x) for i, x in enumerate(each(states))]
            read((last, states))
        for _ in range(3): run()
        """,
    "accumulated": """
        import itertools
        states = list(itertools.accumulate(range(3), lambda s, _: f(s), initial=new()))
        read(states)
        """,
    "starred maps": """
        import itertools
        pairs = [(new(), new()) for _ in range(3)]
        read(list(itertools.starmap(f, pairs))); read(pairs)
        """,
    "reduced": """
        import functools
        history = []
        def step(s, b): history.append(s); return f(s)
        read(functools.reduce(step, range(3), new())); read(history)
        """,
    "a lambda with a default": """
        def run(x):
            look = lambda kept=x: kept
            x = f(x); x = f(x)
            read(look())
        run(new()); run(new())
        """,
    "a closure made later": """
        def run(x):
            y = f(x)
            def look(): return x
            read(look())
        run(new()); run(new())
        """,
    "a closure over the loop variable": """
        looks = []
        def run():
            for x in [new(), new()]:
                looks.append(lambda: x)
                x = f(x)
        run(); read([look() for look in looks])
        """,
    "nonlocal in two functions": """
        def make():
            x = new()
            def step():
                nonlocal x
                old.append(x)
                x = f(x)
            def look(): return x
            return step, look
        old = []
        step, look = make()
        for _ in range(3): step(); read(look())
        """,
    "a cell that is read by hand": """
        def make():
            x = new()
            def step():
                nonlocal x
                x = f(x)
            return step
        step = make()
        cell = step.__closure__[0]
        for _ in range(3):
            old = cell.cell_contents; step(); read((old, cell.cell_contents))
        """,
    "a function that replaces itself": """
        def step(x):
            global step
            old.append(x)
            step = f
            return f(x)
        old = []
        def run(x):
            for _ in range(3): x = step(x)
            return x
        run(new())
        """,
    "recursion": """
        def descend(x, n):
            if n == 0: return x
            y = descend(f(x), n - 1)
            return y if n % 2 else read(x)
        read(descend(new(), 4)); read(descend(new(), 4))
        """,
    "mutual recursion that hands on": """
        def even(x, n): return x if n == 0 else odd(f(x), n - 1)
        def odd(x, n): return even(f(x), n - 1)
        x = new()
        for _ in range(3): y = even(x, 4); read((x, y))
        """,
    "an argument that is also self": """
        class Model:
            def __init__(self): self.x = new()
            def step(self, x): return f(x)
            def run(self): y = self.step(self.x); read(self.x); self.x = y
        model = Model()
        for _ in range(3): model.run()
        """,
    "a bound method of the state": """
        import jax
        @jax.tree_util.register_pytree_node_class
        class State:
            def __init__(self, x): self.x = x
            def tree_flatten(self): return (self.x,), None
            @classmethod
            def tree_unflatten(cls, aux, parts): return cls(*parts)
            def step(self): return f(self)
        def run(s):
            for _ in range(3):
                old = s
                s = s.step()
                read((old.x, s.x))
        run(State(new()))
        """,
    "finally that overrides": """
        def run(x):
            for _ in range(2):
                try:
                    y = f(x)
                    continue
                finally:
                    read(x)
                    x = y
            return x
        run(new()); run(new())
        """,
    "break out of finally": """
        def run(x):
            while True:
                try:
                    y = f(x)
                    raise ValueError
                except ValueError:
                    break
            read(x)
        run(new()); run(new())
        """,
    "an unbound variable": """
        def run(x, flag):
            try:
                if flag: y = 1
                z = f(x)
                y
            except UnboundLocalError:
                read(x)
        for flag in (1, 0, 1, 0): run(new(), flag)
        """,
    "unpacking that fails": """
        def pair(x): return f(x), 1, 2
        def run(x):
            try: x, y = pair(x)
            except ValueError: read(x)
        for _ in range(3): run(new())
        """,
    "deleted and read": """
        def run(x):
            y = f(x)
            try:
                del x
                x
            except UnboundLocalError:
                x = y
            read(x)
        run(new()); run(new())
        """,
    "type of the state changes": """
        def run(x):
            for i in range(6):
                old = x
                x = f((x,)) if i % 2 else f([x])
                x = x[0]
                if i == 3: read(old)
        run(new())
        """,
    "shards handed around": """
        def run(x):
            for _ in range(3):
                shard = x.addressable_data(0)
                x = f(x)
                read(shard)
        run(new())
        """,
    "waiting for it in a thread": """
        import jax, threading
        def run(x):
            for _ in range(3):
                waiter = threading.Thread(target=jax.block_until_ready, args=(x,))
                y = f(x)
                waiter.start(); waiter.join()
                x = y
        run(new())
        """,
    "a future": """
        from concurrent.futures import ThreadPoolExecutor
        box = Box(a=new())
        with ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                future = pool.submit(f, box.a)
                read(box.a)
                box.a = future.result()
        """,
    "a thread's own state": """
        import threading
        local = threading.local()
        local.x = new()
        for _ in range(3): old = local.x; local.x = f(local.x); read(old)
        for _ in range(3): local.x = f(local.x)
        read(local.x)
        """,
    "a deque": """
        from collections import deque
        window = deque([new()], maxlen=2)
        for _ in range(4): window.append(f(window[-1])); read(list(window))
        for _ in range(4): window[-1] = f(window[-1])
        read(list(window))
        """,
    "a named tuple replaced": """
        from typing import NamedTuple
        class S(NamedTuple):
            a: object
            b: object
        def run(s):
            for _ in range(3):
                old = s
                s = s._replace(a=f(s.a))
                read((old, s))
        run(S(new(), new()))
        """,
    "a dataclass replaced": """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class S:
            a: object
            b: object
        def run(s):
            for _ in range(3):
                old = s
                s = dataclasses.replace(s, a=f(s.a))
                read((old.a, old.b, s.a, s.b))
        run(S(new(), new()))
        """,
    "a formula that was stored before": """
        import sys
        def evaluate(text):
            frame = sys._getframe(1)
            return eval(text, frame.f_globals, dict(frame.f_locals))
        def in_a_variable():
            formula, y = "[x]", None
            for _ in range(3):
                x = new()
                y = f(x)
                read(evaluate(formula))
        def in_a_container():
            formulas = {"a": "[x]"}
            for _ in range(3):
                x = new()
                y = f(x)
                read(evaluate(formulas["a"]))
        def made_of_two():
            formula = "[x" + str("]")
            for _ in range(3):
                x = new()
                y = f(x)
                read(evaluate(formula))
        in_a_variable(); in_a_container(); made_of_two()
        """,
    "a formula that an object has": """
        import sys
        class Formula:
            def __init__(self, text): self.text = text
            def value(self):
                frame = sys._getframe(1)
                return eval(self.text, frame.f_globals, dict(frame.f_locals))
            def __getitem__(self, key): return self.of(sys._getframe(1), key)
            def __add__(self, other): return self.of(sys._getframe(1), self.text)
            def __bool__(self): return bool(self.of(sys._getframe(1), self.text))
            def __iter__(self): return iter(self.of(sys._getframe(1), self.text))
            def of(self, frame, text): return eval(text, frame.f_globals, dict(frame.f_locals))
            attribute = property(lambda self: self.of(sys._getframe(1), self.text))
            def bind(self, n): return self
            def over(self, y): return self.of(sys._getframe(1), self.text)
        def by_a_method():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                y = f(x)
                read(formula.value())
        def by_a_property():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                y = f(x)
                read(formula.attribute)
        def by_a_key():
            text, formula = "[x]", Formula("")
            for _ in range(3):
                x = new()
                y = f(x)
                read(formula[text])
        def by_an_operator():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                y = f(x)
                read(formula + 1)
        def by_a_test():
            formula = Formula("read([x])")
            for _ in range(3):
                x = new()
                y = f(x)
                if formula: y = None
        def by_a_loop():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                y = f(x)
                for each in formula: read(each)
        def by_another_name():
            formula = Formula("[x]")
            other = formula
            for _ in range(3):
                x = new()
                y = f(x)
                read(other.value())
        def by_an_attribute():
            formula, box = Formula("[x]"), Box()
            box.formula = formula
            for _ in range(3):
                x = new()
                y = f(x)
                read(box.formula.value())
        def made_of_another():
            formula = Formula("[x]")
            bound = formula.bind(1)
            for _ in range(3):
                x = new()
                read(bound.over(f(x)))
        def by_a_helper():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                read(use(formula, f(x)))
        def use(formula, y):
            frame = sys._getframe(1)
            return formula.of(frame, formula.text)
        def behind_the_call():
            formula = Formula("[x]")
            for _ in range(3):
                x = new()
                read(formula + f(x))
        by_a_method(); by_a_property(); by_a_key(); by_an_operator(); by_a_test(); by_a_loop()
        by_another_name(); by_an_attribute(); made_of_another(); by_a_helper(); behind_the_call()
        """,
    "a formula that a statement binds": """
        import asyncio, contextlib, sys
        class Formula:
            def __init__(self, text): self.text = text
            def value(self):
                frame = sys._getframe(1)
                return eval(self.text, frame.f_globals, dict(frame.f_locals))
            def __enter__(self): return self
            def __exit__(self, *_): pass
            async def __aenter__(self): return self
            async def __aexit__(self, *_): pass
        @contextlib.contextmanager
        def formula(text): yield Formula(text)
        def formulas(text): yield Formula(text)
        def of_a_with():
            x = new()
            with Formula("[x]") as formula:
                y = f(x)
                return formula.value()
        def of_a_with_around():
            x = new()
            with contextlib.ExitStack() as stack:
                formula = stack.enter_context(Formula("[x]"))
                y = f(x)
                return formula.value()
        def of_a_generator():
            x = new()
            with formula("[x]") as made:
                y = f(x)
                return made.value()
        def of_no_name():
            x = new()
            with contextlib.nullcontext(Formula("[x]")) as made:
                y = f(x)
                return made.value()
        async def of_an_async_with():
            x = new()
            async with Formula("[x]") as formula:
                y = f(x)
                return formula.value()
        def of_a_loop():
            x = new()
            for formula in [Formula("[x]")]: pass
            y = f(x)
            return formula.value()
        def of_a_loop_over_text():
            x = new()
            for text in ("[x]", "[x, x]"): pass
            y = f(x)
            return value_of(text)
        def of_a_loop_over_a_generator():
            x = new()
            for formula in formulas("[x]"): pass
            y = f(x)
            return formula.value()
        def of_a_match():
            x = new()
            match [Formula("[x]"), 1]:
                case [formula, 1]:
                    y = f(x)
                    return formula.value()
        def of_an_exception():
            class Failed(Formula, Exception): pass
            x = new()
            try: raise Failed("[x]")
            except Failed as formula:
                y = f(x)
                return formula.value()
        class Failed(Formula, Exception): pass
        def fail(text): raise Failed(text)
        def of_an_exception_of_a_call():
            x = new()
            try: fail("[x]")
            except Failed as formula: text = formula.text
            y = f(x)
            return value_of(text)
        def of_an_exception_with_a_cause():
            x = new()
            try: raise Failed("[x]") from None
            except Failed as formula: text = formula.text
            y = f(x)
            return value_of(text)
        def of_an_exception_that_goes_on():
            x = new()
            try:
                try: raise Failed("[x]")
                finally: len("")
            except Failed as formula: text = formula.text
            y = f(x)
            return value_of(text)
        def of_an_exception_class():
            found = []
            def failing(text):
                class Failing(Exception):
                    def __init__(self): found.append(value_of(text))
                return Failing
            def run():
                x = new()
                failed = failing("[x]")
                y = f(x)
                raise failed
            try: run()
            except Exception: pass
            return found
        def of_unpacking():
            x = new()
            formula, *_ = [Formula("[x]"), 1, 2]
            y = f(x)
            return formula.value()
        def of_calls_of_calls():
            x = new()
            formula = list(map(Formula, ["[x]"]))[0]
            y = f(x)
            return formula.value()
        def of_a_comprehension():
            x = new()
            formulas = [Formula(f"[x, {n}]") for n in range(2)]
            y = f(x)
            return formulas[0].value()
        def of_a_generator_expression():
            x = new()
            texts = (f"[x, {n}]" for n in range(2))
            y = f(x)
            return value_of(next(texts))
        def of_a_lambda():
            x = new()
            text = lambda: "[x]"
            y = f(x)
            return value_of(text())
        def of_a_default():
            x = new()
            def text(text="[x]"): return text
            y = f(x)
            return value_of(text())
        def value_of(text):
            frame = sys._getframe(1)
            return eval(text, frame.f_globals, dict(frame.f_locals))
        for run in (
            of_a_with, of_a_with_around, of_a_generator, of_no_name, of_a_loop, of_a_loop_over_text,
            of_a_loop_over_a_generator, of_a_match, of_an_exception, of_an_exception_of_a_call,
            of_an_exception_with_a_cause, of_an_exception_that_goes_on, of_an_exception_class,
            of_unpacking, of_calls_of_calls,
            of_a_comprehension, of_a_generator_expression, of_a_lambda, of_a_default,
            lambda: asyncio.run(of_an_async_with()),
        ):
            for _ in range(3): read(run())
        """,
    "a formula on its way to a call": """
        import sys
        def evaluate(text, value):
            frame = sys._getframe(1)
            return eval(text, frame.f_globals, dict(frame.f_locals))
        def evaluate_stored(value):
            frame = sys._getframe(1)
            return eval(stored[0], frame.f_globals, dict(frame.f_locals))
        def evaluate_behind(text, x):
            x = f(x)
            frame = sys._getframe(1)
            return eval(text, frame.f_globals, dict(frame.f_locals))
        stored = []
        def passed():
            x = new()
            return evaluate("[x]", f(x))
        def one_of_two():
            x = new()
            return evaluate("x" if stored else "[x]", f(x))
        def made():
            x = new()
            return evaluate("[x{}".format("]"), f(x))
        def by_stars():
            x = new()
            return evaluate("[x]", *[f(x)])
        def by_a_store():
            x = new()
            stored[:] = ["[x]"]
            return evaluate_stored(f(x))
        def in_the_call():
            x = new()
            return evaluate_behind("[x]", x)
        def evaluate_all(names, value):
            frame = sys._getframe(1)
            return [frame.f_locals[name] for name in (names.values() if isinstance(names, dict) else names)]
        def evaluate_named(value, name):
            return evaluate_above(name)
        def evaluate_above(name):
            return sys._getframe(2).f_locals[name]
        def in_a_list():
            x, a, b = new(), 1, 2
            return evaluate_all(["x", "a", "b"], f(x))
        def in_a_set():
            x, a, b = new(), 1, 2
            return evaluate_all({"x", "a", "b"}, f(x))
        def added_to_a_list():
            x, others = new(), []
            return evaluate_all([*others, "x"], f(x))
        def in_a_dictionary():
            x, others = new(), {}
            return evaluate_all({**others, "k": "x"}, f(x))
        def among_keywords():
            x = new()
            return evaluate_named(**{"name": "x"}, value=f(x))
        for run in (passed, one_of_two, made, by_stars, by_a_store, in_the_call, in_a_list, in_a_set, added_to_a_list,
                    in_a_dictionary, among_keywords):
            for _ in range(3): read(run())
        """,
    "a slot, and the object that it is in": """
        kept, box = [], Box()
        def run():
            for _ in range(3):
                box.run = Box(a=new())
                kept.append(box.run.a)
                box.run.a, box.run = f2(box.run.a, new())
        run(); read(kept)
        """,
    "a slot, and the object that it is in, two frames apart": """
        class Trainer:
            def update(self):
                self.run.a, loss = f2(self.run.a, new())
                return loss
        kept, t = [], Trainer()
        def run():
            for _ in range(3):
                t.run = Box(a=new())
                kept.append(t.run.a)
                t.run = t.update()
        run(); read(kept)
        """,
    "an item, and the dictionary that it is in": """
        kept, box = [], Box()
        def run():
            for _ in range(3):
                box.d = {"x": new()}
                kept.append(box.d["x"])
                box.d["x"], box.d = f2(box.d["x"], new())
        run(); read(kept)
        """,
    "an item of a list that has two names": """
        kept, box = [], Box()
        def run():
            for _ in range(3):
                box.a = box.b = [new(), None]
                kept.append(box.a[0])
                box.a[0], box.a = f2(box.a[0], new())
                box.b = None
        run(); read(kept)
        """,
    "an item of a global that is overwritten too": """
        kept = []
        for _ in range(3):
            node = {"x": new()}
            kept.append(node["x"])
            node["x"], node = f2(node["x"], new())
        read(kept)
        """,
    "an item of a captured variable that is overwritten too": """
        kept = []
        def outer():
            d = None
            def run():
                nonlocal d
                for _ in range(3):
                    d = {"x": new()}
                    kept.append(d["x"])
                    d["x"], d = f2(d["x"], new())
            run()
        outer(); read(kept)
        """,
    "an object on the way, whose miscount makes up for another state's": """
        kept, box = [], Box()
        def run():
            for _ in range(3):
                box.run, box.q = Box(p=new()), new()
                kept.append(box.q)
                box.run.p, box.run = f2(box.run.p, box.q)
                box.q = None
        run(); read(kept)
        """,
    "a state at the end of a list that is dropped with it": """
        kept, box = [], Box()
        def run():
            for _ in range(3):
                box.pair = (Box(a=new()), None)
                kept.append(box.pair[0].a)
                box.pair[0].a, box.pair = f2(box.pair[0].a, new())
        run(); read(kept)
        """,
    "an attribute that a descriptor can only delete": """
        class Deleting:
            def __delete__(self, owner): raise AttributeError
        class Owner:
            a = Deleting()
        def run():
            owner = Owner()
            owner.__dict__["a"] = new()
            for _ in range(3):
                try: owner.a = f(owner.a)
                except AttributeError: pass
                read(owner.a)
        run()
        """,
    "variables by a builtin under another name": """
        import builtins
        builtins.everything = locals
        def run():
            x = new()
            for _ in range(3):
                y = f(x)
                read(everything()["x"])
                x = y
        try: run()
        finally: del builtins.everything
        """,
    "variables by a pattern": """
        import types
        def run():
            x = new()
            for _ in range(3):
                y = f(x)
                try: raise ValueError
                except ValueError as e:
                    match e.__traceback__:
                        case types.TracebackType(tb_frame=types.FrameType(f_locals=seen)):
                            read(seen["x"])
                            del seen
                x = y
        run()
        """,
    "variables by names with dots": """
        import operator, pkgutil, pydoc
        def by_getter():
            x = new()
            for _ in range(3):
                y = f(x)
                try: raise ValueError
                except ValueError as e: read(operator.attrgetter("__traceback__.tb_frame.f_locals")(e)["x"])
                x = y
        def by_module():
            x = new()
            for _ in range(3):
                y = f(x)
                read(pkgutil.resolve_name("builtins:locals")()["x"])
                x = y
        def by_path():
            x = new()
            for _ in range(3):
                y = f(x)
                read(pydoc.locate("builtins.locals")()["x"])
                x = y
        by_getter(); by_module(); by_path()
        """,
    "variables by a name among others": """
        import builtins
        def run():
            x = new()
            for _ in range(3):
                y = f(x)
                for name in ("locals",): read(getattr(builtins, name)()["x"])
                x = y
        run()
        """,
    "variables by the frame of a task": """
        import asyncio
        async def run():
            x = new()
            for _ in range(3):
                y = f(x)
                read(getattr(asyncio.current_task().get_stack()[-1], "f_locals")["x"])
                x = y
        asyncio.run(run())
        """,
    "text in keys and in bytes": """
        import sys
        def evaluate(text, frame):
            return eval(text, frame.f_globals, dict(frame.f_locals))
        def evaluated(texts):
            frame = sys._getframe(1)
            return [evaluate(text, frame) for text in texts]
        class Scope:
            def __getitem__(self, text): return evaluate(text, sys._getframe(1))
        scope = Scope()
        def by_keys(x):
            y = f(x)
            read(evaluated({"[x]": 1, "[x, x]": 2}))
        def by_bytes(x):
            y = f(x)
            read(evaluated([b"[x]"]))
        def in_brackets(x):
            y = f(x)
            read(scope["[x]"])
        for run in (by_keys, by_bytes, in_brackets):
            for _ in range(3): run(new())
        """,
    "a history by reference": """
        class History:
            def __init__(self): self.states = []
            def add(self, s): self.states.append(s); return s
        h = History()
        def run(x):
            for _ in range(3): x = h.add(f(x))
        run(new()); read(h.states)
        """,
}


class Box(types.SimpleNamespace):
    """An object with attributes."""


def run(source: str, stub: Any) -> list[int]:
    """What the program reads, and what it leaves behind."""
    space: dict[str, Any] = {"f": stub.compile(first), "f2": stub.compile(both), "new": stub.new, "read": stub.read}
    space |= {"Box": Box, "__name__": "__main__"}
    exec(compile(textwrap.dedent(source), "<strange>", "exec"), space)
    for value in [space[name] for name in sorted(space) if not name.startswith("__")]:
        if not isinstance(value, types.ModuleType | type | types.FunctionType):
            stub.read(value)
            stub.read(getattr(value, "__dict__", None))
    return stub.reads


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_reads_the_same(source: str) -> None:
    donating = Stub()
    assert run(source, donating) == run(source, Stub(None))
    assert donating.calls


@pytest.mark.parametrize("keys", [False, True], ids=["arrays", "keys"])
@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_reads_the_same_around_the_compiler(source: str, keys: bool) -> None:
    donating = Compiled(automatic(), keys)
    assert run(source, donating) == run(source, Compiled(plain(), keys))


@pytest.mark.parametrize("keys", [False, True], ids=["arrays", "keys"])
def test_much_is_taken_over_in_these_programs(keys: bool) -> None:
    """So that a compiler which keeps everything does not pass for one that keeps what is read."""
    functions = automatic()
    for source in itertools.islice(PROGRAMS.values(), 30):
        run(source, Compiled(functions, keys))
    sites = [site for function in functions.values() for site in pytc.explain(function).sites]
    assert sum(site.donated > 0 for site in sites) > len(sites) / 4
