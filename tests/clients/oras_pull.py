"""Pull an artifact with oras.

usage: oras_pull.py HOST:PORT/REPOSITORY:TAG FOLDER
"""

import sys

import oras.client

target, folder = sys.argv[1:]
client = oras.client.OrasClient(hostname=target.split("/")[0], insecure=True)
for path in client.pull(target=target, outdir=folder):
    print(path)
