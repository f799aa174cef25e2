"""Where an instruction stores to, as far as that one instruction tells."""

from __future__ import annotations

from pytc.ownership.bytecode.events import Step
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.set_bits import set_bits


def stored(flow: ControlFlow, at: int) -> list[Step]:
    """The last steps of the places that instruction `at` stores to. (Which item it is, no instruction tells.)"""
    instruction = flow.instructions[at]
    match instruction.opname:
        case "STORE_DEREF":
            return [Step("cell", instruction.arg)]
        case "STORE_GLOBAL" | "STORE_NAME":
            return [Step("global", instruction.argval)]
        case "STORE_ATTR":
            return [Step("attribute", instruction.argval)]
        case _:
            return [Step("fast", number) for number in set_bits(flow.writes[at])]


def may_store(flow: ControlFlow, at: int, last: Step) -> bool:
    """Whether instruction `at` stores to places that end like this one."""
    if last.kind == "item":
        return flow.instructions[at].opname == "STORE_SUBSCR"
    return last in stored(flow, at)
