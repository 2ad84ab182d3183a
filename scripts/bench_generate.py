"""Generate with several types, thread counts and depths, in pairs with llama-bench on the same file.

usage: scripts/bench generate [--model FILE]… [--types LIST] [--synthetic] [--threads LIST] [--depth LIST] [--pairs N]
                              [--prompt N] [--tokens N] [--cpu SET] [--markdown] [--json FILE] [--bin DIR] [--dir DIR]

  prefill    tokens of a prompt per second, after so many tokens (depth) that are in the KV cache already
  decode     tokens of an answer per second, likewise; and the bytes of weights and of the KV cache that are read for it, as
             a share of what all threads read from memory in a stream, measured in the same run
  first      from a name to the first token: the model is not loaded, its files are in the page cache

Each pair is one run of ours and one of llama-bench, in turns, who comes first changes; printed are the medians, their
ratio, and the load of the machine. Needs the release binaries; llama-bench and llama-quantize on PATH, else ours alone. Where
LODE_BENCH_MISTRALRS names a Python that has mistral.rs, its rates are printed beside those of Q4_0, Q8_0 and Q4_K_M.
"""

import argparse
import ctypes
import http.client
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import gguf_synthetic

TYPES = "Q4_0,Q4_1,Q8_0,Q4_K_M,BF16,F16"
MISTRAL_TYPES = ("Q4_0", "Q8_0", "Q4_K_M")
STREAM_BYTES = 1 << 29
SENTENCE = "On the way along the coast we saw a red barn, two dogs asleep in the sun and a field of rye, and then it rained. "


class Daemon:
    """A daemon with so many threads, and the models that it has."""

    def __init__(self, base, options, folder, threads):
        self.lode = base.Bench(options, folder).lode(f"store-{threads}")
        environment = self.lode.environment()
        environment.update(LODE_THREADS=str(threads), LODE_CONTEXT_LENGTH="32768")
        if options.cpu:
            environment["LODE_CPU"] = options.cpu
        self.lode.environment = lambda: environment
        self.lode.spawn()
        self.lode.wait()

    def create(self, name, path):
        self.lode.command("create", name, "-f", path)

    def generate(self, name, prompt, tokens, keep_alive=600):
        options = {"temperature": 0, "num_predict": tokens, "seed": 1}
        body = {"model": name, "prompt": prompt, "raw": True, "stream": False, "options": options, "keep_alive": keep_alive}
        return self.lode.request("POST", "/api/generate", body)


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
    """Rates of a prompt and of an answer behind `depth` tokens: ((tokens, per second), (tokens, per second))."""
    if depth:
        start = prompts.begin(depth)
        before = daemon.generate(name, start, 1)["prompt_eval_count"]
    else:
        start, before = prompts.of(0), 0
    answer = daemon.generate(name, prompts.more(start, options.prompt), options.tokens)
    prompt = answer["prompt_eval_count"] - before
    return prompt / (answer["prompt_eval_duration"] / 1e9), answer["eval_count"] / (answer["eval_duration"] / 1e9)


def run_theirs(path, threads, depth, options):
    command = ["llama-bench", "-m", str(path), "-p", str(options.prompt), "-n", str(options.tokens), "-t", str(threads)]
    command += ["-d", str(depth), "-r", "1", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    tests = json.loads(done.stdout)
    prompt = next(test["avg_ts"] for test in tests if test["n_gen"] == 0)
    return prompt, next(test["avg_ts"] for test in tests if test["n_prompt"] == 0)


def stream_rate(threads):
    """Bytes per second that so many threads read from memory: the best of a few runs of memchr for what is not there."""
    memory = mmap.mmap(-1, STREAM_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, STREAM_BYTES)
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    part, best = STREAM_BYTES // threads, 0.0
    for _ in range(5):
        readers = [threading.Thread(target=memchr, args=(address + i * part, 0, part)) for i in range(threads)]
        begun = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = max(best, part * threads / (time.perf_counter() - begun))
    return best


MISTRAL = """
import json, sys
from mistralrs import Runner, Which, CompletionRequest
folder, file, prompt, tokens = sys.argv[1:]
runner = Runner(which=Which.GGUF(tok_model_id=None, quantized_model_id=folder, quantized_filename=file))
ask = lambda n: runner.send_completion_request(CompletionRequest(model="m", prompt=str(n) + prompt, max_tokens=int(tokens), temperature=0.0)).usage
ask(0)
usage = ask(1)
print(json.dumps([usage.avg_prompt_tok_per_sec, usage.avg_compl_tok_per_sec]))
"""


def run_mistral(path, options):
    python = os.environ.get("LODE_BENCH_MISTRALRS")
    if not python:
        return None
    prompt = SENTENCE * max(1, options.prompt // 27)
    command = [python, "-c", MISTRAL, str(path.parent), path.name, prompt, str(options.tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return None


class Generate:
    def __init__(self, base, options, folder):
        self.base, self.options, self.folder = base, options, folder
        self.rows, self.daemons = [], {}
        self.peer = shutil.which("llama-bench") is not None

    def say(self, text):
        print(f"# {text}", file=sys.stderr, flush=True)

    def files(self):
        """Name and path of each model to measure."""
        sources = list(self.options.model)
        if self.options.synthetic:
            path = self.folder / "synthetic-1b.gguf"
            self.say("writing a synthetic model of 1 B parameters")
            gguf_synthetic.write(sources[0], path)
            sources = [path] if self.options.only_synthetic else [*sources, path]
        for source in sources:
            if not self.options.types:
                yield source.stem, source
                continue
            for kind in self.options.types.split(","):
                path = self.folder / f"{source.stem}-{kind}.gguf"
                command = ["llama-quantize", "--allow-requantize", str(source), str(path), kind]
                if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
                    raise self.base.Failed(f"llama-quantize could not make {kind} of {source}")
                yield path.stem, path
                path.unlink()

    def measure(self):
        for name, path in self.files():
            model = name.lower().replace(".", "-")
            for threads in self.options.threads:
                daemon = self.daemons.setdefault(threads, None) or Daemon(self.base, self.options, self.folder, threads)
                self.daemons[threads] = daemon
                daemon.create(model, path)
                prompts = Prompts(daemon, model)
                stream = stream_rate(threads)
                for depth in self.options.depth:
                    self.pairs(name, model, path, daemon, prompts, threads, depth, stream)
                if self.options.first:
                    self.first(name, model, path, daemon, threads)
                daemon.generate(model, "", 1, keep_alive=0)
                daemon.lode.command("rm", model)
                daemon.lode.command("gc")

    def pairs(self, name, model, path, daemon, prompts, threads, depth, stream):
        self.say(f"{name}, {threads} threads, depth {depth}, load {os.getloadavg()[0]:.2f}")
        ours, theirs = [], []
        for number in range(self.options.pairs):
            turns = [lambda: ours.append(run_ours(daemon, model, prompts, depth, self.options))]
            if self.peer:
                turns.append(lambda: theirs.append(run_theirs(path, threads, depth, self.options)))
            for turn in turns if number % 2 == 0 else reversed(turns):
                turn()
        mistral = run_mistral(path, self.options) if depth == 0 and name.endswith(MISTRAL_TYPES) else None
        for at, kind in enumerate(["prefill", "decode"]):
            own = statistics.median(pair[at] for pair in ours)
            peer = statistics.median(pair[at] for pair in theirs) if theirs else None
            row = {"model": name, "threads": threads, "depth": depth, "what": kind, "rate": own, "llama": peer}
            row["ratio"] = own / peer if peer else None
            row["mistral"] = mistral[at] if mistral else None
            row["bandwidth"] = own * path.stat().st_size / stream if kind == "decode" else None
            row["load"] = os.getloadavg()[0]
            self.rows.append(row)
            self.say("  " + line(row))

    def first(self, name, model, path, daemon, threads):
        times = []
        for _ in range(self.options.pairs + 1):
            daemon.generate(model, "", 1, keep_alive=0)
            while daemon.lode.request("GET", "/api/ps").get("models"):
                time.sleep(0.01)
            body = {"model": model, "prompt": "Once", "raw": True, "options": {"temperature": 0, "num_predict": 4}}
            connection = http.client.HTTPConnection("127.0.0.1", daemon.lode.port, timeout=600)
            begun = time.perf_counter()
            connection.request("POST", "/api/generate", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.readline()
            times.append((time.perf_counter() - begun) * 1000)
            response.read()
            connection.close()
        row = {"model": name, "threads": threads, "depth": 0, "what": "first token, ms", "rate": statistics.median(times[1:])}
        self.rows.append({**row, "llama": None, "ratio": None, "mistral": None, "bandwidth": None, "load": os.getloadavg()[0]})
        self.say("  " + line(self.rows[-1]))


def cells(row):
    def number(value, digits=1):
        return "–" if value is None else f"{value:.{digits}f}"

    share = "–" if row["bandwidth"] is None else f"{100 * row['bandwidth']:.0f} %"
    return [row["model"], str(row["threads"]), str(row["depth"]), row["what"], number(row["rate"]), number(row["llama"]),
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


def parse_arguments(base, arguments):
    cache = Path.home() / ".cache" / "lode"
    target = Path(os.environ.get("CARGO_TARGET_DIR") or cache / "target")
    usage = __doc__.partition("usage: ")[2].partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/bench generate", usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text):
        return [int(number) for number in text.split(",")]

    parser.add_argument("--model", type=Path, action="append", default=[], metavar="FILE", help="a GGUF file (default SmolLM2-135M)")
    parser.add_argument("--types", metavar="LIST", help=f"make these of each file first, e.g. {TYPES}")
    parser.add_argument("--synthetic", action="store_true", help="and a synthetic model of 1 B parameters")
    parser.add_argument("--only-synthetic", action="store_true", help="that one alone")
    parser.add_argument("--threads", type=numbers, default=[len(os.sched_getaffinity(0))], metavar="LIST", help="default all cores")
    parser.add_argument("--depth", type=numbers, default=[0], metavar="LIST", help="default 0")
    parser.add_argument("--first", action="store_true", help="name to first token, too")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--prompt", type=int, default=133, metavar="N", help="tokens of the prompt (default 133)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of the answer (default 64)")
    parser.add_argument("--cpu", metavar="SET", help="LODE_CPU of the runner")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too, one JSON object a line")
    parser.add_argument("--bin", type=Path, default=target / "release", metavar="DIR", help="folder of the binaries")
    parser.add_argument("--dir", type=Path, default=cache / "bench", metavar="DIR", help="folder to work in")
    options = parser.parse_args(arguments)
    options.bin = options.bin.resolve()
    options.synthetic |= options.only_synthetic
    options.size, options.only, options.keep = 0, [], False
    if not options.model:
        fetch = Path(__file__).resolve().parent / "fetch-model"
        done = subprocess.run([str(fetch), "smollm2"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise base.Failed("SmolLM2-135M could not be fetched")
        options.model = [Path(done.stdout.strip())]
    return options


def main(base, arguments):
    options = parse_arguments(base, arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="generate-", dir=options.dir))
    generate = Generate(base, options, folder)
    failed = None
    try:
        generate.measure()
    except base.Failed as failure:
        failed = failure
    finally:
        base.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(generate.rows, options.markdown))
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in generate.rows))
    if failed:
        print(f"bench: {failed}", file=sys.stderr)
    sys.exit(1 if failed else 0)
