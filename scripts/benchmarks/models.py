"""Measure a daemon whose store has very many models.

  first_start    from `lode serve` on the synthetic store to the first answer
  start          the same, for a store that was closed
  page           `/api/tags?limit=100`: the median of pages all over the list, each for the first time
  search         `/api/tags?q=...`: the median of several searches
  collection     `/api/lode/gc`
  requests       the longest request while it runs: pages, manifests and uploads, one after the other
  memory         the daemon's resident memory at most
  index          bytes of the index on the disk

The store is made by `scripts/synthetic-store`: --models models, each with --blobs blobs of its own. A
million blobs take 4 GB and a few minutes.
"""

import hashlib
import http.client
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path

from .bench import Bench
from .daemon import Failed, kilobytes, with_log
from .report import of_rows

NAMES = ["first_start", "start", "page", "search", "collection", "requests", "memory", "index"]
SCRIPTS = Path(__file__).resolve().parents[1]
# The time after which a daemon has read the names and filled the index, for each model.
REST_PER_MODEL = 0.0005


class Models(Bench):
    """The benchmark, with one daemon."""

    def run_all(self):
        one = self.store()
        one.command("create", "one", "-f", SCRIPTS.parent / "tests" / "fixtures" / "tiny-llama")
        one.stop()
        lode = self.lode("many")
        self.say(f"making {self.options.models} models")
        arguments = ["--like", one.home, "--models", self.options.models, "--blobs", self.options.blobs]
        made = subprocess.run([str(SCRIPTS / "synthetic-store"), str(lode.home), *map(str, arguments)])
        if made.returncode != 0:
            raise Failed("scripts/synthetic-store failed")
        try:
            self.measure(lode)
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()

    def measure(self, lode):
        models = self.options.models
        lode.spawn()
        self.found("first_start", lode.wait(300.0), "s")
        self.say("waiting until names and index are read")
        time.sleep(models * REST_PER_MODEL)
        lode.request("GET", "/api/tags?q=nothing")
        lode.stop()
        lode.spawn()
        self.found("start", lode.wait(300.0), "s")
        middles = [f"team-{number % 100}/model-{number}" for number in range(0, models, max(models // 10, 1))]
        pages = [timed(lode, f"/api/tags?limit=100&after={name}") for name in middles]
        self.found("page", statistics.median(pages) * 1000, "ms")
        lode.request("GET", "/api/tags?q=nothing")
        searches = [timed(lode, f"/api/tags?limit=100&q=model-{number}") for number in range(5)]
        self.found("search", statistics.median(searches) * 1000, "ms")
        if self.wants("collection", "requests"):
            self.collect(lode)
        self.found("memory", kilobytes(lode.process.pid, "status", "VmHWM") / 1e6, "MB")
        index = sum(path.stat().st_size for path in (lode.home / "index").rglob("*") if path.is_file())
        self.found("index", index / 1e6, "MB")

    def collect(self, lode):
        """Collects while another thread sends requests."""
        times, ended = [], threading.Event()
        thread = threading.Thread(target=self.send_requests, args=(lode, times, ended))
        thread.start()
        try:
            begun = time.perf_counter()
            lode.request("POST", "/api/lode/gc", {}, 3600.0)
            self.found("collection", time.perf_counter() - begun, "s")
        finally:
            ended.set()
            thread.join()
        if times:
            self.found("requests", max(times) * 1000, "ms")

    def send_requests(self, lode, times, ended):
        number = 0
        while not ended.is_set():
            name = f"team-{number % 100}/model-{number % self.options.models}"
            times.append(timed(lode, "/api/tags?limit=20"))
            times.append(timed(lode, f"/v2/{name}/manifests/latest"))
            blob = os.urandom(64)
            digest = hashlib.sha256(blob).hexdigest()
            times.append(timed(lode, f"/v2/bench/m/blobs/uploads/?digest=sha256:{digest}", blob))
            number += 1

    def found(self, name, value, unit):
        if self.wants(name):
            against = f"{self.options.models} models, {self.options.blobs} own blobs each"
            self.row(name, value, unit, None, against)


def timed(lode, path, body=None):
    """Returns the seconds that a request takes."""
    connection = http.client.HTTPConnection("127.0.0.1", lode.port, timeout=600)
    begun = time.perf_counter()
    try:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{path}: {error!r}") from error
    finally:
        connection.close()
    if response.status >= 400:
        raise Failed(f"{path}: status {response.status}: {text[:200]}")
    return time.perf_counter() - begun


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="report only this result; repeatable")
    parser.add_argument("--models", type=int, default=100_000, metavar="COUNT", help="models (default 100000)")
    parser.add_argument("--blobs", type=int, default=10, metavar="COUNT", help="blobs of each model that no other model has (default 10)")


def check(parser, options):
    options.only = options.only or NAMES
    if options.models < 1 or options.blobs < 0:
        parser.error("--models must be 1 at least, --blobs 0")


def run(options, folder):
    bench = Models(options, folder)
    return of_rows(bench.rows, bench.run_groups([(tuple(NAMES), bench.run_all)]))
