"""Which steps become one loop, and so which values are stored: XLA's `InstructionFusion`, as a CPU's compiler has it.

It goes from the results to the inputs, and takes into each loop what that reads, again and again. What several loops
read is computed in each of them, if

    - it is not expensive, and
    - it reads at most one array, or can be fused along every way that leads on from it. (Not if one of them leads
      through something that is in memory, as a result is.)

Otherwise it is stored. So is what is joined of parts (a roll), where a loop of several steps and another one would both
take it in: there it would need a loop within each. As in XLA, the order in which loops read one value is an outcome,
too, since the `schedule` depends on it: a new loop is the last reader of what it reads, and the last reader takes the
place of one that goes.

Source: `xla/service/instruction_fusion.cc` and `xla/service/cpu/cpu_instruction_fusion.cc` of openxla/xla.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pytc.passes.dataflow import DIVISIONS, Flow, Kind, Step
from pytc.passes.temporaries import CHEAP, FUSED, last_loop

_CHEAP = CHEAP["cpu"] | {*DIVISIONS.values()}
_FUSIBLE = (Kind.ELEMENTWISE, Kind.INDEXED)
_REUSE = frozenset({"broadcast_in_dim", "gather"})
"""What reads one element of its operand several times."""


class Node(NamedTuple):
    """A loop over elements, or another step that makes its results in memory."""

    makes: tuple[int, ...]
    in_step: frozenset[int]
    """The stored values that it reads element by element, in step with its writing, so that it may write over them."""
    elsewhere: frozenset[int]
    """Those that it reads at other places, or whole."""

    @property
    def reads(self) -> frozenset[int]:
        """All stored values that it reads."""
        return self.in_step | self.elsewhere


class Fused(NamedTuple):
    """A program as its compiler has it after fusion."""

    nodes: list[Node]
    """Each after those that it needs."""
    readers: Mapping[int, Sequence[int]]
    """For each stored value, the nodes that read it, in the compiler's order."""
    needed: list[int]
    """For each node, the nodes that it needs, as bits."""


class _Instruction:
    """A step, or several that have been fused into the last of them; without steps, an argument or the tuple of the
    results."""

    __slots__ = ("fused", "is_gone", "operands", "steps", "users")

    def __init__(self, *steps: Step) -> None:
        self.steps = [*steps]
        self.operands: list[_Instruction] = []
        self.users: list[_Instruction] = []
        self.fused = False
        self.is_gone = False

    def read(self, operands: Iterable[_Instruction]) -> None:
        """Become the last user of these, where it is none yet."""
        for operand in operands:
            if operand not in self.operands:
                self.operands.append(operand)
                operand.users.append(self)

    def read_no_more(self, operand: _Instruction) -> None:
        """The last user of an operand takes this one's place."""
        self.operands.remove(operand)
        place = operand.users.index(self)
        operand.users[place] = operand.users[-1]
        operand.users.pop()

    def go(self) -> None:
        """Be removed from the program."""
        self.is_gone = True
        for operand in [*self.operands]:
            self.read_no_more(operand)


def fused(flow: Flow, results: Sequence[int]) -> Fused:
    """The nodes of a program that returns these values, in this order. Takes time quadratic in the steps at worst."""
    by_value, result = _instructions(flow, results)
    order = _post_order(result)
    stored = _stored(order, flow)
    every = _fuse(order, by_value, stored)
    left = [instruction for instruction in _post_order(result) if instruction.steps]
    number = {instruction: k for k, instruction in enumerate(left)}
    nodes = [_node(instruction, flow, by_value.keys()) for instruction in left]
    readers: dict[int, list[int]] = {}
    for value, instruction in by_value.items():
        readers[value] = [
            k for user in instruction.users if (k := number.get(user)) is not None and value in nodes[k].reads
        ]
    for instruction in every:
        instruction.operands, instruction.users = [], []  # each has the other, which only the collector would end
    return Fused(nodes, readers, _needed(nodes))


def _instructions(flow: Flow, results: Sequence[int]) -> tuple[dict[int, _Instruction], _Instruction]:
    """The instruction that makes each value, and the tuple of the results. What no result needs is in neither's users.

    The compiler has put the program together anew before it comes to fusion, from the first result to the last, so
    that its instructions read a value in this order, whatever it was before.
    """
    roots = flow.roots
    by_value = {value: _Instruction() for value in flow.inputs}
    for step in flow.steps:
        if not step.view:
            instruction = _Instruction(step)
            by_value.update(dict.fromkeys(step.makes, instruction))
            operands = (by_value.get(roots[value]) for value in step.reads)
            instruction.operands = list(dict.fromkeys(operand for operand in operands if operand is not None))
    result = _Instruction()
    result.operands = list(dict.fromkeys(by_value[value] for value in results if value in by_value))
    for instruction in _post_order(result):
        for operand in instruction.operands:
            operand.users.append(instruction)
    return by_value, result


def _post_order(last: _Instruction) -> list[_Instruction]:
    """All that `last` needs, and itself: each after its operands, and these in their order."""
    order: list[_Instruction] = []
    seen = {last}
    pending = [(last, iter(last.operands))]
    while pending:
        instruction, operands = pending[-1]
        operand = next((operand for operand in operands if operand not in seen), None)
        if operand is None:
            order.append(instruction)
            pending.pop()
        else:
            seen.add(operand)
            pending.append((operand, iter(operand.operands)))
    return order


def _takes(consumer: _Instruction, producer: _Instruction) -> bool:
    """Whether a loop can compute an operand, as far as only the two of them matter: what is expensive, only for its one
    reader, and once."""
    if not producer.steps or not consumer.steps or producer.fused:
        return False
    step, by = producer.steps[0], consumer.steps[0]
    if step.kind not in _FUSIBLE or not (by.kind in _FUSIBLE or by.name in FUSED["cpu"]):
        return False
    if step.name == "concatenate" and consumer.fused and len(producer.users) > 1:
        return False
    is_expensive = step.kind is Kind.ELEMENTWISE and step.name not in _CHEAP
    return not is_expensive or (len(producer.users) == 1 and by.name not in _REUSE)


def _stored(order: Sequence[_Instruction], flow: Flow) -> Set[_Instruction]:
    """Instructions that no other may compute again."""
    before: dict[_Instruction, set[_Instruction]] = {}
    for instruction in order:
        before[instruction] = set(instruction.operands).union(*(before[operand] for operand in instruction.operands))
    of_few = {value for step in flow.steps if step.name in ("broadcast_in_dim", "iota") for value in step.makes}
    stored: set[_Instruction] = set()

    for consumer in order:
        for producer in consumer.operands:
            if producer in stored or not producer.steps:
                continue
            step = producer.steps[0]
            if sum(value not in of_few for value in step.reads) > 1 or step.name == "square":  # which is `x * x`
                known: dict[_Instruction, bool] = {}
                if not all(_takes_all_between(user, producer, before, stored, known) for user in producer.users):
                    stored.add(producer)
    return stored


def _takes_all_between(
    consumer: _Instruction,
    producer: _Instruction,
    before: Mapping[_Instruction, Set[_Instruction]],
    stored: Set[_Instruction],
    known: dict[_Instruction, bool],
) -> bool:
    """Whether a loop can compute all on any way from a value to it. `before` has what each needs, at any remove."""
    if consumer is producer:
        return True
    if consumer not in known:
        known[consumer] = bool(consumer.steps) and all(
            operand not in stored
            and _takes(consumer, operand)
            and _takes_all_between(operand, producer, before, stored, known)
            for operand in consumer.operands
            if operand is producer or producer in before[operand]
        )
    return known[consumer]


def _fuse(
    order: Sequence[_Instruction], by_value: dict[int, _Instruction], stored: Set[_Instruction]
) -> list[_Instruction]:
    """Take into each loop what it reads, and it alone may or any may: from the last loop to the first, and of what it
    reads the last first. Returns all instructions that there have been."""
    queue = [*order]
    place = {instruction: k for k, instruction in enumerate(queue)}
    while queue:
        consumer = queue.pop()
        if consumer.is_gone:
            continue
        operands = [operand for operand in consumer.operands if operand in place]
        for producer in sorted(operands, key=place.__getitem__, reverse=True):
            if producer not in stored and _takes(consumer, producer):
                loop = _with(consumer, producer, by_value)
                place[loop] = len(queue)
                queue.append(loop)  # as it reads something else now
                break
    return [*place]


def _with(consumer: _Instruction, producer: _Instruction, by_value: dict[int, _Instruction]) -> _Instruction:
    """The loop that also computes what a step makes that it reads."""
    loop = consumer
    if not consumer.fused:
        loop = _Instruction(*consumer.steps)
        loop.fused = True
        loop.read(consumer.operands)
        for user in consumer.users:
            user.operands[user.operands.index(consumer)] = loop
        loop.users = consumer.users
        consumer.go()
        by_value.update(dict.fromkeys(consumer.steps[0].makes, loop))
    loop.read_no_more(producer)
    loop.read(producer.operands)
    loop.steps += producer.steps
    if not producer.users:
        producer.go()
    return loop


def _node(instruction: _Instruction, flow: Flow, known: Set[int]) -> Node:
    """What an instruction makes, and how it reads what is stored. Only values that are `known` are made, or given."""
    makers = {value: step for step in instruction.steps for value in step.makes}
    makes = instruction.steps[0].makes
    loop = last_loop(makes[0], makers, frozenset(), flow.roots)
    stored = known - makers.keys()
    return Node(makes, frozenset(loop.in_step & stored), frozenset(loop.elsewhere & stored))


def _needed(nodes: Sequence[Node]) -> list[int]:
    maker = {value: number for number, node in enumerate(nodes) for value in node.makes}
    needed: list[int] = []
    for node in nodes:
        bits = 0
        for value in node.reads:
            if (number := maker.get(value)) is not None:
                bits |= needed[number] | 1 << number
        needed.append(bits)
    return needed
