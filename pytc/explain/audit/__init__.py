"""`python -m pytc audit script.py`: what an unchanged script could donate, and what it should not have.

    script   runs the script as Python would; a file of its own, which imports nothing of pytc before the script runs
    watch    what stands in the place of `jax.jit` and its like while the script runs
    record   what is written down at a call: who calls, and which leaves nobody else can reach
    traced   the program that JAX traced, with the names of the caller's arguments
    places   where in the source something stands
    advice   records -> findings: what to donate, what not to, and what the compiler says that it saves
    edit     the change to the source
    report   the findings as data
    text     the findings for a terminal
    ending   all of it at the end of the script

Watching reads and never steers: what the script compiled is called with what the script gave, and nothing is donated
that the script did not donate.
"""
