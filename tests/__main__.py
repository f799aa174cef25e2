"""`python -m tests`: all tests, in as many processes as there are processors, each of which takes the next module.

pytest-xdist is not for these tests: a thread of its own waits in each of its processes, and for what is tested here
another thread is a reason to keep an array.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROCESSES = min(os.cpu_count() or 1, 8)


def main() -> int:
    """Run them all. What the first process prints comes at once, and that of each other when all have ended."""
    with tempfile.TemporaryDirectory(prefix="pytc-tests-") as begun, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "tests", begun]
        printed = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(PROCESSES - 1)]
        others = [
            subprocess.Popen([*command, "-p", "no:cacheprovider"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            for file in printed
        ]
        for other in others:
            stack.callback(other.kill)  # where this process is interrupted
        statuses = [subprocess.run(command, cwd=ROOT, check=False).returncode]
        for other, file in zip(others, printed, strict=True):
            statuses.append(other.wait())
            file.seek(0)
            print(file.read(), flush=True)
    return max(statuses, key=abs)


class Shared:
    """Runs the tests of each module in that process alone that comes to it first."""

    def __init__(self, begun: Path):
        self.begun = begun

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Ask for a module no sooner than at the last test of the one before: by then it is known which is next."""
        for item, nextitem in itertools.pairwise(itertools.chain(self._mine(session.items), [None])):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        return True

    def _mine(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        for module, tests in itertools.groupby(items, lambda item: item.path):
            try:
                (self.begun / str(module.relative_to(ROOT)).replace(os.sep, ".")).mkdir()
            except FileExistsError:  # another process has begun it
                continue
            yield from tests


if __name__ == "__main__":
    if sys.argv[1:]:
        begun, *options = sys.argv[1:]
        sys.exit(pytest.main([str(ROOT / "tests"), *options], plugins=[Shared(Path(begun))]))
    sys.exit(main())
