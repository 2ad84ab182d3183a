"""Measure a GPU: loads and loads of fine-tunes, tokens per second, kernel launches per token.

Loads are compared with copies to the GPU, loads of fine-tunes with those, and tokens per second
with the bandwidth of the GPU's memory.

Runs the program `models` that `scripts/test --gpu-programs FOLDER` builds. The machine needs only a
driver, and cuBLAS and cuRAND of CUDA 13. The models have Llama's shape and synthetic weights in
several types. They compute one sequence and eight, at the depths 128 and 8192. A holder keeps the
weights, as with a daemon. A result that misses its target has a note.
With the device `emulated:4096`, it measures the emulator, which says nothing about GPUs.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from .report import Report

# The release binaries are not needed.
BINARIES = ()
# The archive that `scripts/test --gpu-programs` writes.
ARCHIVE = "programs.tar.xz"


def add_arguments(parser):
    parser.add_argument("--programs", type=Path, required=True, metavar="FOLDER", help="folder with `programs.tar.xz` or `models`")
    parser.add_argument("--device", default="cuda:0", metavar="NAME", help="cuda:N, or emulated:4096")
    parser.add_argument("--models", default="1b,8b", metavar="LIST", help="tiny, 1b, 8b")
    parser.add_argument("--types", default="", metavar="LIST", help="BF16, q8_0, q4_k, int4, nvfp4 (default: all)")


def check(parser, options):
    if not any((options.programs / name).is_file() for name in ("models", ARCHIVE)):
        parser.error(f"there is no {options.programs / ARCHIVE}; make it by scripts/test --gpu-programs {options.programs}")


def run(options, folder):
    environment = {**os.environ, "LODE_SPEED_MODELS": options.models, "LODE_SPEED_TYPES": options.types, "TMPDIR": str(folder)}
    environment["LODE_TEST_DEVICE"] = options.device
    if not environment.get("CUDA_LIBRARY_PATH"):
        found = subprocess.run([Path(__file__).parents[1] / "cuda-libraries"], stdout=subprocess.PIPE, text=True, check=True)
        environment["CUDA_LIBRARY_PATH"] = found.stdout.strip()
    programs = options.programs.resolve()
    if not (programs / "models").is_file():
        with tarfile.open(programs / ARCHIVE) as archive:
            archive.extractall(folder)
        programs = Path(folder)
    command = [str(programs / "models"), "--ignored", "--nocapture", "speed_of_the_device"]
    lines = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            # Skips the output of the test harness.
            if not line.startswith(("running ", "test ")):
                lines.append(line.rstrip())
                # Prints each line at once, so that an interrupted run keeps its results.
                print(lines[-1], file=sys.stderr, flush=True)
    rows = [row for row in map(cells, lines) if row]
    failures = [] if program.returncode == 0 and rows else [f"{command[0]} ended with status {program.returncode}"]
    return Report("\n".join(lines).strip(), rows, failures)


def cells(line):
    """Reads a row of a table; returns None for heads and separators."""
    parts = [part.strip() for part in line.strip("|").split("|")]
    if not line.startswith("|") or parts[0] in ("model", "load") or set(line) <= set("|-"):
        return None
    return {"bench": "gpu", "what": parts[0], "numbers": parts[1:]}
