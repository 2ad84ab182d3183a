"""The command line of all benchmarks; creates and removes the working folder of a run."""

import argparse
import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import basics, batching, generate, gpu, models, object_storage, page, perplexity, pictures, quantize, tier, transfer
from .daemon import Failed, stop_all
from .report import Report

KINDS = {
    "basics": basics,
    "transfer": transfer,
    "storage": object_storage,
    "models": models,
    "tier": tier,
    "quantize": quantize,
    "batching": batching,
    "generate": generate,
    "perplexity": perplexity,
    "pictures": pictures,
    "gpu": gpu,
    "page": page,
}
NEEDS = """Needs Linux, Python 3.8, and the release binaries (`cargo build --release --workspace`).
Results vary between runs: compare them on the same, idle machine."""


def arguments():
    """Parses the command line; the default kind is `basics`."""
    cache = Path.home() / ".cache" / "lode"
    target = Path(os.environ.get("CARGO_TARGET_DIR") or cache / "target")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/bench", description=f"Measure Lode on this machine.\n\n{NEEDS}", formatter_class=formatter)
    kinds = parser.add_subparsers(dest="kind", metavar="KIND")
    for name, kind in KINDS.items():
        own = kinds.add_parser(name, help=kind.__doc__.partition("\n")[0], description=kind.__doc__, formatter_class=formatter)
        kind.add_arguments(own)
        own.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE, one JSON object per line; `-` is standard output")
        own.add_argument("--bin", type=Path, default=target / "release", metavar="DIR", help="folder of lode and lode-runner")
        own.add_argument("--dir", type=Path, default=cache / "bench", metavar="DIR", help="working folder, on the disk to measure")
        own.add_argument("--keep", action="store_true", help="keep the folder with models, stores and logs")
        own.set_defaults(parser=own)
    given = sys.argv[1:]
    if not given or given[0].startswith("-") and given[0] not in ("-h", "--help"):
        given = ["basics", *given]
    options = parser.parse_args(given)
    options.bin = options.bin.resolve()
    for name in getattr(KINDS[options.kind], "BINARIES", ("lode", "lode-runner")):
        if not (options.bin / name).is_file():
            options.parser.error(f"there is no {options.bin / name}; run `cargo build --release --workspace`, or see --bin")
    KINDS[options.kind].check(options.parser, options)
    return options


def main():
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{options.kind}-", dir=options.dir))

    def clean():
        stop_all()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(clean)
    try:
        report = KINDS[options.kind].run(options, folder)
    except (Failed, OSError) as failure:
        report = Report("", [], [str(failure)])
    print(report.text)
    lines = "".join(json.dumps(row) + "\n" for row in report.rows)
    if options.json == Path("-"):
        print(f"\n{lines}", end="")
    elif options.json:
        options.json.write_text(lines)
    for failure in report.failures:
        print(f"bench: {failure}", file=sys.stderr)
    if options.keep:
        print(f"kept {folder}", file=sys.stderr)
    sys.exit(1 if report.failures else 0)
