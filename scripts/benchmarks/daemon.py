"""Daemons for benchmarks. Every started process is stopped, also after a failure."""

import atexit
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path


class Failed(Exception):
    """A benchmark could not be measured; the text has the reason."""


def read_proc(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def process_key(pid):
    """Returns a process id, its start time (which detects a reused id), and its parent."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    return (pid, fields[19], int(fields[1])) if len(fields) > 19 else None


def descendants(root):
    """Returns the keys of all descendants of `root`."""
    keys = [key for key in (process_key(int(p)) for p in os.listdir("/proc") if p.isdigit()) if key]
    found, frontier = [], {root}
    while frontier:
        below = [key for key in keys if key[2] in frontier]
        found += below
        frontier = {key[0] for key in below}
    return found


class Lode:
    """A daemon of the given binaries, with its store and log."""

    running = []

    def __init__(self, binaries, home, log):
        self.binary = binaries / "lode"
        self.home = home
        self.log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None
        self.extra = {}

    def environment(self):
        ours = ("LODE_", "OLLAMA_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "LODE_HOME": str(self.home), "LODE_HOST": f"127.0.0.1:{self.port}", **self.extra}

    def spawn(self):
        """Starts the daemon; returns before it answers."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), "serve"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        Lode.running.append(self)

    def wait(self, limit=30.0):
        """Waits until the daemon answers; returns the seconds since the call."""
        begun = time.perf_counter()
        while time.perf_counter() - begun < limit:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
            try:
                connection.request("GET", "/api/version")
                if connection.getresponse().status == 200:
                    return time.perf_counter() - begun
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            if self.process.poll() is not None:
                raise Failed(f"`lode serve` ended with status {self.process.returncode}")
            time.sleep(0.0005)
        raise Failed(f"`lode serve` did not answer within {limit:.0f} s")

    def stop(self):
        """Ends the daemon and all processes that it started."""
        if self.process is None:
            return
        children = descendants(self.process.pid)
        signal_group(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        # Signals the group even if its leader has ended, because runners may be in it.
        signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for key in children:
            if process_key(key[0]) and process_key(key[0])[:2] == key[:2]:
                try:
                    os.kill(key[0], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process = None
        Lode.running.remove(self)

    def command(self, *arguments):
        """Runs a command to its end; returns the seconds."""
        begun = time.perf_counter()
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [str(self.binary), *map(str, arguments)],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = process.wait()
            finally:
                if process.returncode is None:
                    signal_group(process.pid, signal.SIGKILL)
                    process.wait()
        if status != 0:
            raise Failed(f"`lode {' '.join(map(str, arguments))}` ended with status {status}")
        return time.perf_counter() - begun

    def request(self, method, path, body=None, limit=600.0):
        """Returns the JSON of the daemon's response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise Failed(f"{method} {path}: status {response.status}: {text.strip()[:200]}")
        return json.loads(text)

    def runner(self):
        """Returns the process id of the runner."""
        for key in descendants(self.process.pid):
            if read_proc(key[0], "comm").strip() == "lode-runner":
                return key[0]
        raise Failed("the daemon has no process `lode-runner` below it")

    def log_tail(self):
        try:
            return self.log.read_text(errors="replace").splitlines()[-8:]
        except OSError:
            return []


def signal_group(pid, number):
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


@atexit.register
def stop_all():
    for lode in list(Lode.running):
        lode.stop()


def kilobytes(pid, file, *fields):
    """Returns the sum, in bytes, of `fields` of a file in /proc that has values in kB."""
    values = {}
    for line in read_proc(pid, file).splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith("kB"):
            values[name] = int(rest.split()[0]) * 1024
    missing = [field for field in fields if field not in values]
    if missing:
        raise Failed(f"/proc/{pid}/{file} has no {', '.join(missing)}")
    return sum(values[field] for field in fields)


def with_log(failure, lode):
    return Failed("\n    ".join([str(failure), *lode.log_tail()]))


def unload(lode, model="bench"):
    """Unloads the model; returns when it is unloaded."""
    lode.request("POST", "/api/generate", {"model": model, "prompt": "", "keep_alive": 0, "stream": False})
    begun = time.perf_counter()
    while lode.request("GET", "/api/ps").get("models"):
        if time.perf_counter() - begun > 30:
            raise Failed("the model is still in /api/ps 30 s after keep_alive 0")
        time.sleep(0.01)
