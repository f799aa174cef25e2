function (root) {
  const size = (bytes) => {
    if (bytes < 1024) return bytes + " B";
    let unit = -1;
    do { bytes /= 1024; unit += 1; } while (bytes >= 1023.5 && unit < 3);
    return (bytes < 9.95 ? bytes.toFixed(1) : Math.round(bytes)) + " " + ["KiB", "MiB", "GiB", "TiB"][unit];
  };

  // The memory over the program: what is alive under the cursor, by pointer or by arrow keys.
  const timeline = root.querySelector(".timeline");
  const steps = JSON.parse(timeline.querySelector("script").textContent);
  const cursor = timeline.querySelector(".cursor");
  const reading = root.querySelector(".reading");
  const names = ["kept", "reused later", "in reused memory", "new outputs", "temporaries"];
  let at = 0;
  const show = (number) => {
    at = Math.max(0, Math.min(steps.length - 1, number));
    const [step, primitive, source, ...bytes] = steps[at];
    const without = bytes.pop();
    const x = (at + 0.5) / steps.length * 1000;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const parts = bytes.map((b, i) => b ? `${size(b)} ${names[i]}` : "").filter(Boolean);
    const total = bytes.reduce((a, b) => a + b, 0);
    const text = `Equation ${step}, ${primitive}${source ? ", " + source : ""}: ${size(total)} alive` +
      ` (${parts.join(", ")}); ${size(without)} if nothing were reused.`;
    reading.textContent = text;
    timeline.setAttribute("aria-valuenow", at);
    timeline.setAttribute("aria-valuetext", text);
  };
  timeline.addEventListener("pointermove", (event) => {
    const box = timeline.getBoundingClientRect();
    show(Math.floor((event.clientX - box.left) / box.width * steps.length));
  });
  timeline.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(steps.length / 10));
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, PageUp: at + page, PageDown: at - page, Home: 0, End: steps.length - 1 };
    if (event.key in moves) {
      show(moves[event.key]);
      event.preventDefault();
    }
  });

  // The table: search, and sorting by a column. Long ones are shown in part until something is searched for.
  const MOST = 200;
  const table = root.querySelector("table.leaves");
  const body = table.tBodies[0];
  const search = root.querySelector("input[type=search]");
  const count = root.querySelector("output.count");
  const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0, shown = 0;
    for (const row of body.rows) {
      const matches = words.every((word) => texts.get(row).includes(word));
      found += matches;
      row.hidden = !matches || shown >= MOST;
      shown += !row.hidden;
    }
    count.textContent = (shown < found ? `${shown} of ` : "") + `${found} found`;
  };
  search.addEventListener("input", filter);
  filter();
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" || (column === 0 && !head.hasAttribute("aria-sort"));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => column === 0 ? +row.cells[0].dataset.value : row.cells[column].textContent;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      return typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
    };
    const rows = [...body.rows].sort((a, b) => down ? compare(b, a) : compare(a, b));
    body.append(...rows);
    filter();
  }));

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea, [contenteditable]") && root.isConnected) {
      search.focus();
      event.preventDefault();
    }
  });
}
