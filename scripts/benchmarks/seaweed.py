"""SeaweedFS on this machine, for benchmarks of object storage."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

from .daemon import Failed
from .transfer import free_port

IDENTITIES = {
    "identities": [
        {"name": "bench", "credentials": [{"accessKey": "bench", "secretKey": "secret"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    ]
}


def free_pair():
    """A port whose neighbour 10,000 above is free, too: SeaweedFS uses both."""
    while True:
        port = free_port()
        if port < 55_536:
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
            return port


class Seaweed:
    """A storage with the bucket `models`, and further servers that end with it."""

    def __init__(self, program, folder):
        self.folder = folder
        self.processes = []
        try:
            self.start(program, folder)
        except BaseException:
            self.stop()
            raise

    def start(self, program, folder):
        (folder / "s3.json").write_text(json.dumps(IDENTITIES))
        master, volume, self.filer, self.s3 = (free_pair() for _ in range(4))
        data = folder / "data"
        data.mkdir()
        command = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-filer", "-s3"]
        command += ["-master.volumeSizeLimitMB=4096", "-volume.max=60", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-dir={data}"]
        command += [f"-s3.config={folder}/s3.json", f"-master.port={master}", f"-volume.port={volume}"]
        self.spawn([*command, f"-filer.port={self.filer}", f"-s3.port={self.s3}"], "seaweedfs")
        self.bucket("models")
        self.environment = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        self.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{self.s3}"

    def spawn(self, command, name, environment=None):
        log = open(self.folder / f"{name}.log", "wb")
        # Settings of other storages; docker-registry ends if one of them names certificates.
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**own, **(environment or {})})
        self.processes.append(process)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def wait(self, url, method="GET", made=(200,)):
        begun = time.perf_counter()
        while time.perf_counter() - begun < 60:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            except OSError:
                status = None
            if status in made:
                return
            time.sleep(0.05)
        raise Failed(f"{url} does not answer")

    def bucket(self, name):
        """Makes a bucket, which is a folder of the filer."""
        self.wait(f"http://127.0.0.1:{self.filer}/buckets/{name}/", "POST", made=(201, 409))
        self.wait(f"http://127.0.0.1:{self.s3}/", made=(200, 403))
