"""What happens at each call of a compiled function.

function     the call path, from top to bottom
direct       calls that go straight to `jax.jit`, with nothing flattened
lookup       which staged program serves a call
cache        what is remembered of each function; known: and of those made of the same function
plan         what a call takes over
asking       which leaves are dead, whatever the objects at hand raise
ahead        JAX's own stages, where there is no call
tracebacks   of errors, without the frames of all this
"""
