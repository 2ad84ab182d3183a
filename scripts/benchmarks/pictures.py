"""Measure the time to the first token of an answer about a picture, beside llama-server on the same files.

Models have the shapes of Qwen3-VL 2B and Gemma 3 4B, random weights, and pictures that are not
resized. Both servers get pictures that they have not seen, in turn; the values are medians. The
row `text` has the time for a prompt of the same words without a picture.

Needs Linux, Python 3.8, the release binaries, and llama-server with mtmd on PATH. Without it, only
Lode is measured.
"""

import base64
import shutil
import statistics
import struct
import sys
import time
import zlib

from . import gguf_pictures, peers
from .bench import Bench
from .report import of_rows

PROMPT = "What is {} on it?"


def add_arguments(parser):
    parser.add_argument("--models", default="qwen3vl,gemma3", metavar="LIST", help="qwen3vl, gemma3, tiny")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="pictures per server (default 3)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of llama-server (default: all)")


def check(parser, options):
    unknown = [name for name in options.models.split(",") if name not in gguf_pictures.MODELS]
    if unknown or options.repeats < 1:
        parser.error(f"unknown models {unknown}" if unknown else "--repeats is at least 1")


def picture(size, seed):
    """Returns a PNG file as base64; each seed gives another picture."""
    width, height = size
    row = lambda y: bytes(((x * 7 + y * (3 + channel) + seed * 31) >> channel) & 255 for x in range(width) for channel in range(3))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    data = zlib.compress(b"".join(b"\0" + row(y) for y in range(height)), 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()


class Pictures(Bench):
    """The benchmark."""

    def ours(self, lode, prompt, images):
        """Returns the seconds until an answer of one token is there."""
        request = {"model": "m", "prompt": prompt, "images": images, "raw": True, "stream": False}
        begun = time.perf_counter()
        lode.request("POST", "/api/generate", {**request, "options": {"temperature": 0, "num_predict": 1, "num_ctx": 2048}})
        return time.perf_counter() - begun

    def theirs(self, server, prompt, images):
        begun = time.perf_counter()
        server.complete({"prompt_string": prompt, "multimodal_data": images} if images else prompt, 1)
        return time.perf_counter() - begun

    def measure(self, name):
        self.say(f"{name}: writing the files")
        model, (path, projector) = gguf_pictures.MODELS[name], gguf_pictures.write(name, self.folder)
        lode = self.store()
        lode.request("POST", "/api/create", {"model": "m", "path": str(path), "projector": str(projector), "stream": False})
        # Both servers add the tokens around a picture.
        lode_prompt = PROMPT.format("[img-0]")
        if shutil.which("llama-server") is None:
            self.rows_of(name, model, lode, lode_prompt, None, "")
            return
        arguments = ["--mmproj", str(projector)]
        log = self.folder / "llama-server.log"
        with peers.LlamaServer(path, self.options.threads or None, 1, log, arguments) as server:
            self.rows_of(name, model, lode, lode_prompt, server, PROMPT.format(server.media_marker()))

    def rows_of(self, name, model, lode, lode_prompt, server, their_prompt):
        words = PROMPT.format("a word")
        ours, theirs, ours_text, theirs_text = [], [], [], []
        # The first pictures of both load what is not loaded yet.
        for seed in range(self.options.repeats + 1):
            images = [picture(model["picture"], seed)]
            self.say(f"{name}: picture {seed}")
            ours.append(self.ours(lode, lode_prompt, images))
            ours_text.append(self.ours(lode, f"{seed}{words}", []))
            if server:
                theirs.append(self.theirs(server, their_prompt, images))
                theirs_text.append(self.theirs(server, f"{seed}{words}", None))
        for what, own, other in ((f"{name} picture", ours, theirs), (f"{name} text", ours_text, theirs_text)):
            value = statistics.median(own[1:])
            against = statistics.median(other[1:]) if other else None
            said = f"llama-server takes {against:.2f} s" if other else "-"
            self.row(what, value, "s", against / value if other else None, said)


def run(options, folder):
    bench = Pictures(options, folder)
    failures = []
    for name in options.models.split(","):
        try:
            bench.measure(name)
        except (peers.Failed, OSError) as failure:
            failures.append(f"{name}: {failure}")
            print(f"# {name}: {failure}", file=sys.stderr)
    return of_rows(bench.rows, failures)
