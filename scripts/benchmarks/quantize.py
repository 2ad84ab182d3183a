"""Measure quantization, each result beside its baseline.

  speed      `lode create -q TYPE` from a stored model, end to end: MB of source per second.
             Baselines: copying the source once in memory, and quantizing with gguf-py if it
             supports the type
  memory     peak memory of the daemon while it quantizes a model of --size
  hit        the same request again for a model of 600 tensors, with all results known
  shared     a fine-tune with two changed tensors. Baseline: the time for the whole model

Needs Linux, Python 3.8 and the release binaries; for gguf-py a Python with gguf and numpy (see
--python). Comparisons with a missing program are skipped with a message. Uses about twice --size on
the disk.
"""

import functools
import hashlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from .bench import Bench
from .daemon import Failed, kilobytes
from .folder_synthetic import shards, synthetic_tensors
from .report import of_rows

NAMES = ["speed", "memory", "hit", "shared"]
TYPES = ["int4", "int8", "nvfp4", "mxfp8", "q8_0", "q4_0", "q4_k_m"]
REPEATS = 5
MB = 1_000_000
# Each layer has nine tensors; the model has three more.
LAYERS = 66

# Targets.
MEMORY_MB = 300
HIT_MS = 100

GGUF_PY = """
import sys, time, numpy, gguf
kind = gguf.GGMLQuantizationType[sys.argv[1]]
numbers = numpy.random.default_rng(1).normal(0, 0.02, (4096, 4096)).astype(numpy.float32)
gguf.quants.quantize(numbers[:64], kind)
begun = time.perf_counter()
gguf.quants.quantize(numbers, kind)
# The source would be BF16.
print(numbers.size * 2 / (time.perf_counter() - begun))
"""


@functools.lru_cache(maxsize=1)
def pool(size):
    """Returns bytes of random BF16 numbers similar to weights: 0.008 to 0.06, of both signs."""
    numbers = bytearray(os.urandom(size))
    exponents = bytes([0x3C, 0x3D, 0xBC, 0xBD])
    numbers[1::2] = bytes(numbers[1::2]).translate(bytes(exponents[byte % 4] for byte in range(256)))
    return bytes(numbers)


def write_model(folder, size, layers, changed=()):
    """Writes a synthetic Llama of about `size` bytes, in which all tensors differ; returns their
    total bytes.

    Two calls give a tensor the same bytes, unless one of them lists it in `changed`."""
    config, tensors = synthetic_tensors(size, layers)
    folder.mkdir(parents=True)
    numbers, total = pool(1 << 24), 0
    for index, members in enumerate(shards(tensors)):
        header, at = {}, 0
        for name, shape, length in members:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + length]}
            at += length
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with open(folder / f"model-{index:05}.safetensors", "wb", buffering=1 << 20) as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for name, _, length in members:
                # An even offset, so that numbers are not split.
                begin = 2 * (hash_of(name, name in changed) % (len(numbers) // 4))
                while length > 0:
                    piece = memoryview(numbers)[begin : begin + length]
                    file.write(piece)
                    total, length, begin = total + len(piece), length - len(piece), 0
    (folder / "config.json").write_text(json.dumps(config))
    return total


def hash_of(name, changed):
    return int.from_bytes(hashlib.sha256(f"{name}{changed}".encode()).digest()[:6], "little")


class Quantize(Bench):
    """The benchmarks: two groups, each with a separate daemon."""

    def create(self, lode, name, source, kind=None):
        """Runs `lode create` from a folder or from another model; returns the seconds."""
        if isinstance(source, str):
            modelfile = self.folder / "Modelfile"
            modelfile.write_text(f"FROM {source}\n")
            source = modelfile
        os.sync()
        return lode.command("create", name, "-f", source, *(["-q", kind] if kind else []))

    def copy_seconds(self, folder):
        """Returns the seconds to copy all files of a folder in memory, from the page cache."""
        files = []
        for path in sorted(folder.glob("*.safetensors")):
            with open(path, "rb") as file:
                files.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        step = 1 << 24
        target = bytearray(step)

        def copy():
            for source in files:
                view = memoryview(source)
                for at in range(0, len(view), step):
                    piece = view[at : at + step]
                    target[: len(piece)] = piece
                    piece.release()
                view.release()

        copy()
        begun = time.perf_counter()
        copy()
        seconds = time.perf_counter() - begun
        for source in files:
            source.close()
        return seconds

    def gguf_rate(self, kind):
        """Returns gguf-py's bytes of source per second; None if it is missing or lacks the type."""
        command = [str(self.options.python), "-c", GGUF_PY, kind.upper()]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        return float(done.stdout) if done.returncode == 0 else None

    def run_speed(self):
        size = int(self.options.size * 1e9)
        free = shutil.disk_usage(self.folder).free
        if free < 3 * size:
            raise Failed(f"{self.folder} has {free / 1e9:.1f} GB free, {3 * size / 1e9:.1f} are needed; see --size, --dir")
        source = self.folder / "float"
        total = write_model(source, size, 32)
        copy = total / self.copy_seconds(source)
        self.row("copy in memory", copy / MB, "MB/s", None, "")
        lode = self.store()
        self.create(lode, "float", source)
        if not self.options.keep:
            shutil.rmtree(source)
        for kind in self.options.type:
            # A new daemon, so that the peak belongs to this type alone.
            lode.stop()
            lode.spawn()
            lode.wait()
            rate = total / self.create(lode, "quantized", "float", kind)
            peak = kilobytes(lode.process.pid, "status", "VmHWM") / MB
            self.row(f"speed {kind}", rate / MB, "MB/s", rate / copy, "copy in memory")
            if self.wants("memory"):
                self.row(f"memory {kind}", peak, "MB", peak / MEMORY_MB, f"{MEMORY_MB} MB")
            theirs = self.gguf_rate(kind)
            if theirs is None:
                self.say(f"{kind}: no gguf-py that quantizes to it")
            else:
                self.row(f"beside gguf-py {kind}", rate / MB, "MB/s", rate / theirs, "gguf-py, one tensor in memory")
            lode.command("rm", "quantized")
        lode.stop()

    def run_small(self):
        lode = self.store()
        source, tuned = self.folder / "small", self.folder / "tuned"
        changed = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in (1, 2)]
        write_model(source, 200 * MB, LAYERS)
        write_model(tuned, 200 * MB, LAYERS, changed)
        self.create(lode, "small", source)
        self.create(lode, "tuned", tuned)
        kind = self.options.type[0]
        whole = self.create(lode, "small-q", "small", kind)
        if self.wants("hit"):
            seconds = []
            for _ in range(REPEATS):
                begun = time.perf_counter()
                lode.request("POST", "/api/create", {"model": "again", "from": "small", "quantize": kind, "stream": False})
                seconds.append(time.perf_counter() - begun)
            hit = statistics.median(seconds) * 1000
            self.row(f"hit, {9 * LAYERS + 3} tensors", hit, "ms", hit / HIT_MS, f"{HIT_MS} ms")
        if self.wants("shared"):
            part = self.create(lode, "tuned-q", "tuned", kind)
            self.row("a fine-tune of two tensors", part, "s", part / whole, "the whole model")
        lode.stop()


def add_arguments(parser):
    cache = Path.home() / ".cache" / "lode"
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this benchmark; repeatable")
    parser.add_argument("--type", action="append", metavar="TYPE", help=f"a type to quantize to (default {' '.join(TYPES)})")
    parser.add_argument("--size", type=float, default=1.0, metavar="GB", help="size of the synthetic model (default 1)")
    parser.add_argument("--python", type=Path, default=cache / "venv/bin/python", metavar="FILE", help="a Python with gguf and numpy")


def check(parser, options):
    options.only = options.only or NAMES
    options.type = options.type or TYPES
    if options.size <= 0:
        parser.error("--size must be positive")


def run(options, folder):
    quantize = Quantize(options, folder)
    groups = [(("speed", "memory"), quantize.run_speed), (("hit", "shared"), quantize.run_small)]
    return of_rows(quantize.rows, quantize.run_groups(groups))
