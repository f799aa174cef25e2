"""What happens at each call of a compiled function.

wrapper     the plain function that a user calls
function    the call path from there on, from top to bottom
ways        which calls go straight to `jax.jit`; direct: such a call, with nothing flattened
numpy_data  NumPy data that become arrays before a program is looked up
lookup      which staged program serves a call; lasting: and those that follow it
plan        a program compiled to take over these leaves or those; planner: the plans of a signature
sites       what the calls from a place that uses a plan have shown
layout      what tells calls apart: trees, types, static values, sharing, shapes
cache       what a compiled function remembers; known: what several made of the same function share
decide      which plan a call site uses, and what it gives the program: the proof at each call
outcome     what the proof may assume of a call: whether Python code may run meanwhile
unflattening  whether what puts a result together may raise; building: whether a function of it only builds
asking      questions to `ownership` whose answer to an exception is: keep everything
instead     what JAX does instead: under a transformation, in a debugging mode, and ahead of time (`lower`, `trace`);
            instead_mapped: the same for a mapped function; hiding: with static leaves that JAX does not know
deleted     what is said of an argument that was deleted before the call
tracebacks  tracebacks of errors, without pytc's own frames
"""
