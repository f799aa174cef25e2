"""Who refers to an object, and what dies with it.

counts           the references to the leaves, by trial deletion over the arguments
private          what variables of this thread's functions alone refer to
loops            what iterators keep of what they have handed out
starred          what the interpreter's C code keeps of a starred call until it is over
dying, endings   what dies before the results are stored, and which objects may run code then
"""
