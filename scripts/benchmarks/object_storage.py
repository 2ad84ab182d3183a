"""Measure `lode registry` over SeaweedFS, beside docker-registry with its S3 driver on the same storage.

  commit     time from the last byte of a blob to the response: 1 MiB, 1 GiB and --large GiB as fast as the
             registry takes them, and 1 GiB as fast as a network of 500 Mbit/s
  push       8 models of 600 tensors at the same time, in seconds
  pull       16 clients that fetch 2 GB, with and without redirects, in MB/s
  requests   requests to the storage for a push and a pull of a model
  many       --repositories repositories of a manifest each, made by copies of one: the start of a replica, pages
             of the catalog, tags and manifests, a collection and its memory

Needs Linux, Python 3.8, a release binary of lode, docker-registry, and SeaweedFS (see --weed).
scripts/test installs them. Uses about four times --large GiB on the disk.
"""

import hashlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .bench import Bench
from .daemon import Failed
from .report import of_rows
from .seaweed import Seaweed
from .transfer import DOCKER_REGISTRY, free_port

BINARIES = ("lode",)
NAMES = ["commit", "push", "pull", "requests", "many"]
MIB = 1 << 20
PIECE = bytes(MIB)
REPEATS = 5
CLIENTS = 16
MODELS = 8
TENSORS = 600
MANIFEST = "application/vnd.oci.image.manifest.v1+json"

# Targets. A ratio is Lode's value divided by docker-registry's.
COMMIT_MS = 50
# Bytes a second of a network of 500 Mbit/s.
NETWORK = 60_000_000
PUSH_RATIO = 1.0
PULL_RATIO = 1.0


def add_arguments(parser):
    cache = Path.home() / ".cache" / "lode"
    parser.add_argument("--weed", type=Path, default=cache / "venv-seaweedfs" / "bin" / "weed", help="the program of SeaweedFS")
    parser.add_argument("--large", type=int, default=8, metavar="GIB", help="size of the largest blob")
    parser.add_argument("--repositories", type=int, default=100_000, metavar="N", help="repositories of `many` (default 100000)")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="number of pairs of pushes and pulls")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="run only this benchmark; repeatable")


def check(parser, options):
    options.only = options.only or [name for name in NAMES if name != "many"]
    if options.large <= 0 or options.pairs <= 0:
        parser.error("--large and --pairs must be positive")


def run(options, folder):
    for program in (options.weed, DOCKER_REGISTRY):
        if not program.is_file():
            raise Failed(f"there is no {program}; scripts/test installs it")
    bench = ObjectStorage(options, folder)
    try:
        bench.start()
        failures = bench.run_groups([([name], getattr(bench, name)) for name in NAMES])
    finally:
        if bench.seaweed:
            bench.seaweed.stop()
    return of_rows(bench.rows, failures)


def connect(address):
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=600)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection, method, path, body=None, headers=None):
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def expect(status, *expected):
    if status not in expected:
        raise Failed(f"a registry answered {status}, expected {expected[0]}")


def relative(location):
    parts = urllib.parse.urlsplit(location)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def begin(connection, repository):
    status, headers, _ = ask(connection, "POST", f"/v2/{repository}/blobs/uploads/", b"")
    expect(status, 202)
    return relative(headers["Location"])


def with_digest(place, digest):
    return f"{place}{'&' if '?' in place else '?'}digest={digest}"


def commit(address, repository, mebibytes, marker, rate=None):
    """Uploads zeros after a marker, `rate` bytes a second at most. Returns the seconds from the last byte to the response."""
    digest = hashlib.sha256(marker)
    for _ in range(mebibytes):
        digest.update(PIECE)
    connection = connect(address)
    place = begin(connection, repository)
    connection.putrequest("PUT", with_digest(place, f"sha256:{digest.hexdigest()}"))
    connection.putheader("Content-Length", str(mebibytes * MIB + len(marker)))
    connection.putheader("Content-Type", "application/octet-stream")
    connection.endheaders()
    connection.send(marker)
    start = time.perf_counter()
    for number in range(mebibytes):
        if rate:
            time.sleep(max(0, start + number * MIB / rate - time.perf_counter()))
        connection.send(PIECE)
    last = time.perf_counter()
    answer = connection.getresponse()
    answer.read()
    taken = time.perf_counter() - last
    expect(answer.status, 201)
    return taken


def push_blob(connection, repository, blob):
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    status, _, _ = ask(connection, "HEAD", f"/v2/{repository}/blobs/{digest}")
    if status != 200:
        place = begin(connection, repository)
        status, _, _ = ask(connection, "PUT", with_digest(place, digest), blob, {"Content-Type": "application/octet-stream"})
        expect(status, 201)
    return {"mediaType": "application/octet-stream", "digest": digest, "size": len(blob)}


def push_model(address, repository, blobs):
    """Pushes a model as clients do, several blobs at a time."""
    kept = threading.local()

    def push(blob):
        if not hasattr(kept, "connection"):
            kept.connection = connect(address)
        return push_blob(kept.connection, repository, blob)

    with ThreadPoolExecutor(8) as pool:
        layers = list(pool.map(push, blobs))
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": layers[0], "layers": layers}
    status, _, _ = ask(connect(address), "PUT", f"/v2/{repository}/manifests/latest", json.dumps(manifest), {"Content-Type": MANIFEST})
    expect(status, 201)
    return manifest


def fetch(address, path):
    """Fetches a blob, perhaps from the storage, and returns its size."""
    connection = connect(address)
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status == 307:
        target = urllib.parse.urlsplit(answer.headers["Location"])
        connection = connect(target.netloc)
        connection.request("GET", relative(answer.headers["Location"]))
        answer = connection.getresponse()
    expect(answer.status, 200)
    size = 0
    buffer = bytearray(MIB)
    while True:
        read = answer.readinto(buffer)
        if not read:
            return size
        size += read


class ObjectStorage(Bench):
    """SeaweedFS, and registries over it."""

    seaweed = None

    def start(self):
        self.seaweed = Seaweed(self.options.weed, self.folder)
        self.s3, self.environment = self.seaweed.s3, self.seaweed.environment
        self.linked = self.lode_registry([])
        self.whole = self.lode_registry(["--no-redirects"])
        self.docker_linked = self.docker(True)
        self.docker_whole = self.docker(False)

    def lode_registry(self, arguments):
        address = f"127.0.0.1:{free_port()}"
        command = [self.options.bin / "lode", "registry", "--storage", "s3://models/lode", *arguments]
        self.seaweed.spawn(command, f"lode-{len(self.seaweed.processes)}", {**self.environment, "LODE_HOST": address, "LODE_HOME": str(self.folder / "none")})
        self.seaweed.wait(f"http://{address}/healthz")
        return address

    def docker(self, redirects):
        address = f"127.0.0.1:{free_port()}"
        storage = f"{{accesskey: bench, secretkey: secret, region: us-east-1, regionendpoint: 'http://127.0.0.1:{self.s3}', bucket: models, "
        storage += "rootdirectory: /docker, secure: false, v4auth: true}"
        config = f"version: 0.1\nlog: {{level: error}}\nstorage: {{s3: {storage}, redirect: {{disable: {str(not redirects).lower()}}}}}\n"
        path = self.folder / f"docker-{redirects}.yml"
        path.write_text(config + f"http: {{addr: '{address}'}}\n")
        self.seaweed.spawn([DOCKER_REGISTRY, "serve", path], f"docker-{redirects}")
        self.seaweed.wait(f"http://{address}/v2/")
        return address

    def commit(self):
        large = self.options.large
        cases = [(1, "1 MiB", None), (1024, "1 GiB", None), (large * 1024, f"{large} GiB", None), (1024, "1 GiB at 500 Mbit/s", NETWORK)]
        for mebibytes, name, rate in cases:
            repeats = REPEATS if mebibytes <= 1024 else 1
            own, other = [], []
            for repeat in range(repeats):
                marker = f"{name} {repeat}".encode()
                own.append(commit(self.whole, "bench/commit", mebibytes, b"l" + marker, rate))
                other.append(commit(self.docker_whole, "bench/commit", mebibytes, b"d" + marker, rate))
            own, other = statistics.median(own) * 1000, statistics.median(other) * 1000
            self.row(f"commit-{name.replace(' ', '')}", own, "ms", own / other, f"docker-registry: {other:.1f} ms; target {COMMIT_MS} ms")

    def push(self):
        def blobs(model, salt):
            return [f"{salt} {model} {number} ".encode() + bytes(16_000 + 100 * number) for number in range(TENSORS)]

        times = {}
        for repeat in range(self.options.pairs):
            for address in (self.whole, self.docker_whole):
                models = [blobs(model, f"{address} {repeat}") for model in range(MODELS)]
                begun = time.perf_counter()
                with ThreadPoolExecutor(MODELS) as pool:
                    list(pool.map(lambda pair: push_model(address, f"bench/push{pair[0]}", pair[1]), enumerate(models)))
                times.setdefault(address, []).append(time.perf_counter() - begun)
        own, other = (statistics.median(times[address]) for address in (self.whole, self.docker_whole))
        self.row("push-8x600", own, "s", own / other, f"docker-registry: {other:.1f} s; target ratio {PUSH_RATIO}")

    def pull(self):
        blob_size, count = 62 * MIB, 32
        for redirects, own, other in [("redirects", self.linked, self.docker_linked), ("no-redirects", self.whole, self.docker_whole)]:
            rates = {}
            for address in (own, other):
                connection = connect(address)
                layers = [push_blob(connection, "bench/pull", f"{number} ".encode() + bytes(blob_size)) for number in range(count)]
                paths = [f"/v2/bench/pull/blobs/{layer['digest']}" for layer in layers]
                self.rate(address, paths)
            for _ in range(self.options.pairs):
                for address in (own, other):
                    rates.setdefault(address, []).append(self.rate(address, paths))
            own, other = statistics.median(rates[own]), statistics.median(rates[other])
            self.row(f"pull-{redirects}", own, "MB/s", own / other, f"docker-registry: {other:.0f} MB/s; target ratio {PULL_RATIO}, more is better")

    def rate(self, address, paths):
        begun = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            total = sum(pool.map(lambda path: fetch(address, path), paths))
        return total / 1e6 / (time.perf_counter() - begun)

    def counted(self):
        with urllib.request.urlopen(f"http://{self.linked}/metrics") as answer:
            text = answer.read().decode()
        return {name: int(float(value)) for name, value in re.findall(r'lode_storage_requests_total\{operation="(\w+)"\} (\S+)', text)}

    def requests(self):
        """Counts requests of the replica with links; nothing else uses it meanwhile."""
        small = [f"requests {number} ".encode() + bytes(10_000) for number in range(100)]
        large = [f"requests {number} ".encode() + bytes(20 * MIB) for number in range(4)]
        before = self.counted()
        connection = connect(self.linked)
        layers = [push_blob(connection, "bench/requests", blob) for blob in small]
        self.differences("requests-push-of-100-small-blobs", before)
        before = self.counted()
        layers += [push_blob(connection, "bench/requests", blob) for blob in large]
        self.differences("requests-push-of-4-blobs-of-20-MiB", before)
        before = self.counted()
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": layers[0], "layers": layers}
        status, _, _ = ask(connection, "PUT", "/v2/bench/requests/manifests/latest", json.dumps(manifest), {"Content-Type": MANIFEST})
        expect(status, 201)
        self.differences("requests-manifest-of-104-blobs", before)
        before = self.counted()
        ask(connection, "GET", "/v2/bench/requests/manifests/latest")
        for layer in layers:
            fetch(self.linked, f"/v2/bench/requests/blobs/{layer['digest']}")
        self.differences("requests-pull-of-104-blobs", before)

    def differences(self, name, before):
        for operation, number in self.counted().items():
            difference = number - before.get(operation, 0)
            if difference:
                self.row(f"{name}-{operation}", difference, "requests", None, "")

    def many(self):
        count = self.options.repositories
        connection = connect(self.whole)
        layer = push_blob(connection, "many/one", b"many" + bytes(10_000))
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": layer, "layers": [layer]})
        status, _, _ = ask(connection, "PUT", "/v2/many/one/manifests/latest", manifest, {"Content-Type": MANIFEST})
        expect(status, 201)
        self.say(f"making {count} repositories")
        objects = self.objects_of("many!one")
        kept = threading.local()

        def copy(number):
            if not hasattr(kept, "connection"):
                kept.connection = http.client.HTTPConnection("127.0.0.1", self.seaweed.filer, timeout=600)
            for path, content in objects:
                target = path.replace("many!one", f"team-{number % 100}!model-{number}")
                status, _, _ = ask(kept.connection, "PUT", target, content, {"Content-Type": "application/octet-stream"})
                expect(status, 200, 201)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(copy, range(count)))
        against = f"{count} repositories"
        begun = time.perf_counter()
        address = self.lode_registry(["--no-redirects"])
        self.row("many-start", time.perf_counter() - begun, "s", None, against)
        names = [f"team-{number % 100}/model-{number}" for number in range(0, count, max(count // 10, 1))]
        for what, paths in [
            ("catalog", [f"/v2/_catalog?n=100&last={urllib.parse.quote(name, safe='')}" for name in names]),
            ("tags", [f"/v2/{name}/tags/list" for name in names]),
            ("manifest", [f"/v2/{name}/manifests/latest" for name in names]),
        ]:
            self.row(f"many-{what}", statistics.median(self.timed(address, path) for path in paths) * 1000, "ms", None, against)
        taken, memory = self.collect()
        self.row("many-collection", taken, "s", None, against)
        self.row("many-collection-memory", memory, "MB", None, against)

    def objects_of(self, repository):
        """Returns the paths and contents of the objects of a repository."""
        found, folders = [], [f"/buckets/models/lode/repos/{repository}/", "/buckets/models/lode/names/"]
        while folders:
            folder = folders.pop()
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.seaweed.filer}{folder}?limit=1000", headers={"Accept": "application/json"})) as answer:
                entries = json.load(answer)["Entries"] or []
            for entry in entries:
                path = entry["FullPath"]
                # The mode of Go: the highest bit is that of folders.
                if entry["Mode"] >> 31:
                    folders.append(path + "/")
                elif repository in path:
                    with urllib.request.urlopen(f"http://127.0.0.1:{self.seaweed.filer}{urllib.parse.quote(path)}") as answer:
                        found.append((path, answer.read()))
        return found

    def timed(self, address, path):
        connection = connect(address)
        begun = time.perf_counter()
        status, _, _ = ask(connection, "GET", path, headers={"Accept": MANIFEST})
        expect(status, 200)
        return time.perf_counter() - begun

    def collect(self):
        """Runs a collection; returns its seconds and its memory in MB."""
        command = [str(self.options.bin / "lode"), "registry", "gc", "--storage", "s3://models/lode"]
        environment = {**os.environ, **self.environment, "LODE_HOME": str(self.folder / "none")}
        begun = time.perf_counter()
        with open(self.folder / "gc.log", "wb") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        taken = time.perf_counter() - begun
        if status != 0:
            raise Failed(f"`lode registry gc` failed: {(self.folder / 'gc.log').read_text(errors='replace')[-200:]}")
        return taken, usage.ru_maxrss / 1000
