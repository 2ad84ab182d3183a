"""Measure pulls and pushes on loopback, each result beside its baseline.

  registry   push to and pull from docker-registry, for SmolLM2 and a synthetic model. Baselines:
             skopeo and oras in the same run
  lode       pull from another Lode daemon. Baselines: curl of one file of that size from it, with
             sha256sum; and curl of the same blobs, eight at a time, which neither hashes nor syncs
  again      a pull that has nothing to fetch
  tuned      bytes on the wire for a fine-tune with two changed tensors, in both directions
  resume     bytes fetched again after `kill -9` in the middle of a pull
  token      time from the start of a pull over a link of 50 MB/s to the first token of an answer,
             for SmolLM2 and for a fine-tune of it. Baseline: the pull of SmolLM2 in the same run
  limit      the rate of a pull with `--limit`, over ten seconds
  serve      32 clients that fetch all blobs at the same time: MB/s and peak memory

Needs Linux, Python 3.8, the release binaries, docker-registry, skopeo, curl, and a Python with oras
(see --python). scripts/test installs them. Comparisons with a missing program are skipped with a
message. Uses about eight times --size on the disk.
"""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from .bench import Bench
from .daemon import Failed, kilobytes
from .folder_synthetic import write_model
from .report import of_rows

NAMES = ["registry", "lode", "again", "tuned", "resume", "token", "limit", "serve"]
REPEATS = 5
PARALLEL = 8
MB = 1_000_000
LAYERS = 66
CLIENTS = 32

# Targets. A ratio is Lode's time divided by the other program's.
PULL_RATIO = 0.5
PUSH_RATIO = 0.5
LODE_RATIO = 1.25
CURL_RATIO = 1.0
AGAIN_MS = 50
TUNED_RATIO = 1.0
RESUME_RATIO = 0.01
LINK_MB = 50
TOKEN_RATIO = 1.05
TUNED_TOKEN_RATIO = 0.1
LIMIT_MB = 20
LIMIT_SECONDS = 10
LIMIT_RATIO = 1.05
MEMORY_MB = 120

DOCKER_REGISTRY = Path("/usr/bin/docker-registry")
ORAS_PULL = """
import sys, oras.client
client = oras.client.OrasClient(hostname=sys.argv[1].split("/")[0], insecure=True)
client.pull(target=sys.argv[1], outdir=sys.argv[2])
"""
ORAS_PUSH = """
import os, sys, oras.client
client = oras.client.OrasClient(hostname=sys.argv[1].split("/")[0], insecure=True)
os.chdir(sys.argv[2])
files = sorted(os.path.join(f, n)[2:] for f, _, names in os.walk(".") for n in names)
client.push(target=sys.argv[1], files=[f + ":application/octet-stream" for f in files], disable_path_validation=True)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reset_peak(pid):
    """Resets VmHWM, the peak of the resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Registry:
    """A docker-registry with a separate folder, which `stop` removes."""

    running = []

    def __init__(self, folder):
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        folder.mkdir()
        config = f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        (folder / "config.yml").write_text(config + f"http: {{addr: '{self.address}'}}\n")
        with open(folder / "log", "wb") as log:
            command = [str(DOCKER_REGISTRY), "serve", str(folder / "config.yml")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        Registry.running.append(self)
        begun = time.perf_counter()
        while time.perf_counter() - begun < 30:
            try:
                with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=5):
                    return
            except OSError:
                time.sleep(0.02)
        raise Failed("docker-registry does not answer")

    def stop(self):
        self.process.kill()
        self.process.wait()
        Registry.running.remove(self)
        shutil.rmtree(self.folder, ignore_errors=True)


class Proxy:
    """A proxy that forwards bytes to a local port and counts them. `rate` limits the bytes per second
    of all answers together."""

    def __init__(self, port, rate=None):
        self.target, self.rate, self.free_at = port, rate, 0.0
        self.up = self.down = 0
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self.run, args=(started,), daemon=True).start()
        started.wait()
        self.address = f"127.0.0.1:{self.port}"

    def run(self, started):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.connected, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    async def connected(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.relay(reader, back, "up"), self.relay(there, writer, "down"))

    async def relay(self, source, sink, way):
        try:
            while True:
                piece = await source.read(1 << 16)
                if not piece:
                    break
                if way == "down" and self.rate:
                    now = time.perf_counter()
                    self.free_at = max(self.free_at, now) + len(piece) / self.rate
                    await asyncio.sleep(self.free_at - now)
                setattr(self, way, getattr(self, way) + len(piece))
                sink.write(piece)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def clear(self):
        self.up = self.down = 0

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)


class Transfer(Bench):
    """The benchmarks, which share the models and a Python with oras."""

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.source = None
        self.python = options.python if self.has_oras(options.python) else None

    @staticmethod
    def has_oras(python):
        try:
            check = subprocess.run([str(python), "-c", "import oras.client"], stderr=subprocess.DEVNULL)
            return check.returncode == 0
        except OSError:
            return False

    def gone(self, lode):
        """Stops a daemon and removes its store."""
        lode.stop()
        if not self.options.keep:
            shutil.rmtree(lode.home, ignore_errors=True)

    def timed(self, command):
        """Runs another program; returns the seconds."""
        os.sync()
        begun = time.perf_counter()
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - begun
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command[:3]))}…: {done.stderr.strip()[-300:]}")
        return seconds

    def pull(self, lode, name):
        """Pulls a model with the command line; returns the seconds."""
        os.sync()
        return lode.command("pull", name)

    def post_pull(self, lode, name):
        """Pulls a model with the API, which does not include the start of a program."""
        body = json.dumps({"model": name}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{lode.port}/api/pull", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            last = json.loads(answer.read().splitlines()[-1])
        if last.get("status") != "success":
            raise Failed(f"pull {name}: {last}")

    def push(self, lode, name, destination):
        os.sync()
        return lode.command("push", name, destination)

    def layers(self, lode, name):
        """Returns the digests and sizes of the blobs of the model `name`."""
        document = f"http://127.0.0.1:{lode.port}/v2/library/{name}/manifests/latest"
        with urllib.request.urlopen(document) as answer:
            manifest = json.load(answer)
        return {d["digest"]: d["size"] for d in [manifest["config"], *manifest["layers"]]}

    def prepare(self):
        """Starts a daemon; creates the models `smollm2`, `synthetic` and its fine-tune `tuned`."""
        size = int(self.options.size * 1e9)
        free = shutil.disk_usage(self.folder).free
        if free < 8 * size + 2e9:
            raise Failed(f"{self.folder} has {free / 1e9:.1f} GB free, {8 * size / 1e9 + 2:.1f} are needed; see --size, --dir")
        model = self.folder / "model"
        self.say(f"writing a synthetic model of {self.options.size:g} GB")
        extents = write_model(model, size, LAYERS)
        self.source = self.store()
        self.source.command("create", "synthetic", "-f", model)
        by_size = sorted(extents, key=lambda extent: extent[2])
        for path, offset, length in by_size[len(by_size) // 2 : len(by_size) // 2 + 2]:
            with open(path, "r+b") as file:
                file.seek(offset + length // 2)
                file.write(b"fine-tuned, bytewise")
        self.source.command("create", "tuned", "-f", model)
        if not self.options.keep:
            shutil.rmtree(model)
        if self.wants("registry"):
            self.source.command("create", "smollm2", "-f", self.real_model())
        self.blobs = self.layers(self.source, "synthetic")
        self.total = sum(self.blobs.values())
        self.about = f"{len(self.blobs)} blobs, {self.total / 1e9:.2f} GB"

    # ---------------------------------------------------------------------------------------------

    def run_registry(self):
        if not DOCKER_REGISTRY.is_file():
            raise Failed("there is no /usr/bin/docker-registry; scripts/test installs it")
        for model in ("smollm2", "synthetic"):
            self.measure_registry(model)

    def measure_registry(self, model):
        work = self.folder / f"registry-{model}"
        work.mkdir()
        registry = Registry(work / "first")
        artifact = f"{registry.address}/bench/{model}:1"
        count, total = len(self.layers(self.source, model)), sum(self.layers(self.source, model).values())
        about = f"{count} blobs, {total / 1e9:.2f} GB"
        target = None
        try:
            self.say(f"{model}: lode push")
            reset_peak(self.source.process.pid)
            pushed = self.push(self.source, model, artifact)
            self.memory(f"{model}: push: memory", self.source)
            self.say(f"{model}: skopeo, oras")
            theirs = self.theirs(work, registry, artifact)
            self.say(f"{model}: lode pull")
            target = self.store()
            reset_peak(target.process.pid)
            pulled = self.pull(target, artifact)
            self.memory(f"{model}: pull: memory", target)
        finally:
            registry.stop()
            if target:
                self.gone(target)
            if not self.options.keep:
                shutil.rmtree(work, ignore_errors=True)
        for way, ours, mark in [("pull", pulled, PULL_RATIO), ("push", pushed, PUSH_RATIO)]:
            self.row(f"{model}: {way}", ours, "s", None, f"docker-registry, {about}")
            for tool in ("skopeo", "oras"):
                seconds = theirs.get((tool, way))
                if seconds is None:
                    self.say(f"{model}: no {tool} {way} to compare with")
                else:
                    self.row(f"{model}: {way}: {tool}", seconds, "s", ours / seconds, f"lode {ours:.2f} s (target ratio {mark})")

    def theirs(self, work, registry, artifact):
        """Returns the seconds of skopeo and oras, by program and direction."""
        seconds = {}
        path = artifact.split("/", 1)[1]

        def again(name, command):
            # A registry without the blobs.
            other = Registry(work / name)
            try:
                return self.timed(command(f"{other.address}/{path}"))
            finally:
                other.stop()

        if shutil.which("skopeo"):
            layout = f"oci:{work}/layout:m"
            copy = ["skopeo", "copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"]
            seconds["skopeo", "pull"] = self.timed([*copy, f"docker://{artifact}", layout])
            seconds["skopeo", "push"] = again("second", lambda to: [*copy, layout, f"docker://{to}"])
            shutil.rmtree(work / "layout")
        if self.python:
            folder = work / "files"
            folder.mkdir()
            seconds["oras", "pull"] = self.timed([self.python, "-c", ORAS_PULL, artifact, folder])
            seconds["oras", "push"] = again("third", lambda to: [self.python, "-c", ORAS_PUSH, to, folder])
            shutil.rmtree(folder)
        return seconds

    def memory(self, name, lode):
        peak = kilobytes(lode.process.pid, "status", "VmHWM") / MB
        self.row(name, peak, "MB", peak / MEMORY_MB, f"{MEMORY_MB} MB, peak of the daemon (VmHWM)")

    def run_lode(self):
        """Measures `lode`, and `again`, which needs the pulled model."""
        target = self.store()
        name = f"127.0.0.1:{self.source.port}/library/synthetic"
        try:
            if self.wants("lode"):
                floor = self.floor()
            self.say("lode pull from lode")
            seconds = self.pull(target, name)
            if self.wants("lode"):
                self.row("lode: pull", seconds, "s", seconds / floor, f"curl and sha256sum {floor:.2f} s (target ratio {LODE_RATIO}), {self.about}")
            if self.wants("again"):
                self.measure_again(target, name)
        finally:
            self.gone(target)
        if self.wants("lode"):
            self.measure_pairs(name)

    def measure_pairs(self, name):
        """Alternates pulls into an empty store and curl of the same blobs; compares the medians."""
        folder, urls = self.folder / "blobs", self.folder / "urls"
        blob = f'url = "http://127.0.0.1:{self.source.port}/v2/library/synthetic/blobs/'
        urls.write_text("".join(f'{blob}{digest}"\noutput = "{folder}/{digest[7:]}"\n' for digest in self.blobs))
        ours, theirs = [], []
        self.say(f"lode pull and curl of {len(self.blobs)} blobs, {REPEATS} times in turns")
        try:
            for _ in range(REPEATS):
                target = self.store()
                try:
                    ours.append(self.pull(target, name))
                finally:
                    self.gone(target)
                folder.mkdir()
                theirs.append(self.timed(["curl", "-sS", "-f", "-Z", "--parallel-max", str(PARALLEL), "-K", urls]))
                shutil.rmtree(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            urls.unlink()
        pull, curl = statistics.median(ours), statistics.median(theirs)
        against = f"curl of {len(self.blobs)} blobs, {PARALLEL} at a time, {curl:.2f} s (target ratio {CURL_RATIO}), medians of {REPEATS}"
        self.row("lode: pull: curl", pull, "s", pull / curl, against)

    def floor(self):
        """Returns the seconds to fetch one blob as large as the model with curl and hash it."""
        single, copy = self.folder / "single", self.folder / "copy"
        port = self.source.port
        try:
            with open(single, "wb") as file:
                for digest in self.blobs:
                    url = f"http://127.0.0.1:{port}/v2/library/synthetic/blobs/{digest}"
                    with urllib.request.urlopen(url) as answer:
                        shutil.copyfileobj(answer, file, 1 << 20)
            digest = subprocess.run(["sha256sum", str(single)], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
            begin = urllib.request.Request(f"http://127.0.0.1:{port}/v2/bench/single/blobs/uploads/", method="POST")
            with urllib.request.urlopen(begin) as answer:
                place = urllib.parse.urljoin(begin.full_url, answer.headers["Location"])
            place += ("&" if "?" in place else "?") + f"digest=sha256:{digest}"
            self.timed(["curl", "-sS", "-f", "-X", "PUT", "-T", single, place])
            single.unlink()
            self.say("curl and sha256sum")
            url = f"http://127.0.0.1:{port}/v2/bench/single/blobs/sha256:{digest}"
            fetching = self.timed(["curl", "-sS", "-f", "-o", copy, url])
            hashing = self.timed(["sha256sum", copy])
            self.row("floor: curl", fetching, "s", None, f"one blob of {self.total / 1e9:.2f} GB from Lode to a file")
            self.row("floor: sha256sum", hashing, "s", None, "one core")
            return fetching + hashing
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failed(f"floor: {error}") from error
        finally:
            for path in (single, copy):
                path.unlink(missing_ok=True)

    def measure_again(self, target, name):
        self.say("again")
        times = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            self.post_pull(target, name)
            times.append((time.perf_counter() - begun) * 1000)
        value = statistics.median(times)
        self.row("again", value, "ms", value / AGAIN_MS, f"{AGAIN_MS} ms, {len(self.blobs)} blobs, median of {REPEATS}")

    def run_tuned(self):
        changed = sum(size for digest, size in self.layers(self.source, "tuned").items() if digest not in self.blobs)
        target = self.store()
        towards, away = Proxy(self.source.port), Proxy(target.port)
        try:
            self.say("tuned")
            self.push(self.source, "synthetic", f"{away.address}/library/synthetic")
            away.clear()
            self.push(self.source, "tuned", f"{away.address}/library/tuned")
            self.row("tuned: push", away.up / MB, "MB", away.up / changed, f"{changed / MB:.2f} MB changed (target ratio {TUNED_RATIO})")
            self.gone(target)
            target = self.store()
            self.pull(target, f"{towards.address}/library/synthetic")
            towards.clear()
            self.pull(target, f"{towards.address}/library/tuned")
            self.row("tuned: pull", towards.down / MB, "MB", towards.down / changed, f"{changed / MB:.2f} MB changed (target ratio {TUNED_RATIO})")
        finally:
            towards.stop()
            away.stop()
            self.gone(target)

    def run_resume(self):
        target, proxy = self.store(), Proxy(self.source.port)
        name = f"{proxy.address}/library/synthetic"
        try:
            self.say("resume")
            failure = []

            def pull():
                try:
                    self.post_pull(target, name)
                except (Failed, OSError, http.client.HTTPException) as error:
                    failure.append(error)

            client = threading.Thread(target=pull)
            client.start()
            while proxy.down < self.total / 2 and client.is_alive():
                time.sleep(0.001)
            if not client.is_alive():
                raise Failed(f"the pull ended before half of it: {failure}")
            os.kill(target.process.pid, signal.SIGKILL)
            client.join()
            target.stop()
            time.sleep(0.5)
            first, complete = proxy.down, on_disk(target.home)
            target.spawn()
            target.wait()
            self.pull(target, name)
            # Bytes in buffers when the daemon was killed do not count as fetched.
            twice = max(0, proxy.down - first - (self.total - complete))
            against = f"{complete / MB:.0f} MB that were there, killed after {first / MB:.0f} (target ratio {RESUME_RATIO})"
            self.row("resume: again", twice / MB, "MB", twice / complete, against)
        finally:
            proxy.stop()
            self.gone(target)

    def run_token(self):
        real = self.real_model()
        tuned = self.folder / "tuned.gguf"
        shutil.copyfile(real, tuned)
        # One tensor in the second half of the file gets other numbers.
        with open(tuned, "r+b") as file:
            file.seek(real.stat().st_size * 3 // 4)
            file.write(b"fine-tuned, bytewise")
        self.source.command("create", "real", "-f", real)
        self.source.command("create", "real-tuned", "-f", tuned)
        size = sum(self.layers(self.source, "real").values())
        pulls, tokens, tuned_tokens = [], [], []
        for _ in range(REPEATS):
            proxy = Proxy(self.source.port, LINK_MB * MB)
            name, variant = f"{proxy.address}/library/real", f"{proxy.address}/library/real-tuned"
            for first in (False, True):
                target = self.store()
                try:
                    begun = time.perf_counter()
                    if first:
                        tokens.append(self.first_token(target, name))
                        tuned_tokens.append(self.first_token(target, variant))
                    else:
                        self.post_pull(target, name)
                        pulls.append(time.perf_counter() - begun)
                finally:
                    self.gone(target)
            proxy.stop()
        pull = statistics.median(pulls)
        about = f"the pull of {size / MB:.0f} MB at {LINK_MB} MB/s took {pull:.2f} s"
        for name, seconds, target in (("token", tokens, TOKEN_RATIO), ("token: tuned", tuned_tokens, TUNED_TOKEN_RATIO)):
            median = statistics.median(seconds)
            self.row(name, median, "s", median / pull, f"{about} (target ratio {target})")

    def first_token(self, lode, name):
        """Starts a pull and asks the model at once; returns the seconds until the first token."""
        begun = time.perf_counter()
        client = threading.Thread(target=self.post_pull, args=(lode, name))
        client.start()
        while not lode.request("GET", "/api/lode/jobs")["jobs"] or not self.is_pulled(lode, name):
            time.sleep(0.002)
        body = json.dumps({"model": name, "prompt": "The capital of France is", "raw": True, "options": {"num_predict": 4}}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{lode.port}/api/generate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            line = json.loads(answer.readline())
        seconds = time.perf_counter() - begun
        if "response" not in line:
            raise Failed(f"no token of {name}: {line}")
        client.join()
        return seconds

    @staticmethod
    def is_pulled(lode, name):
        """Whether a job pulls the model, or has pulled it."""
        return any(job["model"].startswith(name) for job in lode.request("GET", "/api/lode/jobs")["jobs"])

    def run_limit(self):
        target = self.store()
        name = f"127.0.0.1:{self.source.port}/library/synthetic"
        try:
            self.say("limit")
            target.command("pull", name, "--detach", "--limit", f"{LIMIT_MB}MB/s")
            completed = lambda: target.request("GET", "/api/lode/jobs")["jobs"][0]["completed"]
            while completed() < LIMIT_MB * MB:
                time.sleep(0.01)
            first, begun = completed(), time.perf_counter()
            time.sleep(LIMIT_SECONDS)
            last, elapsed = completed(), time.perf_counter() - begun
            rate = (last - first) / elapsed / MB
            self.row("limit", rate, "MB/s", rate / LIMIT_MB, f"--limit {LIMIT_MB}MB/s, over {elapsed:.1f} s (target ratio {2 - LIMIT_RATIO:.2f} to {LIMIT_RATIO})")
        finally:
            self.gone(target)

    def run_serve(self):
        if not shutil.which("curl"):
            raise Failed("curl is not on PATH")
        self.say(f"serve: {CLIENTS} clients")
        url = f"http://127.0.0.1:{self.source.port}/v2/library/synthetic/blobs"
        plan = self.folder / "urls"
        plan.write_text("".join(f'url = "{url}/{digest}"\noutput = "/dev/null"\n' for digest in self.blobs))
        reset_peak(self.source.process.pid)
        begun = time.perf_counter()
        command = ["curl", "-sS", "-f", "-K", str(plan)]
        clients = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(CLIENTS)]
        failed = [client for client in clients if client.wait() != 0]
        seconds = time.perf_counter() - begun
        if failed:
            raise Failed(f"{len(failed)} of {CLIENTS} clients failed")
        rate = CLIENTS * self.total / seconds / MB
        self.row("serve", rate, "MB/s", None, f"{CLIENTS} clients, {self.about} each, {seconds:.1f} s")
        self.memory("serve: memory", self.source)


def on_disk(home):
    """Returns the bytes of the complete and partial blobs of a store."""
    files = [*Path(home).glob("blobs/*/*/*"), *Path(home).glob("ingest/*/data")]
    return sum(file.stat().st_size for file in files)


def add_arguments(parser):
    cache = Path.home() / ".cache" / "lode"
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this benchmark; repeatable")
    parser.add_argument("--size", type=float, default=2, metavar="GB", help="size of the synthetic model (default 2)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="the real model (default SmolLM2-135M)")
    parser.add_argument("--python", type=Path, default=cache / "venv/bin/python", metavar="FILE", help="a Python with oras")


def check(parser, options):
    options.only = options.only or NAMES
    if options.size <= 0:
        parser.error("--size must be positive")


def run(options, folder):
    # All requests stay on this machine.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"
    transfer = Transfer(options, folder)
    groups = [
        (("registry",), transfer.run_registry),
        (("lode", "again"), transfer.run_lode),
        (("tuned",), transfer.run_tuned),
        (("token",), transfer.run_token),
        (("limit",), transfer.run_limit),
        (("resume",), transfer.run_resume),
        (("serve",), transfer.run_serve),
    ]
    try:
        transfer.prepare()
        return of_rows(transfer.rows, transfer.run_groups(groups))
    finally:
        for registry in list(Registry.running):
            registry.stop()
