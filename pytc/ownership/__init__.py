"""What is dead at a call: which leaves of the arguments nothing in the running program can read again.

Nothing sees the future of a Python program, but a call can count. All references to an object are in its reference
count. If each of them is accounted for, and the place it stands in is dead, the object is dead; a reference that
is not accounted for means: keep. So ignorance is always safe. The places are

- `args`, `kwargs` and `leaves` of this very call, and every container that only they refer to (`counts`);
- local variables of the caller, and of its callers, that are never read again (`liveness`), found by looking into
  the frame whether the object really stands there (`interpreter`);
- fields of a container that a variable has, where only others are read again (`fields`, `replacing`);
- what an iterator of a loop keeps of what it has handed out (`loops`);
- what the interpreter's own C code keeps of a starred call until it is over (`starred`);
- attributes, items, globals and cells that the next instructions overwrite (`symbolic`, `slots`, `plain`).

Because what stands in a place is compared by identity, the argument does not depend on how the call came about. A
call from C (`map`, `functools.reduce`, a property) holds references of its own, which no place accounts for.

What no count shows is looked at by itself: weak references and finalisers (`counts`), two arrays on one buffer
(`executions`, `buffers`), whoever watches the thread and could read any variable (`interpreter`) or may read a slot
meanwhile (`watchers`, `service_threads`, `compared`; another thread only what it can reach: `private`), code that reads
variables by other means than its bytecode shows (`introspection`), and who else has hold of a frame object.

`docs/proof.md` has the whole argument, and where it gives up. From the question down to what answers it:

    proof            which leaves are dead: the quick look, where the call site is known; else the careful one, `look`
    walk, placed     the quick look at the arguments, by the positions at which arrays and dead places were found
    wanted           the leaves that are asked about, and where they were the last time
    callers          the frames above a call, and the dead places in them
    callsite         one place in the code: what is dead there, and which slots it overwrites. From its bytecode:
                     liveness, strings (which may be code), behind (what comes next, in events), symbolic, stack, loops,
                     starred, introspection; instructions: what CPython's do. How the result can be taken apart: lengths
    slots, plain     the objects that the slots are in, and access that runs no code
    fields           what is read of a container; replacing: by functions that make a changed copy of it
    dying, endings   what dies before the slots are overwritten, and which objects may run code then
    private          what no other thread can reach
    counts           who refers to what, by trial deletion over the arguments
    executions       who shares a buffer with whom, by age; by address: buffers; among all arrays that there are: alive
    watchers         who else may look, or raise; service_threads, compared and collector each know one kind
    native           classes written in C, and what is known of them; facts: asked once, until a class is changed
    interpreter      what the interpreter is and does, measured at import
    answers          what is said of a call besides the proof. Before it, which leaves outlive it: surviving, repeats,
                     read_again. In words, what holds a leaf: holders, variables, referrers, paths
"""

from pytc.ownership.alive import is_dear
from pytc.ownership.answers import glance, reasons, survivors, where
from pytc.ownership.callers import Outcome, known_site
from pytc.ownership.callsite import CallSite
from pytc.ownership.collector import collected_since, collections_so_far
from pytc.ownership.collector import resume as resume_collections
from pytc.ownership.executions import executed
from pytc.ownership.holders import Held
from pytc.ownership.proof import all_dead, held
from pytc.ownership.surviving import Surviving
from pytc.ownership.walk import Walk
from pytc.ownership.wanted import Wanted
from pytc.ownership.watchers import meddler

__all__ = [
    "CallSite",
    "Held",
    "Outcome",
    "Surviving",
    "Walk",
    "Wanted",
    "all_dead",
    "collected_since",
    "collections_so_far",
    "executed",
    "glance",
    "held",
    "is_dear",
    "known_site",
    "meddler",
    "reasons",
    "resume_collections",
    "survivors",
    "where",
]
