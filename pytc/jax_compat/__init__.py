"""Every use of JAX that is not plain public `jax.*`, with the versions it is for.

Nothing here imports a private module of JAX. What JAX 0.10 to 0.12 offer in `jax.extend` (`core`, `backend`, `mlir`,
`source_info_util`), `jax.interpreters` and `jax.experimental` (`topologies`, `layout`) is less stable than the rest of
its API. A few attributes of its objects, and of `jaxlib`'s, are not meant for others at all; pytc mostly does without
where they are missing. Whoever ports pytc to the next release starts in this package, and should mostly be able to
stop here. (The names of primitives and of their parameters are read by the passes that handle them.)

    api        `jax.jit` and `jax.pmap` as they were when pytc was imported
    avals      the types of arrays, of PRNG keys and of `Ref`s
    jaxprs     jaxprs and equations: their classes, and what stands where in them
    rewriting  other jaxprs and equations made of those
    rules      JAX's own interpreters of jaxprs, and the rules of its primitives
    inlined    a jaxpr as a single equation of what JAX traces
    effects    what a jaxpr does besides computing its results
    callbacks  whether compiled programs call Python
    origins    where an equation, a primitive or a file comes from
    arrays     arrays that hold memory: copies, shards, places
    clients    what lists every array that there is
    layouts    where arrays are in memory, beside where they are on devices
    keys       PRNG keys, and the arrays that they wrap
    trees      trees that JAX takes apart itself
    running    what JAX is set to and is doing at this moment, and where
    donated    how JAX pairs donated arguments with results
    warned     warnings of JAX that are not for those who call pytc
    devices    what kind a device is, devices that are not here, and programs moved to them
"""
