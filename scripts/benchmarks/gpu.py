"""Print what a GPU gives: loads against copies to it, fine-tunes against those, tokens a second against its memory, launches of a token.

Runs the program `models` that `scripts/test --gpu-programs FOLDER` makes, on a machine that needs nothing but a driver, cuBLAS and cuRAND of
CUDA 13: models of Llama's shape with made weights, in several types, one sequence and eight, at the depths 128 and 8192. Weights are held as daemons have
them held. What misses what is wanted says so beside its number.
With the device `emulated:4096` it measures the emulator, which says nothing of a GPU.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from .report import Report

# The release binaries are not needed.
BINARIES = ()
# As `scripts/test --gpu-programs` calls it.
ARCHIVE = "programs.tar.xz"


def add_arguments(parser):
    parser.add_argument("--programs", type=Path, required=True, metavar="FOLDER", help="where `programs.tar.xz` is, or `models`")
    parser.add_argument("--device", default="cuda:0", metavar="NAME", help="cuda:N, or emulated:4096")
    parser.add_argument("--models", default="1b,8b", metavar="LIST", help="tiny, 1b, 8b")
    parser.add_argument("--types", default="", metavar="LIST", help="BF16, q8_0, q4_k, int4, nvfp4; all, where it is not said")


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
            # What the test harness says around it is left out.
            if not line.startswith(("running ", "test ")):
                lines.append(line.rstrip())
                # Whoever has little time, and ends this, keeps what has been measured.
                print(lines[-1], file=sys.stderr, flush=True)
    rows = [row for row in map(cells, lines) if row]
    failures = [] if program.returncode == 0 and rows else [f"{command[0]} ended with status {program.returncode}"]
    return Report("\n".join(lines).strip(), rows, failures)


def cells(line):
    """A row of a table as what it says; heads and lines between are none."""
    parts = [part.strip() for part in line.strip("|").split("|")]
    if not line.startswith("|") or parts[0] in ("model", "load") or set(line) <= set("|-"):
        return None
    return {"bench": "gpu", "what": parts[0], "numbers": parts[1:]}
