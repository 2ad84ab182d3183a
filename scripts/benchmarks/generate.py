"""Measure generation with several types, thread counts and depths, in pairs with llama-bench.

  prefill    prompt tokens per second, with --depth tokens in the KV cache already
  decode     answer tokens per second, likewise. Also the file's bytes for each token, as a share of
             the memory bandwidth that all threads reach (the best measurement between the pairs).
             There is no share if a token uses only some experts
  parallel   total tokens per second of N answers at the same time, beside llama-server with N slots
  first      milliseconds from the request to the first token; the model is not loaded, its files
             are in the page cache
  cold       the same with an empty page cache, if the system allows dropping it: MB of the file per
             second, and as a share of reading the store's files one after the other

A pair is one run of Lode and one of llama-bench on the same file; the order alternates. The output
has the medians, their ratio and the load of the machine. All programs compute on the CPU. Needs the
release binaries, and llama-bench, llama-server and llama-quantize on PATH. Without these, only Lode
is measured and --types is not available. If LODE_BENCH_MISTRALRS names a Python with mistral.rs,
the rates of one run of it are printed beside Q4_0, Q8_0 and Q4_K_M at depth 0.
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
    """A daemon with a number of threads, and its models."""

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
        """Returns the seconds to the first token of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.lode.port, timeout=600)
        stream = batching.Stream(connection, "/api/generate", self.body(name, "Once", 4))
        if not stream.last or not stream.last.get("done"):
            raise Failed(f"an answer of /api/generate does not end: {stream.last}")
        return stream.first


class Prompts:
    """Makes texts of about a given number of tokens, all with different beginnings."""

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
    """Returns the tokens of a prompt, its rate, and the rate of an answer, after `depth` tokens."""
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
    """Measures the memory bandwidth: each thread compares the two equal halves of its part."""

    def __init__(self):
        self.memory = mmap.mmap(-1, STREAM_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, 1, STREAM_BYTES)
        self.compare = ctypes.CDLL(None).memcmp
        self.compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def rate(self, threads):
        """Returns the bytes per second of several threads: the best of three runs."""
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
    """Drops the page cache; returns False if the system does not allow it."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def read_all(files):
    """Returns the seconds to read all files."""
    buffer = bytearray(1 << 20)
    begun = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begun


def together(count, generate):
    """Returns the total tokens per second of concurrent calls of `generate`, which counts tokens."""
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
        """Yields name and path of each model to measure, and the type to quantize it to, if any."""
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
        # Only Lode reads models that it quantized.
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
        # A token uses only some of the experts.
        reads_all = not self.quantized and not any(key.endswith(".expert_count") for key in gguf_synthetic.read_values(path))
        for at, what in enumerate([f"prefill {tokens}", "decode"]):
            own = statistics.median(pair[at] for pair in ours)
            peer = statistics.median(pair[at] for pair in theirs) if theirs else None
            share = own * path.stat().st_size / stream if at == 1 and reads_all else None
            self.row(name, threads, depth, what, own, peer, mistral[at] if mistral else None, share)

    def parallel(self, name, model, path, daemon, prompts, threads):
        """Measures concurrent answers, alternating with a llama-server."""
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
            # Files that a runner maps would stay in the page cache.
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
    parser.add_argument("--types", type=lambda text: text.split(","), metavar="LIST", help="types to convert each file to first, e.g. Q4_0,F16")
    own = {"type": lambda text: text.split(","), "default": [], "metavar": "LIST"}
    parser.add_argument("--quantize", **own, help="also types for `lode create -q`, e.g. int4,mxfp8")
    parser.add_argument("--threads", type=several(1), default=[len(os.sched_getaffinity(0))], metavar="LIST", help="numbers of threads (default: all cores)")
    parser.add_argument("--depth", type=several(0), default=[0], metavar="LIST", help="tokens in the KV cache before the prompt (default 0)")
    parser.add_argument("--parallel", type=whole(1), metavar="N", help="also measure N answers at the same time")
    parser.add_argument("--first", action="store_true", help="also measure first token and cold start")
    parser.add_argument("--pairs", type=whole(1), default=5, metavar="N", help="pairs of runs (default 5)")
    parser.add_argument("--prompt", type=whole(1), default=133, metavar="N", help="approximate tokens of the prompt (default 133)")
    parser.add_argument("--tokens", type=whole(1), default=64, metavar="N", help="tokens of the answer (default 64)")
    parser.add_argument("--cpu", metavar="SET", help="LODE_CPU of the runner")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


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
    # Reports the measured rows also after a failure.
    return Report(table(generate.rows, options.markdown), generate.rows, failures)
