"""The page in a real browser: it renders, nothing is fetched, no script fails, and the keyboard works.

    python -m tests.explain.in_chromium report.html
    python -m tests.explain.in_chromium report.html docs/images/report.png 1280,900     a picture of it

Needs Chromium or its headless shell (`apt-get install chromium-headless-shell`), which the rest of the tests do not.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
SIZES = {"phone": "390,844", "desk": "1280,900"}

WATCH = """<script>
window.errors = [];
window.onerror = (message) => errors.push(message);
document.addEventListener("securitypolicyviolation", (event) => errors.push("fetched " + event.blockedURI));
</script>"""

ACT = """<script>
const found = {};
const press = (key, element) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const timeline = document.querySelector(".timeline"), reading = document.querySelector(".reading");
const box = timeline.getBoundingClientRect();
found.drawn = box.width > 100 && box.height > 100;
const flows = [...document.querySelectorAll("svg.flow")].filter((svg) => svg.getBoundingClientRect().height > 40);
found.flow = flows.length === 1 || document.body.textContent.includes("nothing on one of the two sides");
const legible = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width > 0.8;
found.legible = flows.every(legible);
timeline.focus();
press("ArrowRight", timeline);
press("ArrowRight", timeline);
found.arrows = timeline.getAttribute("aria-valuenow") === "2" && reading.textContent.startsWith("Equation ");
press("End", timeline);
found.end = reading.textContent.includes(", return: ");
timeline.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 1, bubbles: true }));
found.pointer = timeline.getAttribute("aria-valuenow") === "0";
press("/", document.body);
const search = document.querySelector("input[type=search]");
found.slash = document.activeElement === search;
search.value = "no such leaf";
search.dispatchEvent(new Event("input"));
found.search = document.querySelector("output.count").textContent === "0 found";
search.value = "";
search.dispatchEvent(new Event("input"));
const heads = document.querySelectorAll(".leaves thead button");
heads[2].click();
const paths = [...document.querySelectorAll(".leaves tbody code")].map((code) => code.textContent);
found.sorted = paths.join() === [...paths].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).join();
found.fits = document.documentElement.scrollWidth <= innerWidth;
found.unfetched = performance.getEntriesByType("resource").length === 0;
found.errors = errors;
const report = document.createElement("pre");
report.id = "report";
report.textContent = JSON.stringify(found);
document.body.append(report);
</script>"""


def browser() -> str | None:
    """Where a browser is, if one is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def check(page: Path) -> dict[str, dict[str, object]]:
    """What was found, by size of the window; everything is true and `errors` empty where all is well."""
    found_browser = browser()
    if found_browser is None:
        raise FileNotFoundError(f"no browser is installed, none of {', '.join(BROWSERS)}")
    text = page.read_text("utf-8").replace("<head>", f"<head>{WATCH}", 1).replace("</body>", f"{ACT}</body>", 1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        watched = Path(folder) / "page.html"
        watched.write_text(text, "utf-8")
        for name, size in SIZES.items():
            command = [
                found_browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--window-size={size}",
                "--dump-dom",
            ]
            dom = subprocess.run([*command, watched.as_uri()], capture_output=True, text=True, check=True).stdout
            report = re.search(r'<pre id="report">(.*?)</pre>', dom, re.DOTALL)
            found[name] = (
                {"errors": ["the script did not run"]} if report is None else json.loads(html.unescape(report[1]))
            )
    return found


def take_picture(page: Path, picture: Path, size: str) -> None:
    """Write what a window of this size shows."""
    command = [browser() or BROWSERS[0], *HEADLESS, f"--window-size={size}", f"--screenshot={picture.absolute()}"]
    subprocess.run([*command, page.absolute().as_uri()], capture_output=True, check=True)


if __name__ == "__main__" and len(sys.argv) > 2:
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
elif __name__ == "__main__":
    results = check(Path(sys.argv[1]))
    print(json.dumps(results, indent=2))
    sys.exit(any(result.pop("errors") or not all(result.values()) for result in results.values()))
