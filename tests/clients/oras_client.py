"""The client `oras` against a registry: an artifact of many small layers, pushed, pushed again, pulled.

usage: oras_client.py HOST:PORT LAYERS

Prints the milliseconds per layer of each step, as one line of JSON. The files that come back must be those that went.
"""

import hashlib
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import oras.client

SIZE = 8 * 1024
LAYER = "application/vnd.ollama.image.tensor"


def content(number):
    """Returns pseudo-random bytes that depend only on the number."""
    blocks = (hashlib.sha256(f"{number} {block}".encode()).digest() for block in range(SIZE // 32))
    return b"".join(blocks)


def timed(layers, step):
    begun = time.perf_counter()
    step()
    return round((time.perf_counter() - begun) * 1000 / layers, 2)


def main():
    address, layers = sys.argv[1], int(sys.argv[2])
    logging.disable(logging.INFO)
    target = f"{address}/library/oras-{layers}:latest"
    client = oras.client.OrasClient(hostname=address, insecure=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(layers)]
        for number, name in enumerate(names):
            Path(name).write_bytes(content(number))
        files = [f"{name}:{LAYER}" for name in names]

        def push():
            client.push(target=target, files=files)

        def pull():
            client.pull(target=target, outdir="pulled")

        report = {
            "layers": layers,
            "push_ms": timed(layers, push),
            "push_again_ms": timed(layers, push),
            "pull_ms": timed(layers, pull),
        }
        for number, name in enumerate(names):
            assert Path("pulled", name).read_bytes() == content(number), name
        assert len(list(Path("pulled").iterdir())) == layers
        assert client.get_tags(f"{address}/library/oras-{layers}") == ["latest"]
    print(json.dumps(report))


main()
