"""Print what a GPU gives: loads against copies to it, tokens a second against its memory, launches of a token.

Runs the program `models` that `scripts/test --gpu-programs FOLDER` makes, on a machine that needs nothing but a driver, cuBLAS and cuRAND of
CUDA 13: models of Llama's shape with made weights, in several types, one sequence and eight, at the depths 128 and 8192.
With the device `emulated` it measures the emulator, which says nothing of a GPU.
"""

import os
import subprocess
from pathlib import Path

from .report import Report

# The release binaries are not needed.
BINARIES = ()


def add_arguments(parser):
    parser.add_argument("--programs", type=Path, required=True, metavar="FOLDER", help="where `models` is")
    parser.add_argument("--device", default="cuda:0", metavar="NAME", help="cuda:N, or `emulated`")
    parser.add_argument("--models", default="1b,8b", metavar="LIST", help="tiny, 1b, 8b")
    parser.add_argument("--types", default="", metavar="LIST", help="BF16, q8_0, q4_k, int4, nvfp4; all, where it is not said")


def check(parser, options):
    if not (options.programs / "models").is_file():
        parser.error(f"there is no {options.programs / 'models'}; make it by scripts/test --gpu-programs {options.programs}")


def run(options, folder):
    environment = {**os.environ, "LODE_SPEED_MODELS": options.models, "LODE_SPEED_TYPES": options.types, "TMPDIR": str(folder)}
    environment.pop("LODE_TEST_DEVICE", None)
    if options.device != "emulated":
        environment["LODE_TEST_DEVICE"] = options.device
    command = [str(options.programs.resolve() / "models"), "--ignored", "--nocapture", "speed_of_the_device"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    # What the test harness says around it is left out.
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("running ", "test "))]
    rows = [row for row in map(cells, lines) if row]
    failures = [] if done.returncode == 0 and rows else [f"{command[0]} ended with status {done.returncode}"]
    return Report("\n".join(lines).strip(), rows, failures)


def cells(line):
    """A row of a table as what it says; heads and lines between are none."""
    parts = [part.strip() for part in line.strip("|").split("|")]
    if not line.startswith("|") or parts[0] in ("model", "load") or set(line) <= set("|-"):
        return None
    return {"bench": "gpu", "what": parts[0], "numbers": parts[1:]}
