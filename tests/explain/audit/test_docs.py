"""The page on auditing shows what a run shows."""

import doctest
import re
from pathlib import Path

import pytest

from tests import interpreters
from tests.explain.audit.test_scripts import AUDIT

PAGE = (interpreters.ROOT / "docs" / "audit.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("name", ["train", "failing"])
def test_the_report_on_the_page(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.py"
    sources = [text for language, text in BLOCKS if language == "python"]
    source = next(text for text in sources if ("def failing" in text) is (name == "failing"))
    script.write_text(source + ("\n\nfailing()\n" if name == "failing" else ""), "utf-8")
    shown = next(text for language, text in BLOCKS if language == "console" and f"audit {name}.py\n" in text)
    out = tmp_path / "report.txt"
    run = interpreters.run([AUDIT, "--out", out, "--width", "100", script])
    assert run.returncode == (name == "failing"), run.stderr
    wanted = shown.partition("\n")[2]
    assert doctest.OutputChecker().check_output(wanted, out.read_text("utf-8"), doctest.NORMALIZE_WHITESPACE), (
        out.read_text()
    )
