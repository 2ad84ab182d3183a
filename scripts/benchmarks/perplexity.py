"""Measure the perplexity of a text for each quantization type, beside llama.cpp's quantizations.

The model (SmolLM2-135M, or --model) is exported as float32, imported again, and quantized to each
type by `lode create`, so that all types have the same source. `lode perplexity --second-half`
counts tokens as `llama-perplexity` does. If --llama names a folder with llama-quantize and
llama-perplexity, these also quantize and evaluate the float32 GGUF that Lode exports (column
`llama`). Runners compute as for users, unless --reference is given.

Needs Linux, Python 3.8 and the release binaries. The text should have several times --window tokens.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .bench import Bench
from .daemon import Failed, with_log
from .report import Report

TYPES = (
    "f16 bf16 int8 int6 int5 int4 int4:64 int3 int2 nvfp4 mxfp8 mxfp4 q8_0 q6_k q5_k q5_1 q5_0 q4_k q4_1 q4_0 iq4_xs iq4_nl q3_k q2_k "
    "q5_k_m q5_k_s q4_k_m q4_k_s q3_k_l q3_k_m q3_k_s q2_k_s"
).split()
# llama.cpp needs an importance matrix for `Q2_K_S`. Its `Q2_K` is a mix; it has no names for models
# with all matrices in q2_k, q3_k, q4_k or q5_k.
LLAMA = {"bf16": "BF16", "f16": "F16", "q6_k": "Q6_K"}
LLAMA.update({kind: kind.upper() for kind in "q8_0 q5_1 q5_0 q4_1 q4_0 iq4_xs iq4_nl".split()})
LLAMA.update({kind: kind.upper() for kind in "q5_k_m q5_k_s q4_k_m q4_k_s q3_k_l q3_k_m q3_k_s".split()})
MB = 1_000_000


class Perplexity:
    """The benchmark: models in a store for Lode, and files for llama.cpp."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.bench = Bench(options, folder)
        self.text = options.text.read_text()
        self.lode = self.bench.lode("store")
        if options.reference:
            environment = self.lode.environment
            self.lode.environment = lambda: {**environment(), "LODE_REFERENCE": "1"}

    def prepare(self):
        """Imports the float32 model into the store and exports its GGUF file into the folder."""
        self.lode.spawn()
        self.lode.wait()
        self.lode.command("create", "original", "-f", self.bench.real_model())
        folder = self.folder / "float"
        self.lode.command("export", "original", "--to", folder, "--format", "safetensors", "--dtype", "f32")
        self.lode.command("create", "float", "-f", folder)
        shutil.rmtree(folder)
        if self.options.llama:
            # GGUF metadata keeps only a part of the vocabulary's facts; the lost ones do not matter
            # here.
            self.lode.command("export", "float", "--to", self.folder / "float.gguf", "--format", "gguf", "--lossy")

    def ours(self, model):
        """Returns the megabytes and the perplexity of a stored model."""
        request = {"model": model, "text": self.text, "window": self.options.window, "scored": "second_half"}
        found = self.lode.request("POST", "/api/lode/perplexity", request)
        models = self.lode.request("GET", "/api/tags")["models"]
        size = next(entry["size"] for entry in models if entry["name"].split(":")[0] == model)
        self.lode.request("POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False})
        return size / MB, found["perplexity"]

    def quantized(self, kind):
        modelfile = self.folder / "Modelfile"
        modelfile.write_text("FROM float\n")
        name = "q-" + kind.replace(":", "-")
        self.lode.command("create", name, "-f", modelfile, "-q", kind)
        found = self.ours(name)
        self.lode.command("rm", name)
        return found

    def theirs(self, kind):
        """Returns the same for llama.cpp's quantization; None if it is not available."""
        source = self.folder / "float.gguf"
        if not self.options.llama or (kind != "f32" and kind not in LLAMA):
            return None, None
        file = source if kind == "f32" else self.folder / "quantized.gguf"
        if kind != "f32":
            self.run("llama-quantize", source, file, LLAMA[kind], "2")
        window = str(self.options.window)
        told = self.run("llama-perplexity", "-m", file, "-f", self.options.text, "-c", window, "-b", window, "-t", "2")
        found = re.search(r"Final estimate: PPL = ([0-9.]+)", told)
        if not found:
            raise Failed(f"llama-perplexity said nothing of {kind}: {told[-300:]}")
        return file.stat().st_size / MB, float(found.group(1))

    def run(self, program, *arguments):
        command = [str(self.options.llama / program), *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Failed(f"{program} ended with status {done.returncode}: {done.stdout[-300:]}")
        return done.stdout

    def rows(self):
        self.prepare()
        yield ("f32", *self.ours("float"), *self.theirs("f32"))
        for kind in self.options.type:
            yield (kind, *self.quantized(kind), *self.theirs(kind))


def add_arguments(parser):
    shared = Path(os.environ.get("LODE_SHARED") or Path(__file__).resolve().parents[2] / "../shared")
    parser.add_argument("--type", action="append", metavar="TYPE", help="a type to quantize to (default: all)")
    parser.add_argument("--window", type=int, default=128, metavar="N", help="tokens evaluated together (default 128)")
    parser.add_argument("--text", type=Path, default=shared / "fixtures/real/perplexity_text.txt", metavar="FILE", help="text to evaluate")
    parser.add_argument("--llama", type=Path, metavar="DIR", help="folder of llama-quantize and llama-perplexity")
    parser.add_argument("--reference", action="store_true", help="runners compute in float32 throughout")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file (default SmolLM2-135M)")


def check(parser, options):
    options.type = options.type or TYPES
    if not options.text.is_file():
        parser.error(f"there is no file {options.text}")


def run(options, folder):
    names = ["type", "megabytes", "perplexity", "llama_megabytes", "llama_perplexity"]
    lines = [f"{'type':<8} {'MB':>7} {'perplexity':>11} {'llama MB':>9} {'llama':>9}"]
    rows, failures = [], []
    perplexity = Perplexity(options, folder)
    try:
        for row in perplexity.rows():
            rows.append(dict(zip(names, row)))
            theirs = "" if row[4] is None else f" {row[3]:>9.1f} {row[4]:>9.4f}"
            lines.append(f"{row[0]:<8} {row[1]:>7.1f} {row[2]:>11.4f}{theirs}")
            perplexity.bench.say(lines[-1])
    except (Failed, OSError) as failure:
        failures.append(str(with_log(failure, perplexity.lode)))
    return Report("\n".join(lines), rows, failures)
