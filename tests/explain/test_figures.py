"""The figures are those of what `jax.jit` compiles, though machine code is not optimised and wrappers are off."""

import inspect

import jax
import pytest

import pytc
from benchmarks import workloads

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@pytest.mark.parametrize("name", ["ema", "gpt_adamw", "mlp_adam", "wave"])
def test_figures_are_those_of_jit(name):
    workload = workloads.make(name, 1)
    args = workload.arguments()
    memory = pytc.explain(workload.step, *args).memory
    parameters = list(inspect.signature(workload.step).parameters)
    best = tuple(map(parameters.index, memory.by_hand.parameters))
    for donated, found in (((), memory.undonated), (best, memory.by_hand.footprint)):
        counted = jax.jit(workload.step, donate_argnums=donated).lower(*args).compile().memory_analysis()
        assert found.argument == counted.argument_size_in_bytes
        assert found.temp == counted.temp_size_in_bytes
        assert found.alias == counted.alias_size_in_bytes
    assert best
