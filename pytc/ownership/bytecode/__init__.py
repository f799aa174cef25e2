"""What a function's code tells of a call in it, found once and remembered with the code.

callsite         one place in the code, which is all of the below: what is dead there, and what it overwrites
analysed         these places, and the functions' code, as far as analysed
    instructions     what CPython's instructions do
liveness         the local variables that are read on some path after a call
managers         the `with` statements around a call, and what is read where exceptions pass them
aside            what a comprehension puts aside, and where it puts that back
strings          those that a string names which may be code
taint            where such strings go, and so which instructions may evaluate them
introspection    code that reads variables by other means than its bytecode shows
stack            what lies on the stack at a call: iterators, a starred call's arguments
stores           where an instruction stores to
symbolic         instructions, executed symbolically: which places they load and overwrite
continuation     what happens right after a call, up to the first instruction that may run Python code
events           the words in which this is told
lengths          how the call's result can be taken apart
fields           what is read of a variable's container, and so what is not
replacing        functions that make a changed copy of a container, and what they read of it

Code is followed symbolically in four places, each with values of its own kind: `symbolic` (which place a value comes
from), `taint` (whether it may have a certain string), `others.signal_handlers` (whether a handler does more than set
flags) and `calls.building` (whether a function only puts objects together).
"""
