"""Measure generation for one and for several clients, with the daemon and with the runner alone.

  decode     tokens per second of one client, and of all clients together (the sum of their rates
             while all of them run)
  stream     the time that the daemon and its API add to a stream of the runner, for one client: to
             the first token, and per token
  memory     the private memory of the runner with all slots full, against the reported size of its
             KV cache
  idle       the memory of the daemon with 200 open streams that no client reads

Needs Linux, Python 3.8 and the release binaries. Results vary between runs: compare them on an idle
machine.
"""

import http.client
import json
import socket
import statistics
import threading
import time
from pathlib import Path

from .bench import Bench
from .daemon import Failed, kilobytes, with_log
from .report import of_rows

TOGETHER_RATIO = 2.0
FIRST_TOKEN_MS = 5.0
TOKEN_MS = 1.0
IDLE_STREAMS = 200
IDLE_MB = 100
# Enough time for the daemon to accept every stream and queue its request.
IDLE_SECONDS = 5
MB = 1_000_000


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("runner")
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Stream:
    """A stream of JSON lines: the times of the first and the last line, and the last line."""

    def __init__(self, connection, path, body):
        begun = time.perf_counter()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.count, self.first, self.last = 0, None, None
        while line := response.readline():
            if self.first is None:
                self.first = time.perf_counter() - begun
            self.count, self.last = self.count + 1, json.loads(line)
        self.end = time.perf_counter() - begun
        connection.close()

    def per_token(self):
        """Returns the mean seconds between two lines."""
        return (self.end - self.first) / max(self.count - 1, 1)


class Batching:
    """The benchmark: a daemon with several slots, and its runner."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.bench = Bench(options, folder)
        self.lode = self.bench.lode("store")
        environment = self.lode.environment()
        environment.update(TMPDIR=str(folder), LODE_NUM_PARALLEL=str(options.clients), LODE_KV_CACHE_TYPE=options.kv)
        self.lode.environment = lambda: environment

    def prepare(self):
        self.lode.spawn()
        self.lode.wait()
        self.lode.command("create", "bench", "-f", self.bench.real_model())
        self.daemon("", 1)

    def daemon(self, prompt, tokens):
        connection = http.client.HTTPConnection("127.0.0.1", self.lode.port, timeout=600)
        options = {"temperature": 0, "num_predict": tokens, "seed": 1}
        body = {"model": "bench", "prompt": prompt, "raw": True, "options": options}
        return Stream(connection, "/api/generate", body)

    def runner(self, prompt, tokens):
        sockets = sorted(self.folder.glob("lode-*/*"))
        if not sockets:
            raise Failed("the runner has no socket")
        sampling = {"temperature": 0.0, "seed": 1}
        body = {"prompt": {"kind": "text", "text": prompt}, "sampling": sampling, "max_tokens": tokens}
        return Stream(UnixConnection(sockets[-1]), "/generate", body)

    def prompt(self, number):
        # The number comes first, so that no run finds the prompt of an earlier one in the KV cache.
        return f"{number} travellers kept this diary of their long way along the coast. On the first day"

    def rate(self, answer):
        return answer.last["eval_count"] / (answer.last["eval_duration"] / 1e9)

    def together(self, clients, number):
        """Returns the sum of the rates of clients that start at the same time."""
        answers, failures = [None] * clients, []

        def one(index):
            try:
                answers[index] = self.daemon(self.prompt(1000 * number + index), self.options.tokens)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise Failed(f"a client failed: {failures[0]!r}")
        return sum(self.rate(answer) for answer in answers)

    def measure(self):
        self.prepare()
        # Alternates, so that other load of the machine affects both.
        rates = [(self.together(1, 2 * n), self.together(self.options.clients, 2 * n + 1)) for n in range(1, self.options.repeats + 1)]
        single = statistics.median(one for one, _ in rates)
        several = statistics.median(together for _, together in rates)
        ratio = statistics.median(together / one for one, together in rates)
        self.bench.row("decode: one", single, "tokens/s", None, f"{self.options.tokens} tokens, median of {self.options.repeats}")
        against = f"one client; wanted {TOGETHER_RATIO}"
        self.bench.row(f"decode: {self.options.clients} together", several, "tokens/s", ratio, against)
        self.measure_stream()
        self.measure_memory()
        self.measure_idle()
        return self.bench.rows

    def measure_stream(self):
        def by_turns(times, tokens):
            # Each is first equally often, because the second finds the caches as the first left
            # them.
            for n in range(times):
                order = [self.daemon, self.runner] if n % 2 == 0 else [self.runner, self.daemon]
                answers = {ask: ask(self.prompt(9999), tokens) for ask in order}
                yield answers[self.daemon], answers[self.runner]

        # Puts the prompt into the KV cache, so that the time to compute it does not hide the
        # difference.
        self.runner(self.prompt(9999), 1)
        first = statistics.median(ours.first - alone.first for ours, alone in by_turns(20 * self.options.repeats, 2)) * 1000
        pairs = list(by_turns(4 * self.options.repeats, 64))
        token = statistics.median(ours.per_token() - alone.per_token() for ours, alone in pairs) * 1000
        self.bench.row("stream: first token", first, "ms more", first / FIRST_TOKEN_MS, f"{FIRST_TOKEN_MS} ms over the runner alone")
        self.bench.row("stream: token", token, "ms more", token / TOKEN_MS, f"{TOKEN_MS} ms over the runner alone")

    def measure_memory(self):
        """Fills all slots; compares the growth of the runner's memory with the reported KV cache."""
        connection = UnixConnection(sorted(self.folder.glob("lode-*/*"))[-1])
        size = {"context": 2048, "slots": self.options.clients, "kv_type": self.options.kv}
        connection.request("POST", "/context", json.dumps(size), {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        pid = self.lode.runner()
        before = kilobytes(pid, "smaps_rollup", "Anonymous")
        full = [threading.Thread(target=self.runner, args=(f"{n} " + "word " * 2045, 8)) for n in range(self.options.clients)]
        for thread in full:
            thread.start()
        for thread in full:
            thread.join()
        grown = (kilobytes(pid, "smaps_rollup", "Anonymous") - before) / MB
        reported = reply["kv_cache"] / MB
        self.bench.row("memory: KV cache", grown, "MB", grown / reported, f"{reported:.1f} MB reported, {self.options.kv}, all slots full")

    def measure_idle(self):
        body = {"model": "bench", "prompt": self.prompt(9000), "max_tokens": 4096, "stream": True}
        streams = [http.client.HTTPConnection("127.0.0.1", self.lode.port, timeout=600) for _ in range(IDLE_STREAMS)]
        for stream in streams:
            stream.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(IDLE_SECONDS)
        resident = kilobytes(self.lode.process.pid, "status", "VmRSS") / MB
        for stream in streams:
            stream.close()
        against = f"{IDLE_MB} MB, all memory of the daemon"
        self.bench.row(f"memory: {IDLE_STREAMS} streams", resident, "MB", resident / IDLE_MB, against)


def add_arguments(parser):
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="clients at the same time (default 4)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens for each client (default 128)")
    parser.add_argument("--kv", default="f16", metavar="TYPE", help="type of the KV cache (default f16)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="measurements of each result (default 5)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file (default SmolLM2-135M)")


def check(parser, options):
    if options.repeats < 1 or options.clients < 1 or options.tokens < 1:
        parser.error("--repeats, --clients and --tokens must be 1 at least")


def run(options, folder):
    batching = Batching(options, folder)
    try:
        return of_rows(batching.measure())
    except Failed as failure:
        raise with_log(failure, batching.lode) from failure
