"""What is found out about a call site, once."""

import builtins
import time
from collections.abc import Iterator
from typing import Any

from pytc.ownership.bytecode.callsite import CallSite
from pytc.ownership.bytecode.events import Step
from pytc.ownership.bytecode.liveness import ControlFlow
from pytc.ownership.bytecode.symbolic import loaded
from pytc.ownership.words.variables import _assigned


def test_a_script_of_many_names_takes_no_longer_than_its_code() -> None:
    """Each global is looked at, for it may read variables, also by an attribute of any name in the code."""
    names = [f"g{i}" for i in range(500)]
    space: dict[str, object] = dict.fromkeys(names, len) | {"f": len}
    body = "\n".join(f"    {name}(x.of_{name})" for name in names)
    exec(f"def run(x):\n{body}\n    x = f(x)\n    return x\n", space)
    code = space["run"].__code__  # type: ignore[attr-defined]

    def seconds() -> tuple[float, float]:
        start = time.perf_counter()
        flow = ControlFlow(code)
        middle = time.perf_counter()
        call = [each.offset for each in flow.instructions if each.opname == "CALL"][-1]
        assert CallSite(flow, call, space, {}).dead(False, None) == {0}
        return middle - start, time.perf_counter() - middle

    flows, sites = zip(*[seconds() for _ in range(3)], strict=True)
    assert min(sites) < min(flows)


class _Counted(list[Any]):
    """A list that counts how often an item of it is read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += len(range(len(self))[at]) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        self.reads += len(self)
        return super().__iter__()


def _reads_for_one_more_site(lines: int) -> int:
    """How many instructions are read for a call site in the middle of so much code, once another site is known."""
    body = "".join(
        f"    v = f(x)\n    w = v + {i}\n    for y in [x]:\n        f(y, 'step')\n    print(w) if y else None\n"
        for i in range(lines)
    )
    space: dict[str, Any] = {}
    exec(f"def run(f, x, y):\n{body}    return x\n", space)
    flow = ControlFlow(space["run"].__code__)
    calls = [n for n, each in enumerate(flow.instructions) if each.opname == "CALL"]
    reads = []
    counted = flow.instructions = _Counted(flow.instructions)
    for call in (calls[0], calls[len(calls) // 2 // 3 * 3]):
        counted.reads = 0
        site = CallSite(flow, flow.offsets[call], space, vars(builtins))
        assert (Step("fast", 1),) in loaded(flow, site.at)
        assert flow.next_read(site.at, 1)
        assert _assigned(flow, site.at, 2)
        reads.append(counted.reads)
    assert reads[0] > len(counted)
    return reads[1]


def test_what_a_site_costs_does_not_grow_with_the_code() -> None:
    """Tables of the whole code are made once, not for each call site: there are as many of these as lines."""
    few, many = _reads_for_one_more_site(40), _reads_for_one_more_site(80)
    # `_assigned` looks at the loops that end behind the call.
    assert many - few <= 2 * 40
    assert many < 300
