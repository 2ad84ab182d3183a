"""Measure the tier of a store: a synthetic model of --size GB moves to it and comes back.

  move     `lode tier move`, in MB/s
  recall   `lode tier recall`, in MB/s
  load     a load of the model when its blobs are only in the tier, in seconds, beside one from the disk

Each for a folder on the same disk and for SeaweedFS. Moves and copies are compared with a plain copy of
the same bytes to or from the same place by 8 threads, which neither hashes nor verifies: for the folder,
files that are written and synced; for SeaweedFS, requests to its filer.

Needs Linux, Python 3.8, release binaries of lode, and SeaweedFS (see --weed), which scripts/test installs.
Uses about five times --size on the disk.
"""

import http.client
import os
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .bench import Bench
from .daemon import Failed, unload, with_log
from .folder_synthetic import write_model
from .report import of_rows
from .seaweed import Seaweed

BINARIES = ("lode", "lode-runner")
NAMES = ["folder", "bucket"]
THREADS = 8
PIECE = 1 << 20
# Smaller blobs stay on the disk.
SMALLEST = 16 << 10
TOKENIZER = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "tiny-llama"


class Folder:
    """A tier in a folder."""

    def __init__(self, folder):
        self.tier = folder / "tier"
        self.tier.mkdir()
        self.scratch = folder / "scratch"
        self.environment = {"LODE_TIER": str(self.tier)}

    def store(self, blob):
        copy_file(blob, self.scratch / blob.name)

    def fetch(self, blob):
        copy_file(self.tier / "blobs" / "sha256" / blob.parent.name / blob.name, self.scratch / blob.name)


class Bucket:
    """A tier on SeaweedFS."""

    def __init__(self, seaweed, folder):
        self.seaweed = seaweed
        self.scratch = folder / "scratch"
        self.environment = {**seaweed.environment, "LODE_TIER": f"s3://models/{folder.name}"}

    def store(self, blob):
        with open(blob, "rb") as file:
            self.ask("PUT", blob, file)

    def fetch(self, blob):
        with open(self.scratch / blob.name, "wb") as file:
            self.ask("GET", blob, None, file)
            os.fsync(file.fileno())

    def ask(self, method, blob, body, target=None):
        path = f"/buckets/models/floor/{blob.name}"
        connection = http.client.HTTPConnection("127.0.0.1", self.seaweed.filer, timeout=600)
        headers = {"Content-Type": "application/octet-stream"}
        if body:
            headers["Content-Length"] = str(blob.stat().st_size)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise Failed(f"SeaweedFS: {method} {path}: status {answer.status}: {answer.read()[:200]}")
        while piece := answer.read(PIECE):
            if target:
                target.write(piece)


def copy_file(source, target):
    with open(source, "rb") as file, open(target, "wb") as copy:
        shutil.copyfileobj(file, copy, PIECE)
        os.fsync(copy.fileno())


def rate(work, blobs, megabytes):
    """Returns the MB/s of a plain copy of all blobs."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, blobs))
    return megabytes / (time.perf_counter() - begun)


def timed_load(lode):
    """Returns the seconds of a load, and unloads the model."""
    begun = time.perf_counter()
    lode.request("POST", "/api/generate", {"model": "bench", "stream": False})
    taken = time.perf_counter() - begun
    unload(lode)
    return taken


class Tier(Bench):
    """Daemons with a tier of each kind."""

    seaweed = None

    def folder_tier(self):
        self.measure("folder", Folder)

    def bucket_tier(self):
        if not self.options.weed.is_file():
            raise Failed(f"there is no {self.options.weed}; scripts/test installs it")
        self.seaweed = Seaweed(self.options.weed, self.folder)
        try:
            self.measure("bucket", lambda folder: Bucket(self.seaweed, folder))
        finally:
            self.seaweed.stop()

    def measure(self, kind, make):
        source = self.folder / "model"
        if not source.is_dir():
            self.say(f"writing a model of {self.options.size} GB")
            write_model(source, int(self.options.size * 1e9))
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(TOKENIZER / name, source / name)
        rounds = []
        for number in range(self.options.repeats):
            self.say(f"{kind}: round {number + 1}")
            folder = self.folder / f"{kind}-{number}"
            (folder / "scratch").mkdir(parents=True)
            lode = self.lode(f"{kind}-{number}-store")
            place = make(folder)
            lode.extra = place.environment
            lode.spawn()
            try:
                lode.wait()
                lode.command("create", "bench", "-f", source)
                rounds.append(self.round(lode, place))
            except Failed as failure:
                raise with_log(failure, lode) from failure
            finally:
                lode.stop()
                shutil.rmtree(lode.home, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
        median = {name: statistics.median(values[name] for values in rounds) for name in rounds[0]}
        for name, floor in (("move", "store"), ("recall", "fetch")):
            against = f"a plain copy: {median[floor]:.0f} MB/s; more is better"
            self.row(f"{kind}-{name}", median[name], "MB/s", median[name] / median[floor], against)
        self.row(f"{kind}-load", median["cold"], "s", median["cold"] / median["warm"], f"from the disk: {median['warm']:.2f} s")

    def round(self, lode, place):
        """Measures each once; the plain copy comes before the move or the copy back that it is compared with."""
        large = [path for path in (lode.home / "blobs").rglob("*") if path.is_file() and path.stat().st_size >= SMALLEST]
        sizes = {path: path.stat().st_size / 1e6 for path in large}
        found = {"store": rate(place.store, large, sum(sizes.values()))}
        taken = lode.command("tier", "move", "bench")
        # Documents stay.
        blobs = [path for path in large if not path.exists()]
        megabytes = sum(sizes[path] for path in blobs)
        found["move"] = megabytes / taken
        found["fetch"] = rate(place.fetch, blobs, megabytes)
        found["recall"] = megabytes / lode.command("tier", "recall", "bench")
        found["warm"] = timed_load(lode)
        lode.command("tier", "move", "bench")
        found["cold"] = timed_load(lode)
        return found


def add_arguments(parser):
    weed = Path.home() / ".cache" / "lode" / "venv-seaweedfs" / "bin" / "weed"
    parser.add_argument("--weed", type=Path, default=weed, help="the program of SeaweedFS")
    parser.add_argument("--size", type=float, default=2.0, metavar="GB", help="size of the model (default 2)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="number of rounds (default 3)")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this kind of tier; repeatable")


def check(parser, options):
    options.only = options.only or NAMES
    if options.size <= 0 or options.repeats <= 0:
        parser.error("--size and --repeats must be positive")


def run(options, folder):
    bench = Tier(options, folder)
    groups = [(("folder",), bench.folder_tier), (("bucket",), bench.bucket_tier)]
    failures = bench.run_groups(groups)
    return of_rows(bench.rows, failures)
