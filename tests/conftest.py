"""What keeps the tests quick, and what tests of threads share."""

import gc
import os
import sys
import tempfile

import jax
import pytest

from pytc.calls import asking
from pytc.jax_compat import callbacks

# The same small programs are compiled by many tests, and by the interpreters that these start: both are told.
_COMPILED = tempfile.TemporaryDirectory(prefix="pytc-tests-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", _COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
# In the interpreters that tests start LLVM optimises little, as under `_quickly_compiled`, unless a test wants more.
# Told once: to change `os.environ` later ends the process now and then, where a thread of XLA's asks for a variable.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
asking.FIRST_SECONDS = float("inf")  # thousands of tests ask what holds something


@pytest.fixture
def _quickly_compiled():
    """LLVM optimises little, which takes half as long: for tests that ask who gets which buffer, not for last bits."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


_alive = 0
"""How many arrays were alive when all garbage was last collected."""


@pytest.fixture(scope="module", autouse=True)
def _frozen(request):
    """What is there before is not looked at by each collection, nor by each search for what refers to something; but
    for tests that ask about just that.

    It stays frozen for the next module. What was frozen and has become garbage keeps its arrays: where many more are
    alive than when all was last collected, it is collected again."""
    global _alive
    if request.node.get_closest_marker("unfrozen"):
        gc.unfreeze()
        return
    has_grown = len(jax.live_arrays()) > _alive + 100
    if has_grown:
        gc.unfreeze()
    gc.collect()
    if has_grown:
        _alive = len(jax.live_arrays())
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_calls_python(_frozen):
    """No program that calls Python is left by a test before: beside one, whatever others can read is kept."""
    if callbacks.are_there():
        jax.clear_caches()
        gc.collect()
    if callbacks.are_there() and gc.get_freeze_count():  # what holds it was frozen, and has become garbage since
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture
def _switching_often():
    """Other threads get their turn at almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
