"""Pull an artifact with oras.

usage: oras_pull.py HOST:PORT/REPOSITORY:TAG FOLDER [USER PASSWORD]
"""

import sys

import oras.client

target, folder, *credentials = sys.argv[1:]
backend = "basic" if credentials else "token"
client = oras.client.OrasClient(hostname=target.split("/")[0], insecure=True, auth_backend=backend)
if credentials:
    client.auth.set_basic_auth(*credentials)
for path in client.pull(target=target, outdir=folder):
    print(path)
