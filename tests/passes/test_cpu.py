"""What small programs take on a CPU, as computed here, against what its compiler makes of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import pytc
from pytc.passes.cpu import Small, smallest
from pytc.passes.cpu.copies import copied
from pytc.passes.cpu.fusion import Fused, fused
from pytc.passes.cpu.schedule import schedule
from pytc.passes.dataflow import Flow, flatten
from pytc.program import Alias, Program
from tests.passes.test_alias import SQUARE, N, planned, total, without
from tests.passes.test_crossed import least
from tests.passes.test_temporaries import ALIGNMENT, BYTES

pytestmark = pytest.mark.usefixtures("_quickly_compiled")


def flow_of(fun: Callable[..., Any], count: int) -> Flow:
    return flatten(jax.make_jaxpr(fun)(*[SQUARE] * count).jaxpr, "cpu")


def loops_of(fun: Callable[..., Any], count: int) -> Fused:
    flow = flow_of(fun, count)
    return fused(flow, [value for value in flow.outputs if value is not None])


def small(program: Program) -> Small:
    flow = flatten(program.jaxpr.jaxpr, "cpu")
    assert Small.is_for(flow)
    return Small(flow, dict.fromkeys((*flow.inputs, *flow.outputs), BYTES))


def ways(count: int) -> Iterator[frozenset[tuple[int, int]]]:
    """All choices of pairs of so many inputs and outputs."""
    for k in range(count + 1):
        for some in itertools.combinations(range(count), k):
            yield from (frozenset(zip(some, others, strict=True)) for others in itertools.permutations(range(count), k))


def actual(program: Program, pairs: frozenset[tuple[int, int]]) -> int:
    """The bytes that the compiler takes besides the arguments."""
    paired = dataclasses.replace(program, aliases=tuple(itertools.starmap(Alias, sorted(pairs))))
    return total(paired) - len(program.in_avals) * BYTES


def lorenz(x: Any, y: Any, z: Any) -> Any:
    return x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)


def epidemic(susceptible: Any, infected: Any, recovered: Any) -> Any:
    new = 0.3 * susceptible * infected
    lost = 0.1 * recovered
    return susceptible - new + lost, infected + new - 0.2 * infected, recovered + 0.2 * infected - lost


def reaction(u: Any, v: Any) -> Any:
    rate = u * v * v
    return u + 0.1 * (1 - u) - rate, v + rate - 0.2 * v


def heun(x: Any, y: Any) -> Any:
    dx, dy = y, -jnp.sin(x)
    x1, y1 = x + 0.1 * dx, y + 0.1 * dy
    return x + 0.05 * (dx + y1), y + 0.05 * (dy - jnp.sin(x1))


def midpoint(x: Any, v: Any) -> Any:
    half, now = x + 0.05 * v, v - 0.05 * x
    return x + 0.1 * now, v - 0.1 * half


def stored_for_two(a: Any, b: Any) -> Any:
    v = b + jnp.tanh(a)
    return a + v, v * b


def squared(a: Any, b: Any) -> Any:
    v = b + jnp.tanh(a)
    return a - v * v, b + v


STEPS = [lorenz, epidemic, reaction, heun, midpoint, stored_for_two, squared]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("fun", STEPS)
def test_an_integrator_takes_no_more_than_with_the_best_pairs(fun: Callable[..., Any], backwards: bool) -> None:
    in_order = (lambda *states: fun(*states)[::-1]) if backwards else fun
    program = planned(in_order, *[SQUARE] * fun.__code__.co_argcount)
    assert total(program) <= least(program) + ALIGNMENT
    assert total(program) <= total(without(program)) - BYTES + ALIGNMENT


@pytest.mark.parametrize("divided", [lambda t: t % 8 == 0, lambda t: t // 8 > 2])
def test_integers_are_divided_by_a_number_wherever_that_is_read(divided: Callable[..., Any]) -> None:
    def accumulate(a: Any, x: Any, t: Any) -> Any:
        a, is_full = a + x, divided(t)
        return jnp.where(is_full, 0, a), jnp.where(is_full, a / 8, x)

    integers = jax.ShapeDtypeStruct((N, N), jnp.int32)
    for fun in (accumulate, lambda *args: accumulate(*args)[::-1]):
        program = planned(fun, SQUARE, SQUARE, integers)
        plans = itertools.chain([()], itertools.permutations([Alias(0, 0), Alias(1, 1)], 1), [(Alias(0, 1),)])
        least = min(total(dataclasses.replace(program, aliases=plan)) for plan in plans)
        assert total(program) <= least + ALIGNMENT


def some_steps(draw: random.Random, count: int) -> Callable[..., Any]:
    """A random function of so many arrays to as many, element by element."""
    alone = [jnp.tanh, jnp.sin, jnp.exp, jnp.negative, lambda x: x * x, lambda x: 0.5 * x]
    of_two = [jnp.add, jnp.subtract, jnp.multiply, jnp.divide]
    steps: list[tuple[Callable[..., Any], list[int]]] = []
    for made in range(draw.randint(count, 6)):
        known = range(count + made)
        some = draw.choices([*known[-3:], *known], k=2)
        steps.append((draw.choice(alone), some[:1]) if draw.random() < 0.4 else (draw.choice(of_two), some))
    chosen = draw.sample(range(count, count + len(steps)), count)

    def fun(*arrays: Any) -> Any:
        values = [*arrays]
        for step, operands in steps:
            values.append(step(*(values[k] for k in operands)))
        return tuple(values[k] for k in chosen)

    return fun


def test_what_is_computed_is_what_the_compiler_takes() -> None:
    draw, right = random.Random(0), []
    for _ in range(28):
        fun = some_steps(draw, 2)
        if all(loops_of(fun, 2).readers[value] for value in (0, 1)):  # JAX drops what nothing reads
            program = planned(fun, SQUARE, SQUARE)
            known = small(program)
            right += [abs(known.need(pairs)[0] - actual(program, pairs)) <= ALIGNMENT for pairs in ways(2)]
    assert len(right) > 90
    assert sum(right) >= 0.95 * len(right)


@pytest.mark.parametrize("seed", range(4))
def test_random_steps_take_no_more_than_nothing_donated(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(5):
        count = draw.choice([2, 3])
        program = planned(some_steps(draw, count), *[SQUARE] * count)
        assert total(program) <= total(without(program)) + ALIGNMENT


# Fusion.


def test_what_two_loops_read_is_stored_if_it_is_expensive() -> None:
    assert len(loops_of(lambda a, b: (jnp.tanh(a) + b, jnp.tanh(a) * b), 2).nodes) == 2
    for twice, nodes in ((jnp.tanh, 3), (jnp.sqrt, 3), (jnp.sin, 2), (lambda a: a**3, 2), (lambda a: a * 2, 2)):

        def fun(a: Any, b: Any, twice: Callable[[Any], Any] = twice) -> Any:
            value = twice(a)
            return value + b, value * b

        assert len(loops_of(fun, 2).nodes) == nodes
        text = jax.jit(fun).lower(SQUARE, SQUARE).compile().as_text()
        assert text[text.index("ENTRY") :].count(" fusion(") == nodes


def test_a_result_of_two_arrays_is_read_where_it_is_and_one_of_one_is_computed_again() -> None:
    def of_two(a: Any, b: Any) -> Any:
        value = a - b
        return value, value * b

    def of_one(a: Any, b: Any) -> Any:
        value = -a
        return value, value * b

    value = flow_of(of_two, 2).outputs[0]
    assert loops_of(of_two, 2).nodes[1].reads == {1, value}
    assert loops_of(of_one, 2).nodes[1].reads == {0, 1}


def test_loops_read_a_value_in_the_order_of_the_results() -> None:
    def fun(a: Any) -> Any:
        return jnp.exp(a), jnp.tanh(a)

    flow = flow_of(fun, 1)
    first, second = flow.outputs
    assert first is not None
    assert second is not None
    for order in ([first, second], [second, first]):
        loops = fused(flow, order)
        assert [node.makes[0] for node in loops.nodes] == order
        assert loops.readers[0] == [0, 1]


def fusions(fun: Callable[..., Any], count: int) -> int:
    """The loops that the compiler makes, and the joins of long rows."""
    text = jax.jit(fun).lower(*[SQUARE] * count).compile().as_text()
    entry = text[text.index("ENTRY") :]
    return entry.count(" fusion(") + entry.count(" concatenate(")


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: (jnp.roll(a, 1, 0) + b, jnp.roll(a, 1, 0) * b),
        lambda a, b: ((jnp.roll(a, 1, 0) + b) * a, jnp.roll(a, 1, 0) * b - a),
        lambda a, b: (a + 0.1 * -(jnp.roll(a, 1, 0) * b), -(jnp.roll(a, 1, 0) * b)),
        lambda a, b: (a + 0.1 * (jnp.roll(a, 1, 0) * b), jnp.roll(a, 1, 0) * b),
        lambda a, b: (jnp.roll(a, 1, 1) - b, b + 1),
        lambda a, b: (jnp.roll(a, 1, 1) - jnp.roll(b, -1, 1), jnp.roll(a, 1, 1) * jnp.roll(b, -1, 0)),
    ],
)
def test_what_is_joined_is_stored_for_several_loops_of_several_steps_and_if_its_rows_are_long(fun: Any) -> None:
    flow = flatten(jax.make_jaxpr(fun)(SQUARE, SQUARE).jaxpr, "cpu", once=True)
    assert Small.is_for(flow)
    assert len(fused(flow, [value for value in flow.outputs if value is not None]).nodes) == fusions(fun, 2)


def test_what_is_computed_again_is_one_step() -> None:
    def fun(a: Any, b: Any) -> Any:
        return jnp.roll(a, 1, 0) + b**2, jnp.roll(a, 1, 0) * b**2 + 0.5 * a, 0.25 * a

    jaxpr = jax.make_jaxpr(fun)(SQUARE, SQUARE).jaxpr
    names = [step.name for step in flatten(jaxpr, "cpu", once=True).steps]
    assert sorted(names) == ["add", "add", "concatenate", *["mul"] * 3, "slice", "slice", "square"]
    assert len(flatten(jaxpr, "cpu").steps) == len(names) + 4


def test_what_is_smaller_can_be_where_a_result_is_written_later() -> None:
    def fun(a: Any, b: Any) -> Any:
        return a + 0.1 * jnp.tanh(a) * b, b + 0.1 * jnp.roll(a, 2, 1) * b

    program = planned(fun, SQUARE, SQUARE)
    known = small(program)
    for pairs in ways(2):
        assert abs(known.need(pairs)[0] - actual(program, pairs)) < BYTES // 8


@pytest.mark.parametrize("backwards", [False, True])
def test_grids_that_are_rolled_along_their_rows_take_no_more_than_with_the_best_pairs(backwards: bool) -> None:
    def advected(field: Any, before: Any, stream: Any) -> Any:
        def along(a: Any, axis: int) -> Any:
            return 0.5 * (jnp.roll(a, -1, axis) - jnp.roll(a, 1, axis))

        change = -(along(stream, 1) * along(field, 0) - along(stream, 0) * along(field, 1))
        made = field + 0.01 * (1.5 * change - 0.5 * before), change
        return made[::-1] if backwards else made

    program = planned(advected, SQUARE, SQUARE, SQUARE)
    assert total(program) <= least(program) + ALIGNMENT


# Copies, order, buffers.


def test_an_input_is_copied_where_another_loop_reads_it_and_a_result_that_need_not_come_after() -> None:
    def fun(a: Any, b: Any) -> Any:
        return a - b, jnp.exp(b)

    loops, flow = loops_of(fun, 2), flow_of(fun, 2)
    one, other = flow.outputs
    assert one is not None
    assert other is not None

    def copies(over: dict[int, int]) -> list[int]:
        return sorted(copied(loops, over, flow.values).original.values())

    assert copies({one: 0}) == []
    assert copies({one: 1}) == copies({other: 1}) == [1], "both read `b`, and neither needs the other"
    assert copies({other: 0}) == [0, other]


def test_a_loop_that_reads_its_input_at_other_places_is_made_elsewhere() -> None:
    loops, flow = loops_of(lambda a: a[::-1] + 1, 1), flow_of(lambda a: a[::-1] + 1, 1)
    (made,) = flow.outputs
    assert made is not None
    assert [*copied(loops, {made: 0}, flow.values).original.values()] == [made]


def test_a_loop_runs_as_soon_as_what_it_reads_is_there() -> None:
    def fun(a: Any, b: Any) -> Any:
        late = jnp.tanh(jnp.exp(a) @ b)
        return late, jnp.exp(b)

    flow = flow_of(fun, 2)
    loops = loops_of(fun, 2)
    order = schedule(copied(loops, {}, flow.values), flow.inputs)
    last = loops.nodes[order[-1]]
    assert sorted(order) == list(range(len(loops.nodes)))
    assert last.makes[0] == flow.outputs[0]


def test_what_is_not_known_is_left_to_the_other_rules() -> None:
    def long(a: Any) -> Any:
        for _ in range(80):
            a = jnp.sin(a) + 1
        return a

    for fun in (
        long,
        lambda a: a.T + 1,
        lambda a: jnp.sort(a),
        lambda a: lax.fori_loop(0, 3, lambda _, x: x + 1, a),
        lambda a: (a + 1, jnp.zeros_like(a)),
        lambda a: (a + 1, jnp.full((1, 1), 2.0)),
        lambda a: (a + 1, a.reshape(-1)),
        lambda a: a**3 + 1,
        lambda a: a - a.sum(),
        lambda a: a / a.max(0),
    ):
        assert not Small.is_for(flow_of(fun, 1))
    assert not Small.is_for(flow_of(lambda: (), 0)), "no steps, no arguments, no results"
    for fun in (lambda a: (a + 1, (a * a).sum()), lambda a: a @ a + 1, lambda a: jnp.roll(a, 1, 0) - a):
        assert Small.is_for(flow_of(fun, 1))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, y: (x - x.sum(), jnp.exp(x)),
        lambda x, y: (x * x.sum(0), jnp.round(x)),
        lambda x, y: (jnp.abs(x**3), x ** (x**3)),
        lambda x, y: (lax.bitcast_convert_type(x, jnp.int32), y * 2),
        lambda x, y: (x.reshape(-1), jnp.sin(x) + y),
    ],
)
def test_what_the_compiler_does_otherwise_takes_no_more_than_nothing_donated(fun: Callable[..., Any]) -> None:
    program = planned(fun, SQUARE, SQUARE)
    assert total(program) <= total(without(program)) + ALIGNMENT


def test_results_that_are_made_of_nothing_and_small_ones_are_written_somewhere() -> None:
    """Beside a large one, for which there is something to be chosen."""

    @pytc.compile
    def step(count: Any, x: Any) -> Any:
        return jnp.zeros((1,)), 2 * x, count + x.sum()

    count, x = jnp.zeros((1,)), jnp.ones((N, N))
    for _ in range(3):
        _, x, count = step(count, x)
    assert (float(x[0, 0]), float(count[0])) == (8.0, 7.0 * N * N)


def test_many_arguments_that_are_handed_back_take_no_time() -> None:
    """Where no pass before has taken them out of the program."""
    flow = flatten(jax.make_jaxpr(lambda *each: each[::-1])(*[SQUARE] * 60).jaxpr, "cpu")
    assert not Small.is_for(flow)


def sums_of_neighbours(count: int) -> Small:
    flow = flow_of(lambda *each: [jnp.tanh(x) * y for x, y in itertools.pairwise(each)], count)
    return Small(flow, dict.fromkeys((*flow.inputs, *flow.outputs), BYTES))


def test_no_more_choices_are_computed_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known, computed = sums_of_neighbours(20), list[Any]()
    need = Small._need
    monkeypatch.setattr(Small, "_need", lambda self, pairs: computed.append(pairs) or need(self, pairs))
    smallest(frozenset(), [(range(20), range(19))], known)
    assert len(computed) <= known.most + 2 < 10


def test_what_was_computed_before_makes_no_difference() -> None:
    """The same program is paired for what its caller lets go of, and as if that were all."""
    some, every = [(range(4), range(7))], [(range(8), range(7))]
    fresh = smallest(frozenset(), every, sums_of_neighbours(8))
    known = sums_of_neighbours(8)
    smallest(frozenset(), some, known)
    assert smallest(frozenset(), every, known) == fresh != frozenset()
