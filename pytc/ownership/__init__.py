"""What is dead at a call: which leaves of the arguments nothing in the running program can read again.

Nothing sees the future of a Python program, but a call can count. All references to an object are in its reference
count. If each of them is accounted for, and the place it stands in is dead, the object is dead; a reference that
is not accounted for means: keep. So ignorance is always safe. The places are

- the arguments and the leaves of this very call (`call`), and every container that only they refer to (`counts`);
- local variables of the caller, and of its callers, that are never read again (`liveness`), found by looking into
  the frame whether the object really stands there (`interpreter`), and which exceptions pass on the way (`exits`);
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
    call             who made the call, and with what; outcome: what the proof may assume of it before it happens
    callers, frames  the frames above a call, and the dead places in them; one such frame
    slots            what the next instructions overwrite, in objects
    arrays           the arrays among the arguments: where they stand, and who shares their buffers
    references       who refers to an object, and what dies with it
    bytecode         what a function's code tells of a call in it
    others           who else may look, or raise
    cpython          what the interpreter is and does, and what is known of its classes
    guesses          which leaves outlive a call, as far as the code shows; no part of the proof
    words            what holds a leaf, for messages
"""

from pytc.ownership.arrays.alive import is_dear, is_dear_now
from pytc.ownership.arrays.executions import executed
from pytc.ownership.arrays.walk import Walk
from pytc.ownership.arrays.wanted import Wanted
from pytc.ownership.bytecode.analysed import known_site
from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.call import Call
from pytc.ownership.cpython.interpreter import refusal
from pytc.ownership.guesses.staying import replaced, staying
from pytc.ownership.guesses.surviving import Surviving
from pytc.ownership.guesses.survivors import survivors
from pytc.ownership.others.collector import collected_since, collections_so_far
from pytc.ownership.others.collector import resume as resume_collections
from pytc.ownership.others.watchers import onlooking_thread
from pytc.ownership.outcome import Outcome, classes_of
from pytc.ownership.proof import all_dead, held
from pytc.ownership.words.holders import Held, Remedy
from pytc.ownership.words.reasons import glance, reasons, where

__all__ = [
    "Call",
    "CallSite",
    "Held",
    "Outcome",
    "Remedy",
    "Surviving",
    "Walk",
    "Wanted",
    "all_dead",
    "classes_of",
    "collected_since",
    "collections_so_far",
    "executed",
    "glance",
    "held",
    "is_dear",
    "is_dear_now",
    "known_site",
    "onlooking_thread",
    "reasons",
    "refusal",
    "replaced",
    "resume_collections",
    "staying",
    "survivors",
    "where",
]
