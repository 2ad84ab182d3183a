"""Generate with several types, thread counts and depths, in pairs with llama-bench on the same file.

  prefill    tokens of a prompt per second, after so many tokens (depth) that are in the KV cache already
  decode     tokens of an answer per second, likewise; and the file's bytes for each token, as a share of what all threads read
             from memory in streams, the best of what was measured between the pairs; none where a token takes some experts only
  parallel   tokens of so many answers at a time, per second in all: beside llama-server with as many slots
  first      milliseconds from a name to the first token: the model is not loaded, its files are in the page cache
  cold       likewise with nothing in the page cache, where it may be dropped: MB of the file per second, and as a share of what
             reading the store's files one after the other gives

Each pair is one run of ours and one of llama-bench, in turns, who comes first changes; printed are the medians, their ratio, and
the load of the machine. All compute on the CPU. Needs the release binaries; llama-bench, llama-server and llama-quantize on PATH,
else ours alone and no --types. Where LODE_BENCH_MISTRALRS names a Python that has mistral.rs, its rates of one run are printed
beside those of Q4_0, Q8_0 and Q4_K_M without depth.
"""

import argparse
import ctypes
import http.client
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import batching, gguf_synthetic, peers
from .bench import Bench
from .daemon import Failed, unload, with_log
from .report import Report

MISTRAL_TYPES = ("Q4_0", "Q8_0", "Q4_K_M")
STREAM_BYTES = 1 << 29
SENTENCE = "On the way along the coast we saw a red barn, two dogs asleep in the sun and a field of rye, and then it rained. "


class Daemon:
    """A daemon with so many threads, and the models that it has."""

    def __init__(self, options, folder, threads):
        self.lode = Bench(options, folder).lode(f"store-{threads}")
        environment = self.lode.environment()
        environment.update(LODE_THREADS=str(threads), LODE_CONTEXT_LENGTH="32768", LODE_DEVICE="cpu")
        if options.parallel:
            environment["LODE_NUM_PARALLEL"] = str(options.parallel)
        if options.cpu:
            environment["LODE_CPU"] = options.cpu
        self.lode.environment = lambda: environment
        self.lode.spawn()
        self.lode.wait()

    def body(self, name, prompt, tokens, **more):
        options = {"temperature": 0, "num_predict": tokens, "seed": 1}
        return {"model": name, "prompt": prompt, "raw": True, "options": options, "keep_alive": 600, **more}

    def generate(self, name, prompt, tokens):
        answer = self.lode.request("POST", "/api/generate", self.body(name, prompt, tokens, stream=False))
        for field in ("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"):
            if not answer.get(field):
                raise Failed(f"the answer of /api/generate has no {field}: {json.dumps(answer)[:200]}")
        return answer

    def first(self, name):
        """Seconds to the first token of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.lode.port, timeout=600)
        stream = batching.Stream(connection, "/api/generate", self.body(name, "Once", 4))
        if not stream.last or not stream.last.get("done"):
            raise Failed(f"an answer of /api/generate does not end: {stream.last}")
        return stream.first


class Prompts:
    """Texts of about so many tokens; no two begin alike."""

    def __init__(self, daemon, name):
        self.count = 0
        few, many = (daemon.generate(name, self.of(n), 1)["prompt_eval_count"] for n in (1, 11))
        self.sentence = (many - few) / 10

    def of(self, sentences):
        self.count += 1
        return f"{self.count} travellers kept this diary. " + SENTENCE * sentences

    def more(self, text, tokens):
        return text + SENTENCE * max(1, round(tokens / self.sentence))

    def begin(self, tokens):
        return self.more(self.of(0), tokens)


def run_ours(daemon, name, prompts, depth, options):
    """Tokens of a prompt, its rate, and that of an answer, behind `depth` tokens."""
    if depth:
        start = prompts.begin(depth)
        before = daemon.generate(name, start, 1)["prompt_eval_count"]
    else:
        start, before = prompts.of(0), 0
    answer = daemon.generate(name, prompts.more(start, options.prompt), options.tokens)
    prompt = answer["prompt_eval_count"] - before
    if prompt < 1:
        raise Failed(f"a prompt behind {before} tokens is counted as {prompt} tokens")
    return prompt, prompt / (answer["prompt_eval_duration"] / 1e9), answer["eval_count"] / (answer["eval_duration"] / 1e9)


class Memory:
    """Reads memory in streams: each thread compares two halves of its part, which are equal."""

    def __init__(self):
        self.memory = mmap.mmap(-1, STREAM_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, 1, STREAM_BYTES)
        self.compare = ctypes.CDLL(None).memcmp
        self.compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def rate(self, threads):
        """Bytes per second of so many threads: the best of three."""
        half, best = STREAM_BYTES // threads // 2, 0.0
        for _ in range(3):
            begins = [self.address + index * 2 * half for index in range(threads)]
            readers = [threading.Thread(target=self.compare, args=(begin, begin + half, half)) for begin in begins]
            begun = time.perf_counter()
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            best = max(best, 2 * half * threads / (time.perf_counter() - begun))
        return best


def drop_page_cache():
    """Whether the system could be told to."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def read_all(files):
    """The seconds that reading all files takes."""
    buffer = bytearray(1 << 20)
    begun = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begun


def together(count, generate):
    """Tokens per second of so many at a time, of a function that answers one and says how many tokens it has."""
    tokens, failures = [0] * count, []

    def one(index):
        try:
            tokens[index] = generate(index)
        except Exception as failure:
            failures.append(failure)

    clients = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    begun = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if failures:
        raise failures[0]
    return sum(tokens) / (time.perf_counter() - begun)


class Generate:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.rows, self.daemons, self.memory = [], {}, Memory()
        self.quantized = self.peer = False

    def say(self, text):
        print(f"# {text}", file=sys.stderr, flush=True)

    def files(self):
        """Name and path of each model to measure, and the type that `lode create` makes of it, if any."""
        sources = list(self.options.model)
        if self.options.synthetic:
            vocabulary = sources[0] if sources else default_model()
            for name in self.options.synthetic:
                self.say(f"writing the synthetic model {name}")
                path = self.folder / f"synthetic-{name}.gguf"
                gguf_synthetic.write(name, vocabulary, path)
                sources.append(path)
        for number, source in enumerate(sources or [default_model()]):
            for kind in self.options.types or [None]:
                if kind is None:
                    yield source.stem, source, None
                    continue
                path = self.folder / f"{number}-{source.stem}-{kind}.gguf"
                peers.llama_quantize(source, path, kind)
                yield f"{source.stem} {kind}", path, None
                path.unlink()
            for kind in self.options.quantize:
                yield f"{source.stem} {kind}", source, kind

    def measure(self):
        for number, (name, path, kind) in enumerate(self.files()):
            model = f"model-{number}"
            for threads in self.options.threads:
                if threads not in self.daemons:
                    self.daemons[threads] = Daemon(self.options, self.folder, threads)
                daemon = self.daemons[threads]
                try:
                    self.measure_model(name, model, path, kind, daemon, threads)
                except Failed as failure:
                    raise with_log(failure, daemon.lode) from failure

    def measure_model(self, name, model, path, kind, daemon, threads):
        daemon.lode.command("create", model, "-f", path, *(["-q", kind, "--requantize"] if kind else []))
        # Nobody else reads what Lode quantizes.
        self.quantized = kind is not None
        self.peer = not self.quantized and shutil.which("llama-bench") is not None
        prompts = Prompts(daemon, model)
        for depth in self.options.depth:
            self.pairs(name, model, path, daemon, prompts, threads, depth)
        if self.options.parallel:
            self.parallel(name, model, path, daemon, prompts, threads)
        if self.options.first:
            self.first(name, model, daemon, threads)
        unload(daemon.lode, model)
        daemon.lode.command("rm", model)
        daemon.lode.command("gc")

    def row(self, name, threads, depth, what, own, peer=None, mistral=None, share=None):
        ratio = own / peer if peer else None
        row = {"model": name, "threads": threads, "depth": depth, "what": what, "own": own, "llama": peer, "ratio": ratio}
        self.rows.append({**row, "mistral": mistral, "share": share, "load": os.getloadavg()[0]})
        self.say("  " + line(self.rows[-1]))

    def pairs(self, name, model, path, daemon, prompts, threads, depth):
        self.say(f"{name}, {threads} threads, depth {depth}, load {os.getloadavg()[0]:.2f}")
        tokens = run_ours(daemon, model, prompts, depth, self.options)[0]
        ours, theirs, stream = [], [], 0.0

        def run_theirs():
            theirs.append(peers.llama_bench(path, threads, depth, tokens, self.options.tokens))

        for number in range(self.options.pairs):
            stream = max(stream, self.memory.rate(threads))
            turns = [lambda: ours.append(run_ours(daemon, model, prompts, depth, self.options)[1:])]
            if self.peer:
                turns.append(run_theirs)
            for turn in turns if number % 2 == 0 else reversed(turns):
                turn()
        mistral = None
        if depth == 0 and threads == max(self.options.threads) and name.endswith(MISTRAL_TYPES):
            mistral = peers.mistral(path, prompts.more("", self.options.prompt), self.options.tokens)
        # A token takes some of the experts only.
        reads_all = not self.quantized and not any(key.endswith(".expert_count") for key in gguf_synthetic.read_values(path))
        for at, what in enumerate([f"prefill {tokens}", "decode"]):
            own = statistics.median(pair[at] for pair in ours)
            peer = statistics.median(pair[at] for pair in theirs) if theirs else None
            share = own * path.stat().st_size / stream if at == 1 and reads_all else None
            self.row(name, threads, depth, what, own, peer, mistral[at] if mistral else None, share)

    def parallel(self, name, model, path, daemon, prompts, threads):
        """So many answers at a time, in turns with a llama-server."""
        count, tokens = self.options.parallel, self.options.tokens
        self.say(f"{name}, {threads} threads, {count} at a time, load {os.getloadavg()[0]:.2f}")

        def ours():
            texts = [prompts.of(1) for _ in range(count)]
            return together(count, lambda index: daemon.generate(model, texts[index], tokens)["eval_count"])

        if self.quantized or shutil.which("llama-server") is None:
            self.row(name, threads, 0, f"parallel {count}", statistics.median(ours() for _ in range(self.options.pairs)))
            return
        with peers.LlamaServer(path, threads, count, self.folder / "llama-server.log") as server:

            def theirs():
                texts = [prompts.of(1) for _ in range(count)]
                return together(count, lambda index: server.generate(texts[index], tokens))

            ours(), theirs()
            own, peer = [], []
            for number in range(self.options.pairs):
                turns = [(own, ours), (peer, theirs)]
                for rates, measure in turns if number % 2 == 0 else reversed(turns):
                    rates.append(measure())
        self.row(name, threads, 0, f"parallel {count}", statistics.median(own), statistics.median(peer))

    def first(self, name, model, daemon, threads):
        times = []
        for _ in range(self.options.pairs + 1):
            unload(daemon.lode, model)
            times.append(daemon.first(model) * 1000)
        self.row(name, threads, 0, "first token, ms", statistics.median(times[1:]))
        self.cold(name, model, daemon, threads)

    def cold(self, name, model, daemon, threads):
        files = sorted(path for path in (daemon.lode.home / "blobs").rglob("*") if path.is_file())
        total = sum(path.stat().st_size for path in files)
        own, disk = [], []
        for _ in range(self.options.pairs):
            # What a runner has mapped stays in memory.
            unload(daemon.lode, model)
            if not drop_page_cache():
                self.say("the page cache may not be dropped: no cold start")
                return
            disk.append(total / read_all(files))
            drop_page_cache()
            own.append(total / daemon.first(model))
        own, disk = statistics.median(own), statistics.median(disk)
        self.row(name, threads, 0, "cold first token, MB/s", own / 1e6, share=own / disk)


def cells(row):
    def number(value, digits=1):
        return "–" if value is None else f"{value:.{digits}f}"

    share = "–" if row["share"] is None else f"{100 * row['share']:.0f} %"
    return [row["model"], str(row["threads"]), str(row["depth"]), row["what"], number(row["own"]), number(row["llama"]),
            number(row["ratio"], 2), number(row["mistral"]), share, number(row["load"], 2)]  # fmt: skip


HEAD = ["model", "threads", "depth", "what", "lode", "llama.cpp", "ratio", "mistral.rs", "of bandwidth", "load"]


def line(row):
    return ", ".join(f"{name} {cell}" for name, cell in list(zip(HEAD, cells(row)))[3:])


def table(rows, markdown):
    lines = [HEAD, *(cells(row) for row in rows)]
    if markdown:
        return "\n".join("| " + " | ".join(cells) + " |" for cells in [lines[0], ["---"] * len(HEAD), *lines[1:]])
    widths = [max(len(cells[at]) for cells in lines) for at in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)) for cells in lines)


def default_model():
    fetch = Path(__file__).resolve().parents[1] / "fetch-model"
    done = subprocess.run([str(fetch), "smollm2"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed("SmolLM2-135M could not be fetched; --model names another file")
    return Path(done.stdout.strip())


def add_arguments(parser):
    def whole(least):
        def number(text):
            if int(text) < least:
                raise argparse.ArgumentTypeError(f"{text} is less than {least}")
            return int(text)

        return number

    def several(least):
        return lambda text: [whole(least)(number) for number in text.split(",")]

    synthetic = sorted(gguf_synthetic.MODELS)
    parser.add_argument("--model", type=Path, action="append", default=[], metavar="FILE", help="a GGUF file (default SmolLM2-135M)")
    parser.add_argument("--synthetic", action="append", default=[], choices=synthetic, help="a model with random weights")
    parser.add_argument("--types", type=lambda text: text.split(","), metavar="LIST", help="make these of each file first, e.g. Q4_0,F16")
    own = {"type": lambda text: text.split(","), "default": [], "metavar": "LIST"}
    parser.add_argument("--quantize", **own, help="and what `lode create -q` makes of it, e.g. int4,mxfp8")
    parser.add_argument("--threads", type=several(1), default=[len(os.sched_getaffinity(0))], metavar="LIST", help="default all cores")
    parser.add_argument("--depth", type=several(0), default=[0], metavar="LIST", help="default 0")
    parser.add_argument("--parallel", type=whole(1), metavar="N", help="so many answers at a time, too")
    parser.add_argument("--first", action="store_true", help="name to first token, and cold, too")
    parser.add_argument("--pairs", type=whole(1), default=5, metavar="N", help="default 5")
    parser.add_argument("--prompt", type=whole(1), default=133, metavar="N", help="about so many tokens (default 133)")
    parser.add_argument("--tokens", type=whole(1), default=64, metavar="N", help="tokens of the answer (default 64)")
    parser.add_argument("--cpu", metavar="SET", help="LODE_CPU of the runner")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")


def check(parser, options):
    for path in options.model:
        if not path.is_file():
            parser.error(f"there is no file {path}")


def run(options, folder):
    generate = Generate(options, folder)
    failures = []
    try:
        generate.measure()
    except (Failed, OSError, ValueError, http.client.HTTPException) as failure:
        failures.append(str(failure))
    # What was measured is not lost, whatever happened.
    return Report(table(generate.rows, options.markdown), generate.rows, failures)
