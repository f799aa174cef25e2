"""Reading the compiler's text: aliases, copies, and which argument they speak of."""

import jax
import jax.numpy as jnp

from pytc import hlo

MODULE = """HloModule jit_f, input_output_alias={ {1}: (1, {}, may-alias), {2}: (3, {}, must-alias) }, \
entry_computation_layout={(token[], f32[8]{0})->(token[])}, num_partitions=4

ENTRY %main.7 (token: token[], values_0: f32[8], values_2: bf16[2,3], values_5: f32[8]) -> (token[]) {
  %token = token[] parameter(0)
  %values_0_.1 = f32[8]{0} parameter(1), sharding={replicated}, metadata={op_name="another's"}
  %values_2_.1 = bf16[2,3]{1,0} parameter(2), metadata={op_name="values[2]"}
  %values_5_.1 = f32[8]{0} parameter(3), metadata={op_name="values[5]"}
  %copy.1 = f32[8]{0} copy(%values_5_.1)
  %copy.2 = bf16[2,3]{1,0} copy(bf16[2,3]{1,0} %values_2_.1), control-predecessors={%copy.1}
  %copy-start = (f32[8]{0:T(8)}, f32[8]{0:T(8)}, u32[]{:S(2)}) copy-start(%fusion)
  %copy-done = f32[8]{0:T(8)} copy-done(%copy-start)
  %copy-start.2 = (f32[8]{0:T(8)S(1)}, f32[8]{0:T(8)}, u32[]{:S(2)}) copy-start(%values_0_.1)
  %copy.5 = f32[8]{0:T(8)S(1)} copy(%values_0_.1)
  %copy.3 = s32[] copy(%values_0_.1)
  %copy.4 = pred[7]{0} copy(%wide)
}
"""


def test_aliases_are_those_of_the_header_by_the_number_of_the_flat_argument():
    assert hlo.read(MODULE, [0, 2, 5]).aliased == {0, 5}


def test_copies_of_arrays_are_counted_with_their_bytes_and_arguments():
    assert hlo.read(MODULE, [0, 2, 5]).copies == (
        hlo.CopyInstruction("f32[8]", 32, 5),
        hlo.CopyInstruction("bf16[2,3]", 12, 2),
        hlo.CopyInstruction("f32[8]", 32, None),
        hlo.CopyInstruction("pred[7]", 7, None),
    )


def test_partitions():
    assert hlo.read(MODULE, [0, 2, 5]).partitions == 4
    assert hlo.read("HloModule f\n", []).partitions == 1


def test_a_module_without_aliases_has_none():
    assert hlo.read(MODULE.replace("input_output_alias", "other"), [0, 2, 5]).aliased == frozenset()


def test_what_the_installed_compiler_writes_is_understood():
    def flat(*values):
        looped = jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x @ x), values[2])
        return [looped, values[3] + 1.0]  # values[0] and values[1] are left out by JAX

    x = jnp.ones((16, 16))
    read = hlo.read(jax.jit(flat, donate_argnums=(2, 3)).lower(x, x, x, x).compile().as_text(), [2, 3])
    assert read == hlo.Optimised(frozenset({2, 3}), (), 1)
    read = hlo.read(
        jax.jit(flat).lower(x, x, x, x).compile().as_text(), [2, 3]
    )  # the loop writes over what it starts with
    assert read == hlo.Optimised(frozenset(), (hlo.CopyInstruction("f32[16,16]", 1024, 2),), 1)
