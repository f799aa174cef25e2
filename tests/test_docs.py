"""The documentation does what it says: every Python block runs, and prints the text block that follows it.

The blocks of one page are one script, with the line numbers of the page, run as a reader would run it: what pytc
proves depends on the code around a call, so a page cut into pieces would not be the program that it shows.
"""

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interpreters import ROOT, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
END_OF_BLOCK = "-- end of the block that starts on line {} --"


class Block(NamedTuple):
    language: str
    first: int
    lines: list[str]
    follows: int | None
    """The line on which the block above starts, where nothing but space is between the two."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: Block | None = None
    above: int | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"```\s*(\S*)", line)
        if fence and inside is None:
            inside = Block(fence[1], number + 1, [], above)
        elif fence and inside is not None:
            found.append(inside)
            inside, above = None, inside.first
        elif inside is not None:
            inside.lines.append(line)
        elif line.strip():
            above = None
    assert inside is None, f"{page.name}: the block that starts on line {inside.first} has no end"
    return found


def script(page: Path) -> str:
    """The Python blocks of the page on the lines that they have there, each followed by a mark in the output."""
    lines: list[str] = [""] * (len(page.read_text(encoding="utf-8").splitlines()) + 1)
    for block in blocks(page):
        if block.language == "python":
            lines[block.first - 1 : block.first - 1 + len(block.lines)] = block.lines
            lines[block.first - 1 + len(block.lines)] = f"print({END_OF_BLOCK.format(block.first)!r}, flush=True)"
    return "\n".join(lines) + "\n"


def printed(output: str) -> dict[int, str]:
    """What each block printed, by the line on which it starts."""
    by_block, rest = {}, output
    for mark in re.finditer(END_OF_BLOCK.format(r"(\d+)") + "\n", output):
        before, _, rest = rest.partition(mark[0])
        by_block[int(mark[1])] = before
    return by_block


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_examples_run_and_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{page.stem.lower()}.py"
    file.write_text(script(page), encoding="utf-8")
    done = run([file.name], tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=8", COLUMNS="100")
    assert done.returncode == 0, f"{page.name} (line numbers are the page's)\n{done.stdout}\n{done.stderr}"
    assert "Exception ignored" not in done.stderr, done.stderr
    outputs = printed(done.stdout)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in blocks(page):
        if block.language == "text" and block.follows in outputs:
            wanted = "\n".join(block.lines) + "\n"
            matches = doctest.OutputChecker().check_output(wanted, outputs[block.follows], options)
            assert matches, (
                f"{page.name}:{block.first} shows\n{wanted}\nand the program printed\n{outputs[block.follows]}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text)
    missing = [link for link in links if not leads_somewhere(page, link)]
    assert not missing


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
