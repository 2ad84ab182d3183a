"""Runs llama-bench, llama-server and mistral.rs on the same file, on the CPU."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time

from .daemon import Failed

MISTRAL = """
import json, sys
from mistralrs import Runner, Which, CompletionRequest
folder, file, prompt, tokens = sys.argv[1:]
runner = Runner(which=Which.GGUF(tok_model_id=None, quantized_model_id=folder, quantized_filename=file))
def ask(number):
    request = CompletionRequest(model="m", prompt=str(number) + prompt, max_tokens=int(tokens), temperature=0.0)
    return runner.send_completion_request(request).usage
ask(0)
usage = ask(1)
print(json.dumps([usage.avg_prompt_tok_per_sec, usage.avg_compl_tok_per_sec]))
"""


def output(command):
    """Returns the output of a program; raises `Failed` with the end of its stderr if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise Failed(f"{os.path.basename(command[0])} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def llama_bench(path, threads, depth, prompt, tokens):
    """Returns the tokens per second of a prompt and of an answer after `depth` tokens."""
    command = ["llama-bench", "-m", str(path), "-p", str(prompt), "-n", str(tokens), "-t", str(threads), "-d", str(depth)]
    text = output([*command, "-ngl", "0", "-r", "1", "-o", "json"])
    try:
        tests = json.loads(text)
        return [next(test["avg_ts"] for test in tests if test[other] == 0) for other in ("n_gen", "n_prompt")]
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Failed(f"llama-bench wrote what is not understood: {error!r}") from error


def llama_quantize(source, path, kind):
    """Quantizes a file to another type."""
    if shutil.which("llama-quantize") is None:
        raise Failed("--types needs llama-quantize, which is not on PATH")
    output(["llama-quantize", "--allow-requantize", str(source), str(path), kind])


def mistral(path, prompt, tokens):
    """Returns the same rates for mistral.rs, with all cores; None if it is not installed."""
    python = os.environ.get("LODE_BENCH_MISTRALRS")
    if not python:
        return None
    text = output([python, "-c", MISTRAL, str(path.parent), path.name, prompt, str(tokens)])
    try:
        return json.loads(text.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Failed(f"mistral.rs wrote what is not understood: {error!r}") from error


class LlamaServer:
    """A llama-server with several slots, which runs until the block ends."""

    def __init__(self, path, threads, slots, log, arguments=()):
        self.path, self.threads, self.slots, self.log, self.arguments = path, threads, slots, log, arguments
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __enter__(self):
        command = ["llama-server", "-m", str(self.path), "-np", str(self.slots), "-ngl", "0", *self.arguments]
        command += ["-t", str(self.threads)] if self.threads else []
        command += ["-c", str(2048 * self.slots), "--host", "127.0.0.1", "--port", str(self.port)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, limit=120.0):
        begun = time.perf_counter()
        while time.perf_counter() - begun < limit and self.process.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        raise Failed(f"llama-server does not serve: {self.log.read_text(errors='replace')[-300:]}")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def media_marker(self):
        """Returns the text that stands for a picture in prompts."""
        return json.loads(self.ask("GET", "/props")[1]).get("media_marker", "<__media__>")

    def generate(self, prompt, tokens):
        """Generates an answer; returns its number of tokens."""
        return self.complete(prompt, tokens)["tokens_predicted"]

    def complete(self, prompt, tokens):
        """Generates an answer; returns the response."""
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False}
        status, text = self.ask("POST", "/completion", body)
        if status != 200:
            raise Failed(f"llama-server answers with status {status}: {text[:200]!r}")
        return json.loads(text)
