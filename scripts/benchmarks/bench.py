"""The base class of benchmarks: options, a working folder, a real model, the rows."""

import subprocess
import sys
from pathlib import Path

from .daemon import Failed, Lode
from .report import Row


class Bench:
    """A benchmark: its options, its working folder, and the measured rows."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.rows = []
        self.stores = 0

    def wants(self, *names):
        return any(name in self.options.only for name in names)

    def say(self, text):
        print(f"# {text}", file=sys.stderr, flush=True)

    def row(self, name, value, unit, ratio, against):
        self.rows.append(Row(name, round(value, 4), unit, None if ratio is None else round(ratio, 3), against))

    def lode(self, name):
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return Lode(self.options.bin, home, self.folder / f"{name}.log")

    def store(self):
        """Starts a daemon with an empty store."""
        self.stores += 1
        lode = self.lode(f"store-{self.stores}")
        lode.spawn()
        lode.wait()
        return lode

    def real_model(self):
        """Returns the path of SmolLM2-135M; fetches it if needed."""
        if self.options.model:
            return self.options.model
        fetch = Path(__file__).resolve().parents[1] / "fetch-model"
        done = subprocess.run([str(fetch), "smollm2"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed("SmolLM2-135M could not be fetched")
        return Path(done.stdout.strip())

    def run_groups(self, groups):
        """Runs the selected groups; returns the failures as texts."""
        failures = []
        for names, run in groups:
            if self.wants(*names):
                try:
                    run()
                except (Failed, OSError) as failure:
                    failures.append(f"{'/'.join(name for name in names if self.wants(name))}: {failure}")
        return failures
