"""Whether a function that puts a part of a result together does nothing but build.

Its bytecode is executed symbolically, for CPython 3.11 to 3.13, with what it was called with. Of a value it is known
what kind of thing it is, and each instruction must be one of those that do the same each time with such things, and run
no code but functions written in Python, which are looked at by themselves. So

- what is called is told: a function written in Python, a class whose objects such functions make and which has no
  `__del__`, or one of a few classes and functions of the interpreter's that build containers;
- stored is only into what was made here: nothing else changes, and nothing that was there before is dropped;
- looked into is only what was made here, and containers that do not change;
- globals, and variables of functions that have returned, are read if they are code;
- it branches only on the identity of what is the same each time, and handles no exceptions.

What a few packages (`BUILDERS`) do themselves to put their own nodes together is taken to be of that kind; others'
functions must not call them, since they might call what they are handed.

values     what is known of a value
code       which classes and functions run no code that is not looked at
newcomers  which objects are new
outside    what a function has from outside: arguments, globals, variables of outer functions
record     what has been seen so far of the functions that put one result together
execution  the symbolic execution of one function
results    what calls return in it
"""

from pytc.calls.building.code import BUILDERS, CONTAINERS, FUNCTIONS, METHODS, is_of_python
from pytc.calls.building.execution import only_builds
from pytc.calls.building.record import Record

__all__ = ["BUILDERS", "CONTAINERS", "FUNCTIONS", "METHODS", "Record", "is_of_python", "only_builds"]
