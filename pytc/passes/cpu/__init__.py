"""What a CPU's compiler would take for a choice of pairs: the part of XLA that decides on memory, followed in small.

    fusion      which steps become one loop, and so which values are stored
    copies      which inputs and results of pairs are copied, so that no loop reads what has been written over
    schedule    in which order the loops run
    buffers     which of what is stored can have a result's memory before the result is written there
    small       the choice of pairs for which all that comes to the fewest bytes

Each follows what XLA does, as its source and its outcome show: of random programs of steps on elements, nineteen in
twenty choices take to the byte what is computed here (`tests/passes/test_cpu.py`). What the compiler simplifies first,
and what it needs inside of its steps, is not known. A wrong figure costs memory, never a result.

It is for small programs: an integrator's step, an update rule. There every buffer counts, and whether a copy pays
depends on all of the above. Of large ones `alias` knows enough without: a copy finds a place among all their
temporaries.
"""

from pytc.passes.cpu.small import Small, smallest

__all__ = ["Small", "smallest"]
