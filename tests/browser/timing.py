"""Measures how fast the page loads. `scripts/bench page` runs it; it prints a JSON list of measurements."""

import json
import statistics
import sys
import time

from browser import browser, visit_in

#: The daemon's address, its number of models, and how often each value is measured.
ADDRESS, MODELS, REPEATS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

#: The time of the first contentful paint.
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
#: The duration of the longest frame while an element is scrolled to its end.
SCROLL = """async (table) => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const step = table.scrollHeight / 120;
  let longest = 0;
  let last = await frame();
  for (let place = 0; place < 120; place += 1) {
    table.scrollTop += step;
    const now = await frame();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}"""

#: The same without scrolling: the baseline of the machine.
STILL = SCROLL.replace("table.scrollTop += step", "table.scrollTop += 0")
#: The time from a click on the first column's header to the frame after the sorted one.
SORT = """async (table) => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  await frame();
  const begin = performance.now();
  table.querySelector("button.sort").click();
  await frame();
  return (await frame()) - begin;
}"""


def timed(chromium, address: str, path: str, ready: str, then=None) -> list[float]:
    values = []
    for _ in range(REPEATS):
        with visit_in(chromium, address) as visited:
            begin = time.perf_counter()
            visited.go(path)
            visited.page.locator(ready).first.wait_for()
            values.append(then(visited.page) if then else (time.perf_counter() - begin) * 1000)
    return values


def main() -> None:
    address, models = ADDRESS, MODELS
    rows = []

    def row(name: str, values: list[float], unit: str, what: str) -> None:
        rows.append({"name": name, "value": statistics.median(values), "unit": unit, "what": what})

    with browser() as chromium:
        tabs = ["overview", "tensors", "map", "memory", "documents", "lineage", "versions", "blobs"]
        views = ["chat", "models", "store", "running", "registry"] + [f"model?name=tiny&tab={tab}" for tab in tabs]
        with visit_in(chromium, address) as visited:
            sent = {}
            # Keeps the first response of each URL; later ones come from the browser's cache.
            visited.page.on("response", lambda response: sent.setdefault(response.url, response))
            for view in views:
                visited.go(f"/ui/{view}")
                visited.page.locator("main h1, .compose").first.wait_for()
                visited.page.wait_for_load_state("networkidle")
            files = [one for url, one in sent.items() if "/ui/files/" in url]
            sizes = [one.request.sizes()["responseBodySize"] for one in files]
            row("size", [sum(sizes) / 1000], "kB", "all files")
        # A line of text from the same daemon: the lower bound for any page.
        row("line", timed(chromium, address, "/api/version", "pre", lambda page: page.evaluate(PAINT)), "ms", "a line of text")
        row("paint", timed(chromium, address, "/ui/chat", ".compose", lambda page: page.evaluate(PAINT)), "ms", "loopback")
        label = f"text={models:,} models ·"
        row("names", timed(chromium, address, "/ui/models", ".table-body .row"), "ms", "the first of them")
        row("list", timed(chromium, address, "/ui/models", label), "ms", f"{models} models")
        wide = "/ui/model?name=wide:latest&tab=tensors"
        row("tensors", timed(chromium, address, wide, ".table-body .row"), "ms", "the table is there")
        row("sort", timed(chromium, address, wide, ".table-body .row", lambda page: page.locator(".table").evaluate(SORT)), "ms", "by name, until it is painted")
        row("still", timed(chromium, address, wide, ".table-body .row", lambda page: page.locator(".table").evaluate(STILL)), "ms", "the longest frame of a page at rest")
        row("scroll", timed(chromium, address, wide, ".table-body .row", lambda page: page.locator(".table").evaluate(SCROLL)), "ms", "the longest frame")
    print(json.dumps(rows))


main()
