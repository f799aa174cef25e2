"""What keeps the tests quick, and what tests of threads share."""

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from pytc.calls import asking

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
def _compiled_anew():
    """What is compiled is not remembered on disk, nor is what pytc has found out about it."""
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()  # or JAX would go on with the one that it has opened
    yield
    jax.config.update("jax_compilation_cache_dir", _COMPILED.name)


@pytest.fixture
def _measured_anew():
    """What pytc has found out about what is compiled is not remembered on disk; what is compiled is."""
    shutil.rmtree(Path(_COMPILED.name) / "pytc", ignore_errors=True)


@pytest.fixture
def _quickly_compiled():
    """LLVM optimises little, which takes half as long: for tests that ask who gets which buffer, not for last bits."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def _frozen(request):
    """What is there before is not looked at by each collection, nor by each search for what refers to something; but
    for tests that ask about just that.

    It stays frozen for the next module. What was frozen and has become garbage keeps its arrays: where many are alive,
    it is collected."""
    if request.node.get_closest_marker("unfrozen"):
        gc.unfreeze()
        return
    if len(jax.live_arrays()) > 100:
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
