"""Measure the page in Debian's chromium: its size, paint times, long lists and scrolling.

  size       size of all files of the page, as sent
  line       from the request to the first paint of a line of text: the minimum of this browser and
             machine
  paint      from the request to the first contentful paint, on loopback
  names      from the request to a list of --models models
  list       from the request to that list with the bytes of each model
  tensors    from the request to a table of --tensors tensors
  sort       from a click to that table in another order
  still      the longest frame while nothing happens
  scroll     the longest frame while that table is scrolled from its beginning to its end

Needs chromium, and the Python with `playwright` that scripts/test installs (`LODE_TEST_BROWSER`). A
result is the median of several loads, each in a browser without a cache.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from .bench import Bench
from .daemon import Failed, with_log
from .folder_synthetic import write_model
from .report import of_rows

NAMES = ["size", "line", "paint", "names", "list", "tensors", "sort", "still", "scroll"]
SIZE_KB = 300
PAINT_MS = 200
# The number of tensors in a layer of the synthetic model.
TENSORS_OF_LAYER = 9


class Page(Bench):
    """The benchmark, with one daemon that has all models."""

    def run_all(self):
        lode = self.store()
        try:
            self.fill(lode)
            for row in self.measure(lode):
                if self.wants(row["name"]):
                    limit = {"size": SIZE_KB, "paint": PAINT_MS}.get(row["name"])
                    ratio = row["value"] / limit if limit else None
                    self.row(row["name"], row["value"], row["unit"], ratio, f"{limit} {row['unit']}" if limit else row["what"])
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()

    def fill(self, lode):
        tiny = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "tiny-llama"
        lode.command("create", "tiny", "-f", tiny)
        self.say(f"creating {self.options.models} models")
        for number in range(self.options.models - 2):
            # Each has a different system prompt, so that they are models, not names of one model.
            made = {"model": f"family-{number % 40}:{number}", "from": "tiny", "system": f"You are number {number}.", "stream": False}
            lode.request("POST", "/api/create", made)
        self.say(f"creating a model of {self.options.tensors} tensors")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            write_model(Path(folder) / "wide", 1, layers=self.options.tensors // TENSORS_OF_LAYER)
            lode.command("create", "wide", "-f", Path(folder) / "wide")

    def measure(self, lode):
        default = Path.home() / ".cache" / "lode" / "venv-browser" / "bin" / "python"
        python = Path(os.environ.get("LODE_TEST_BROWSER") or default)
        if not python.is_file():
            raise Failed(f"there is no {python}; scripts/test makes it")
        script = Path(__file__).resolve().parents[2] / "tests" / "browser" / "timing.py"
        command = [str(python), str(script), f"127.0.0.1:{lode.port}", str(self.options.models), str(self.options.repeats)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"the browser failed: {done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout)


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this benchmark; repeatable")
    parser.add_argument("--models", type=int, default=2000, metavar="COUNT", help="models in the list (default 2000)")
    parser.add_argument("--tensors", type=int, default=10000, metavar="COUNT", help="approximate number of tensors in the large model (default 10000)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="measurements of each result (default 5)")


def check(parser, options):
    options.only = options.only or NAMES
    if options.models < 3 or options.tensors < TENSORS_OF_LAYER:
        parser.error(f"--models must be 3 at least, --tensors {TENSORS_OF_LAYER}")
    if options.repeats < 1:
        parser.error("--repeats must be 1 at least")


def run(options, folder):
    bench = Page(options, folder)
    return of_rows(bench.rows, bench.run_groups([(tuple(NAMES), bench.run_all)]))
