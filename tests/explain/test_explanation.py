"""`pytc.explain` as data: what it says is what the programs and the compilers say."""

import dataclasses
import functools
import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import pytc
from pytc.errors import RequirementError
from pytc.explain import Explanation, Footprint, explain
from pytc.explain.by_hand import AsJit
from pytc.explain.decisions import inputs_of, outputs_of
from tests.explain.programs import abstract, squared_thrice, swapped, update, update_arguments

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


@functools.cache
def explained() -> Explanation:
    args, kwargs = update_arguments()
    return explain(update, *args, **kwargs)


def by_path(explanation):
    return {each.path: each for each in explanation.inputs}


def figures(compiled):
    counted = compiled.memory_analysis()
    return (
        counted.argument_size_in_bytes,
        counted.output_size_in_bytes,
        counted.temp_size_in_bytes,
        counted.alias_size_in_bytes,
    )


def figures_of(found: Footprint):
    return found.argument, found.output, found.temp, found.alias


def test_the_verdicts_on_the_inputs():
    inputs = by_path(explained())
    args, kwargs = update_arguments()
    assert len(inputs) == len(jax.tree.leaves((args, kwargs)))
    verdicts = {path: (each.verdict, each.target) for path, each in inputs.items()}
    assert verdicts["state['w']['layer2']"] == ("reused", "result[0]['w']['layer2']")
    assert verdicts["state['m']['layer0']"] == ("reused", "result[0]['m']['layer0']")
    assert verdicts["state['embedding']"] == ("passed through", "result[0]['embedding']")
    assert verdicts["state['unused']"] == ("unused", None)
    assert verdicts["state['activation']"] == ("static", None)
    assert verdicts["batch"] == ("kept", None)
    assert verdicts["rounds"] == ("passed through", "result[1]['rounds']")


def test_shapes_dtypes_bytes_and_reasons():
    inputs = by_path(explained())
    weights = inputs["state['w']['layer2']"]
    assert (weights.shape, weights.dtype, weights.type, weights.nbytes) == (
        (256, 128),
        "float32",
        "f32[256,128]",
        2**17,
    )
    assert weights.parameter == "state"
    assert weights.reason == "updated in place"
    static = inputs["state['activation']"]
    assert (static.shape, static.dtype, static.nbytes) == (None, None, 0)
    assert static.reason == "tanh, compared by equality"
    assert inputs["batch"].reason.startswith("NumPy data")
    assert inputs["batch"].advice == ""  # no output would fit in it
    assert inputs["rate"].reason == "a Python scalar"


def test_advice_is_given_where_it_would_help():
    def step(state):
        return state + 1

    given = by_path(explain(step, np.ones(8, np.float32)))["state"]
    assert given.advice == "pass a jax.Array, such as the result of the call before"


def test_outputs_say_where_they_come_from():
    outputs = {each.path: (each.origin, each.source) for each in explained().outputs}
    assert outputs["result[0]['w']['layer1']"] == ("reuses", "state['w']['layer1']")
    assert outputs["result[0]['embedding']"] == ("passed through", "state['embedding']")
    assert outputs["result[0]['activation']"] == ("not an array", None)
    assert outputs["result[1]['norm']"] == ("computed", None)


def test_passes_are_those_of_the_pipeline_and_count_equations_at_every_depth():
    passes = {each.name: each for each in explained().passes}
    assert list(passes) == [each.__name__ for each in pytc.passes.pipeline]
    assert passes["forward"].outputs == (11, 9)
    assert passes["prune"].inputs == (13, 10)
    assert any("state['unused']" in note for note in passes["prune"].notes)
    assert not passes["hoist"].changed

    def looped(x):
        unused = jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) + 1, x)
        return jax.lax.fori_loop(0, 3, lambda _, y: y * 2, x), unused.sum() * 0 + 1

    def half(x):
        return looped(x)[0]

    prune = {each.name: each for each in explain(half, jnp.ones(3)).passes}["prune"]
    assert prune.equations[0] - prune.equations[1] > 3  # the loop and what is in it


def test_totals():
    explanation = explained()
    assert explanation.reused_bytes == 8 * 2**17
    assert explanation.kept_bytes == 8 * 4 * 4 + 4
    assert explanation.reused == 8 * 2**17 / (8 * 2**17 + 4)  # all but the norm
    assert explain(lambda x: x, jnp.ones(4)).reused == 1  # handed back
    assert explain(lambda x: x.sum(), jnp.ones(4)).reused == 0


def test_the_figures_of_the_program_are_those_of_what_a_call_runs():
    args, kwargs = abstract(update_arguments())
    function = pytc.compile(update, donate="all")
    figures_explained = explain(function, *args, **kwargs).memory.program
    concrete, keywords = update_arguments()
    function(*concrete, **keywords)
    (layout,) = function.__pytc__.lookup.layouts.values()
    (signatures,) = layout
    (plan,) = signatures.newest[0].plans
    compiled = plan.emitted.lower(jax.tree.leaves(update_arguments())).compile()
    assert figures_of(figures_explained) == figures(compiled)
    assert figures_explained.alias == 8 * 2**17


def plain_update(state, batch, rate):
    momentum = jax.tree.map(lambda m: 0.9 * m + batch.sum(), state["m"])
    new = {"w": jax.tree.map(lambda w, m: w - rate * m, state["w"], momentum), "m": momentum, "e": state["e"]}
    return new, sum(jnp.vdot(w, w) for w in new["w"])


def plain_arguments():
    state = {"w": [jnp.ones((64, 64))] * 1 + [jnp.zeros((64, 32))], "m": [jnp.ones((64, 64)), jnp.ones((64, 32))]}
    return {**state, "e": jnp.ones((16, 16))}, jnp.ones((4, 4)), 0.1


def test_the_figures_for_jit_are_those_of_jit_itself():
    memory = explain(plain_update, *plain_arguments()).memory
    assert figures_of(memory.undonated) == figures(jax.jit(plain_update).lower(*plain_arguments()).compile())
    assert memory.by_hand.parameters == ("state",)
    by_hand = jax.jit(plain_update, donate_argnums=(0,)).lower(*plain_arguments()).compile()
    assert figures_of(memory.by_hand.footprint) == figures(by_hand)


def test_the_best_by_hand_is_the_least_of_all_choices():
    x = jnp.ones((64, 64))
    memory = explain(swapped, x, x + 1).memory
    totals = {}
    for numbers in [(), (0,), (1,), (0, 1)]:
        donating = jax.jit(swapped, donate_argnums=numbers, keep_unused=False)
        argument, output, temp, alias = figures(donating.lower(x, x + 1).compile())
        totals[tuple("ab"[i] for i in numbers)] = argument + output + temp - alias
    assert {names: found.total for names, found in memory.by_hand.tried} == totals
    assert memory.by_hand.footprint.total == min(totals.values())
    assert memory.program.total <= memory.by_hand.footprint.total


def test_the_best_by_hand_counts_what_xla_writes_over_an_argument_of_another_type():
    x = jnp.arange(65536.0)
    memory = explain(jnp.argsort, x).memory
    argument, output, temp, alias = figures(jax.jit(jnp.argsort, donate_argnums=0).lower(x).compile())
    assert alias == x.nbytes
    assert memory.by_hand.parameters == ("a",)
    assert memory.by_hand.footprint.total == argument + output + temp - alias


def test_choices_that_pair_the_same_buffers_are_compiled_once():
    def step(state, batch, counter):
        return state + batch.sum(), counter + 1

    found = explain(step, jnp.ones((64, 64)), jnp.ones((8, 4)), jnp.zeros((), int)).memory.by_hand
    assert [names for names, _ in found.tried] == [(), ("state",)]
    assert "counter" in found.search


def test_many_arguments_are_searched_within_bounds():
    def many(a, b, c, d, e, f):
        return tuple(2 * x for x in (a, b, c, d, e, f))

    arrays = [jnp.ones(100 + i) for i in range(6)]
    found = explain(many, *arrays).memory.by_hand
    assert found.parameters == tuple("abcdef")
    assert len(found.tried) == 2  # nothing, and everything; what donates less cannot save as much
    assert "could not save as much" in found.search
    assert "f, e, d, c" in found.search


def test_what_the_compiler_says_of_choices_that_it_refuses(monkeypatch):
    footprint = AsJit.footprint

    def refusing(self, donated=()):
        if donated:
            raise jax.errors.JaxRuntimeError("INTERNAL: it is broken\nand more")
        return footprint(self, donated)

    monkeypatch.setattr(AsJit, "footprint", refusing)
    said = str(explain(lambda s: s + 1, jnp.ones((64, 64))))
    assert "Donating nothing is best" not in said
    assert "No donation by hand compiles." in said
    assert "refuses: INTERNAL: it is broken" in " ".join(said.split())


def test_what_jit_would_refuse_is_not_proposed():
    def both(a, b):
        return a + 1, b.sum()

    x = jnp.ones((32, 32))
    explanation = explain(both, x, x)
    assert by_path(explanation)["b"].verdict == "shared"
    assert by_path(explanation)["b"].target == "a"
    assert [names for names, _ in explanation.memory.by_hand.tried] == [(), ("a",)]  # "b" alone can save no more


def test_what_jit_would_refuse_of_this_call_alone_is_not_proposed_either():
    def both(a, b):
        return a + 1, b + 2

    x = jnp.ones((32, 32))
    explanation = explain(both, x, x)
    assert by_path(explanation)["b"].verdict == "reused"
    assert [names for names, _ in explanation.memory.by_hand.tried] == [(), ("a",)]


def test_figures_to_compare_with_wait_until_they_are_asked_for():
    memory = explain(swapped, jnp.ones((8, 8)), jnp.ones((8, 8))).memory
    assert "undonated" not in vars(memory)
    assert "by_hand" not in vars(memory)
    assert memory.by_hand is memory.by_hand
    assert "undonated" in vars(memory)


def test_copies_of_arguments_are_named():
    program = explain(squared_thrice, jnp.ones((32, 32)), jnp.ones(3)).memory.program
    assert [copy.path for copy in program.copies] == ["a"]
    assert program.copied == 32 * 32 * 4


def test_what_is_aliased_is_read_back_from_the_compiler():
    explanation = explained()
    reused = {each.path for each in explanation.inputs if each.verdict == "reused"}
    assert set(explanation.memory.program.aliased) == reused
    assert explanation.memory.declined == ()
    assert explanation.memory.undonated.aliased == ()


def test_arguments_are_told_apart_whatever_comes_before_them():
    table = jnp.arange(64.0)

    def step(unused, state, batch, more):
        jax.debug.print("{}", batch.sum(), ordered=True)  # a token is the program's first argument
        return state * table[batch], more @ more.T

    arguments = jnp.ones(3), jnp.ones(64), jnp.arange(64), jnp.ones((16, 16))
    for options in ({}, {"keep_unused": True}):
        explanation = explain(pytc.compile(step, **options), *arguments)
        reused = {each.path for each in explanation.inputs if each.verdict == "reused"}
        assert "state" in reused
        assert set(explanation.memory.program.aliased) == reused
        donated = explanation.memory.as_jit.footprint(["state", "more"])
        assert set(donated.aliased) == {"state", "more"}


def test_an_executable_from_the_persistent_cache_has_anothers_names(tmp_path):
    def step(state, batch):
        return {"w": state["w"] * batch.sum()}

    arguments = {"w": jnp.ones((32, 32))}, jnp.ones(8)
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        as_jit = explain(step, *arguments).memory.as_jit

        def flat(state, batch):
            return [state * batch.sum()]

        jax.jit(flat, donate_argnums=0).lower(jnp.ones((32, 32)), jnp.ones(8)).compile()
        cached = len(list(tmp_path.iterdir()))
        assert cached
        found = as_jit.footprint(["state"])
        assert len(list(tmp_path.iterdir())) == cached  # it was that one
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert found.aliased == ("state['w']",)


def test_the_nearest_call_runs_and_takes_what_was_said():
    explanation = explain(plain_update, *plain_arguments())
    assert explanation.jit_call == "jax.jit(plain_update, donate_argnums=(0,))"
    compiled = eval(explanation.jit_call).lower(*plain_arguments()).compile()
    assert figures(compiled) == figures_of(explanation.memory.by_hand.footprint)


def test_the_nearest_call_names_static_arguments_and_keywords():
    @functools.partial(pytc.compile, static_argnames="power")
    def raised(base, power, *, offset):
        return base**power + 1, 2 * offset

    call = explain(raised, jnp.ones((8, 8)), 2, offset=jnp.ones(64)).jit_call
    assert call == "jax.jit(raised, static_argnums=(1,), donate_argnums=(0,), donate_argnames=('offset',))"


def test_the_nearest_call_names_other_options():
    compiled = pytc.compile(swapped, keep_unused=True, compiler_options={})
    call = compiled.explain(jnp.ones((8, 8)), jnp.ones((8, 8))).jit_call
    assert call.startswith("jax.jit(swapped, keep_unused=True, compiler_options=..., donate_argnums=")


def test_repr_is_short_and_compiles_nothing():
    explanation = explain(swapped, jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert repr(explanation) == "<Explanation of swapped: 512 bytes reused, 0 kept>"
    assert "undonated" not in vars(explanation.memory)


class Scale:
    def __call__(self, x):
        return x + 1

    method = __call__


@pytest.mark.parametrize(
    "fun", [functools.partial(lambda n, x: x + n, 1), Scale(), Scale().method], ids=["partial", "object", "method"]
)
def test_what_has_its_name_from_something_else_is_called_fun(fun):
    """The numbers of the arguments are those of what is called."""
    assert explain(fun, jnp.ones(4)).jit_call == "jax.jit(fun, donate_argnums=(0,))"


def test_a_function_with_no_name_of_its_own_is_called_fun():
    assert explain(lambda x: x + 1, jnp.ones(4)).jit_call == "jax.jit(fun, donate_argnums=(0,))"


def test_options_of_the_compiled_function_count():
    def step(state, batch):
        return state + batch.sum(), batch * 2

    none = explain(pytc.compile(step, donate={"state": "none"}), jnp.ones(8), jnp.ones(4))
    assert by_path(none)["state"].verdict == "kept"
    assert by_path(none)["state"].advice == 'donate="auto"'
    assert by_path(none)["batch"].verdict == "reused"
    nothing = explain(pytc.compile(step, donate="none"), jnp.ones(8), jnp.ones(4))
    assert nothing.memory.program.alias == 0
    assert 'donate="none"' in nothing.assumption
    promised = explain(pytc.compile(step, donate="all"), jnp.ones(8), jnp.ones(4))
    assert "promises" in promised.assumption


def test_abstract_arguments_explain_the_same():
    args, kwargs = abstract(update_arguments())
    batch = np.ones((8, 4), np.float32)
    explanation = explain(update, args[0], batch, args[2], **kwargs)
    assert explanation.inputs == explained().inputs
    assert explanation.memory == explained().memory


def test_nothing_is_run_or_donated_and_no_array_is_held():
    ran = []

    def step(state):
        jax.debug.callback(lambda: ran.append(1))
        return state + 1

    state = jnp.ones((16, 16))
    held = weakref.ref(state)
    explanation = explain(pytc.compile(step), state)
    str(explanation)
    jax.effects_barrier()
    assert not ran
    assert not state.is_deleted()
    assert float(state.sum()) == 256
    del state
    gc.collect()
    assert held() is None


def test_captured_arrays_and_keys():
    table = jnp.arange(64.0)

    def look_up(key, index):
        return table[index] + 1, jax.random.split(key)

    inputs = explain(look_up, jax.random.key(0), jnp.arange(8)).inputs
    captured = [each for each in inputs if each.verdict == "captured"]
    assert [each.nbytes for each in captured] == [256]
    (key,) = [each for each in inputs if each.path == "key"]
    assert (key.verdict, key.nbytes) == ("kept", 8)
    assert key.reason == "no output is key<fry>[]"


@pytest.mark.parametrize("rows", [8, 100_000])
def test_that_compilers_do_not_count_constants_is_told_where_it_matters(rows):
    weights = jax.random.normal(jax.random.key(0), (64, 64))
    explanation = explain(lambda x: jnp.tanh(x @ weights), jax.ShapeDtypeStruct((rows, 64), jnp.float32))
    assert explanation.captured_bytes == 64 * 64 * 4
    assert explanation.memory.undonated.argument == rows * 64 * 4
    told = " ".join(explanation.text(100).split())
    assert ("both without their constants" in told) == (rows == 8)
    assert ("Of pytc's memory, 16 KiB are arrays that the function captured" in told) == (rows == 8)


def test_a_ref_is_neither_reused_nor_proposed_by_hand():
    def add(ref, x):
        ref[...] = ref[...] + x
        return x + 1

    explanation = explain(add, jax.new_ref(jnp.ones(8)), jnp.ones(8))
    assert by_path(explanation)["ref"].verdict == "kept"
    assert by_path(explanation)["ref"].reason == "a jax.Ref, which the program updates itself"
    assert all("ref" not in names for names, _ in explanation.memory.by_hand.tried)


def test_a_pair_that_the_compiler_declines_is_no_reuse():
    program = explained().program
    declined = ["state['w']['layer1']"]
    inputs = {each.path: each for each in inputs_of(program, {}, declined, copies=True)}
    assert inputs["state['w']['layer1']"].verdict == "kept"
    assert inputs["state['w']['layer1']"].reason == "the compiler declined to write an output into it"
    assert inputs["state['w']['layer2']"].verdict == "reused"
    outputs = {each.path: each for each in outputs_of(program, declined)}
    assert outputs["result[0]['w']['layer1']"].origin == "computed"
    assert outputs["result[0]['w']['layer2']"].source == "state['w']['layer2']"


def test_a_compiled_function_explains_itself():
    compiled = pytc.compile(swapped)
    assert compiled.explain(jnp.ones((8, 8)), jnp.ones((8, 8))).name == "swapped"
    assert compiled.explain() == explain(compiled)


def test_require_returns_what_holds_and_raises_with_the_table():
    explanation = explained()
    total = explanation.memory.program.total
    assert explanation.require(reused=0.95, copies=0, total_bytes=total) is explanation
    with pytest.raises(RequirementError) as error:
        explanation.require(reused=1.0, total_bytes=total - 1)
    message = str(error.value)
    assert "100.00%" in message
    assert f"{total:,} bytes" in message
    assert message.endswith(explanation.text(compare="by_hand" in vars(explanation.memory)))
    with pytest.raises(RequirementError, match="1 array is copied"):
        explain(squared_thrice, jnp.ones((32, 32)), jnp.ones(3)).require(copies=0)
    quick = explain(swapped, jnp.ones((8, 8)), jnp.ones((8, 8)))
    with pytest.raises(RequirementError):
        quick.require(total_bytes=1)
    assert "undonated" not in vars(quick.memory)
    with pytest.raises(ValueError, match="share from 0 to 1"):
        explanation.require(reused=95)
    with pytest.raises(TypeError, match="reused is a number, not 'params'"):
        explanation.require(reused="params")
    with pytest.raises(TypeError, match="reused is a number, not True"):
        explanation.require(reused=True)
    with pytest.raises(ValueError, match="copies is 0 or more, not -1"):
        explanation.require(copies=-1)
    with pytest.raises(ValueError, match="a limit at least: reused, copies, total_bytes or fits"):
        explanation.require()


def test_json_has_everything():
    explanation = explained()
    read = json.loads(explanation.to_json())
    assert read["schema"] == "pytc.explain/1"
    assert read["reused"] == explanation.reused
    assert read["bytes"] == {"reused": explanation.reused_bytes, "kept": explanation.kept_bytes}

    def back(made, kind):
        return tuple(
            kind(**{**each, "shape": each["shape"] if each["shape"] is None else tuple(each["shape"])}) for each in made
        )

    assert back(read["inputs"], type(explanation.inputs[0])) == explanation.inputs
    assert back(read["outputs"], type(explanation.outputs[0])) == explanation.outputs
    for written, found in zip(read["passes"], explanation.passes, strict=True):
        assert written == {
            "name": found.name,
            "equations": list(found.equations),
            "inputs": list(found.inputs),
            "outputs": list(found.outputs),
            "notes": list(found.notes),
        }
    for name, found in [("program", explanation.memory.program), ("undonated", explanation.memory.undonated)]:
        assert read["memory"][name]["total"] == found.total
        assert {k: read["memory"][name][k] for k in ("argument", "output", "temp", "alias", "devices")} == {
            k: getattr(found, k) for k in ("argument", "output", "temp", "alias", "devices")
        }
        assert read["memory"][name]["copies"] == [dataclasses.asdict(copy) for copy in found.copies]
    assert read["memory"]["by_hand"]["parameters"] == ["state"]
    assert read["jit_call"] == explanation.jit_call


def test_a_bound_method_of_a_compiled_function_is_explained_for_its_object():
    class Trainer:
        @pytc.compile
        def step(self, state, batch):
            return state + batch

    trainer, state = Trainer(), jnp.ones(3)
    explanation = explain(trainer.step, state, batch=state)
    assert [leaf.path for leaf in explanation.inputs] == ["self", "state", "batch"]
    assert explanation.inputs == explain(Trainer.step, trainer, state, batch=state).inputs
    trainer.step(state, state)
    assert [site.calls for site in explain(trainer.step).sites] == [1]


def test_errors_are_those_of_staging():
    with pytest.raises(pytc.StaticLeafError, match="config"):
        explain(lambda x, config: x, jnp.ones(3), {"config": bytearray(b"unhashable")})
    with pytest.raises(TypeError, match="was not made by pytc"):
        explain(update)
    with pytest.raises(TypeError, match=r"pytc\.explain takes a function, not 'update'"):
        explain("update", jnp.ones(3))


def test_a_copy_that_the_compiler_does_not_make_is_not_told():
    summed = pytc.explain(lambda x: jnp.cumsum(x), jnp.arange(1e5, dtype=jnp.float32))
    (leaf,) = summed.inputs
    assert not summed.memory.program.copies
    assert (leaf.verdict, leaf.copied) == ("reused", 0)
    assert leaf.reason == "no copy was needed, though all of it is read to write the output"
    assert "copied first" not in str(summed)
    in_order = pytc.explain(lambda x: jnp.argsort(x), jnp.arange(1e5, dtype=jnp.float32))
    (leaf,) = in_order.inputs
    assert in_order.memory.program.copies
    assert leaf.copied == leaf.nbytes
    assert "copied first, as all of it is read to write the output" in str(in_order)
