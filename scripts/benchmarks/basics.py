"""Measure import, start, load and memory, each beside its baseline.

  import     `lode create` of a synthetic Hugging Face folder. Baseline: hashing the same bytes on
             all cores with OpenSSL, then writing them to a file with fsync, in the same run. Also
             the peak memory of the daemon
  reimport   the same folder under another name. Baseline: hashing alone
  adopt      `lode create --in-place` of the folder. Baseline: hashing alone; and the bytes that the
             store takes on the disk, as a share of the model
  start      the time from `lode serve` to its first response
  load       a load of SmolLM2-135M from the page cache
  memory     the private memory of the runner
  oras       an artifact of 500 layers of 8 KiB, pushed and pulled by the Python client `oras`, per layer

Needs Linux, Python 3.8, and the release binaries (`cargo build --release --workspace`). Uses three
times --size on the disk. Results vary between runs: compare them on the same, idle machine.
"""

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from .bench import Bench
from .daemon import Failed, kilobytes, unload, with_log
from .floor import Mapped, hash_seconds, write_seconds
from .folder_synthetic import write_model
from .report import of_rows

NAMES = ["import", "reimport", "adopt", "start", "load", "memory", "oras"]
REPEATS = 5
MB = 1_000_000

IMPORT_RATIO = 1.3
IMPORT_MEMORY_MB = 150
START_MS = 100
LOAD_MS = 300
RUNNER_MEMORY_MB = 80
ORAS_LAYERS = 500
ORAS_PUSH_MS = 12


class Basics(Bench):
    """The benchmarks; each group shares a daemon."""

    def run_import(self):
        """Measures `import`, `reimport` and `adopt`, which share the model and the baseline."""
        size = int(self.options.size * 1e9)
        free = shutil.disk_usage(self.folder).free
        if free < 3.1 * size + 1e9:
            raise Failed(f"{self.folder} has {free / 1e9:.1f} GB free, {3.1 * size / 1e9 + 1:.1f} are needed; see --size, --dir")
        self.say(f"writing a synthetic model of {self.options.size:g} GB")
        source = self.folder / "model"
        extents = write_model(source, size)
        total = sum(extent[2] for extent in extents)
        cores = len(os.sched_getaffinity(0))
        mapped = Mapped({extent[0] for extent in extents})
        try:
            self.say("measuring the floor")
            hashing = hash_seconds(extents, mapped, cores)
            writing = write_seconds(extents, mapped, self.folder / "floor") if self.wants("import") else None
        finally:
            mapped.close()
        about = f"{len(extents)} tensors, {total / 1e9:.2f} GB"
        self.row("floor: hash", hashing, "s", None, f"sha256 on {cores} cores, {about}")
        if writing is not None:
            self.row("floor: write", writing, "s", None, f"one file and fsync, {about}")
        try:
            if self.wants("adopt"):
                self.adopt(source, hashing, total)
            if self.wants("import", "reimport"):
                self.copy(source, hashing, writing)
        finally:
            if not self.options.keep:
                shutil.rmtree(source)

    def copy(self, source, hashing, writing):
        """Measures `import` and `reimport`: the tensors are copied into the store."""
        lode = self.lode("import")
        lode.spawn()
        try:
            lode.wait()
            self.say("lode create")
            seconds = lode.command("create", "synthetic", "-f", source)
            peak = kilobytes(lode.process.pid, "status", "VmHWM") / MB
            if writing is not None:
                floor = hashing + writing
                self.row("import", seconds, "s", seconds / floor, f"floor {floor:.2f} s (target ratio {IMPORT_RATIO})")
                against = f"{IMPORT_MEMORY_MB} MB, peak of the daemon (VmHWM)"
                self.row("import: memory", peak, "MB", peak / IMPORT_MEMORY_MB, against)
            if self.wants("reimport"):
                self.say("lode create, again")
                seconds = lode.command("create", "synthetic-again", "-f", source)
                self.row("reimport", seconds, "s", seconds / hashing, f"hashing alone, {hashing:.2f} s")
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()
            if not self.options.keep:
                shutil.rmtree(lode.home)

    def adopt(self, source, hashing, total):
        """Measures `adopt`: the tensors stay in the folder."""
        lode = self.lode("adopt")
        lode.spawn()
        try:
            lode.wait()
            before = disk_bytes(lode.home)
            self.say("lode create --in-place")
            seconds = lode.command("create", "adopted", "--in-place", "-f", source)
            self.row("adopt", seconds, "s", seconds / hashing, f"hashing alone, {hashing:.2f} s (target ratio 1)")
            new = disk_bytes(lode.home) - before
            self.row("adopt: new bytes", new / MB, "MB", new / total, f"the model, {total / 1e9:.2f} GB (target ratio 0.001)")
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()
            if not self.options.keep:
                shutil.rmtree(lode.home)

    def run_start(self):
        """Measures `start`: from spawn to the first response."""
        lode = self.lode("start")
        times = []
        try:
            # The first start creates the store and reads the binary into the page cache; it is not
            # counted.
            for _ in range(REPEATS + 1):
                begun = time.perf_counter()
                lode.spawn()
                lode.wait()
                times.append((time.perf_counter() - begun) * 1000)
                lode.stop()
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()
        value = statistics.median(times[1:])
        self.row("start", value, "ms", value / START_MS, f"{START_MS} ms, median of {REPEATS}")

    def run_model(self):
        """Measures `load` and `memory`, which share a daemon with a real model."""
        model = self.real_model()
        lode = self.lode("model")
        lode.spawn()
        try:
            lode.wait()
            lode.command("create", "bench", "-f", model)
            for name, run in [("load", self.measure_load), ("memory", self.measure_memory)]:
                if self.wants(name):
                    self.say(name)
                    run(lode, model)
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()

    def run_oras(self):
        """Measures `oras`: one connection, several requests per layer."""
        self.say("oras")
        python = Path.home() / ".cache" / "lode" / "venv" / "bin" / "python"
        script = Path(__file__).resolve().parents[2] / "tests" / "clients" / "oras_client.py"
        if not python.is_file():
            raise Failed(f"there is no {python}; scripts/test makes it")
        lode = self.lode("oras")
        lode.spawn()
        try:
            lode.wait()
            command = [str(python), str(script), f"127.0.0.1:{lode.port}", str(ORAS_LAYERS)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"oras ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
            report = json.loads(done.stdout)
        except Failed as failure:
            raise with_log(failure, lode) from failure
        finally:
            lode.stop()
        push = report["push_ms"]
        self.row("oras: push", push, "ms/layer", push / ORAS_PUSH_MS, f"{ORAS_PUSH_MS} ms, {ORAS_LAYERS} layers of 8 KiB")
        self.row("oras: push again", report["push_again_ms"], "ms/layer", None, "all layers are there")
        self.row("oras: pull", report["pull_ms"], "ms/layer", None, "one connection")

    def measure_load(self, lode, _model):
        def load():
            begun = time.perf_counter()
            lode.request("POST", "/api/generate", {"model": "bench", "prompt": "", "stream": False})
            return (time.perf_counter() - begun) * 1000

        load()
        times = []
        for _ in range(REPEATS):
            unload(lode)
            times.append(load())
        value = statistics.median(times)
        self.row("load", value, "ms", value / LOAD_MS, f"{LOAD_MS} ms, from the page cache, median of {REPEATS}")

    def measure_memory(self, lode, _model):
        generate(lode, 9)
        pid = lode.runner()
        limit = f"{RUNNER_MEMORY_MB} MB"
        # Pages of a mapped file count as private while no other process maps them. This includes
        # weights.
        private = kilobytes(pid, "smaps_rollup", "Private_Clean", "Private_Dirty") / MB
        self.row("memory", private, "MB", private / RUNNER_MEMORY_MB, f"{limit}, runner's private pages, mapped weights included")
        anonymous = kilobytes(pid, "smaps_rollup", "Anonymous") / MB
        self.row("memory: anonymous", anonymous, "MB", anonymous / RUNNER_MEMORY_MB, f"{limit}, without what is mapped from files")


def disk_bytes(folder):
    """Returns the bytes that the files below a folder take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def generate(lode, number):
    """Generates 128 tokens after a prompt of about 500; returns the final object."""
    # The number comes first, so that no run finds the prompt of an earlier one in the KV cache.
    sights = ["a red barn", "two dogs asleep in the sun", "a boy with a kite", "the old mill by the river", "a field of rye"]
    travels = " ".join(f"On day {day} we walked along the coast and saw {sights[day % len(sights)]}, and then it rained." for day in range(19))
    body = {
        "model": "bench",
        "prompt": f"{number} travellers kept this diary. {travels} Write a long story, with many details, about what they did next.",
        "stream": False,
        "options": {"temperature": 0, "num_predict": 128, "seed": 1},
    }
    answer = lode.request("POST", "/api/generate", body)
    for field in ("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"):
        if not answer.get(field):
            raise Failed(f"the answer of /api/generate has no {field}")
    return answer


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this benchmark; repeatable")
    parser.add_argument("--size", type=float, default=4, metavar="GB", help="size of the synthetic model (default 4)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="model for load and memory (default SmolLM2-135M)")


def check(parser, options):
    options.only = options.only or NAMES
    if options.size <= 0:
        parser.error("--size must be positive")


def run(options, folder):
    bench = Basics(options, folder)
    groups = [
        (("import", "reimport", "adopt"), bench.run_import),
        (("start",), bench.run_start),
        (("load", "memory"), bench.run_model),
        (("oras",), bench.run_oras),
    ]
    return of_rows(bench.rows, bench.run_groups(groups))
