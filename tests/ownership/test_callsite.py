"""What is found out about a call site, once."""

import time

from pytc.ownership.callsite import Site
from pytc.ownership.liveness import Flow


def test_a_script_of_many_names_takes_no_longer_than_its_code() -> None:
    """Each global is looked at, for it may read variables, also by an attribute of any name in the code."""
    names = [f"g{i}" for i in range(500)]
    space: dict[str, object] = dict.fromkeys(names, len) | {"f": len}
    body = "\n".join(f"    {name}(x.of_{name})" for name in names)
    exec(f"def run(x):\n{body}\n    x = f(x)\n    return x\n", space)
    code = space["run"].__code__  # type: ignore[attr-defined]

    def seconds() -> tuple[float, float]:
        start = time.perf_counter()
        flow = Flow(code)
        middle = time.perf_counter()
        call = [each.offset for each in flow.instructions if each.opname == "CALL"][-1]
        assert Site(flow, call, space, {}).dead(False, None) == {0}
        return middle - start, time.perf_counter() - middle

    flows, sites = zip(*[seconds() for _ in range(3)], strict=True)
    assert min(sites) < min(flows)
