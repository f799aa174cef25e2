"""`python -m pytc audit script.py`: what an unchanged script could donate, and what it should not have.

    script   runs the script as Python would; a program of its own, which does not import pytc before the script runs
    watch    the replacements of `jax.jit` and the like while the script runs
    record   what is recorded at a call: who calls, and which leaves nobody else can reach
    seen     what was so recorded, by the signature and the place of the calls
    traced   the program that JAX traced, with the names of the caller's arguments
    uses     what was seen of the calls with one signature, and what a donation would delete there
    advice   what to donate, what not to, and what that saves by the compiler's figures
    findings what is said of that
    order    a better order of the results
    edit     the change to the source
    report   the findings as data
    text     the findings for a terminal
    start    replaces the process of `python -m pytc` by `script`
    ending   makes and writes the report at the end of the script

The audit changes nothing: the script's functions are called with the script's arguments, and nothing is donated that
the script does not donate.
"""
