"""Prints mlx_lm's logits for tokens with an adapter.

usage: mlx_lm_adapter.py MODEL ADAPTER TOKENS
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
from mlx_lm.utils import load

mx.set_default_device(mx.cpu)
path, adapter, tokens = sys.argv[1:]
model, _ = load(path, adapter_path=adapter)
logits = model(mx.array([json.loads(tokens)])).astype(mx.float32)
print(json.dumps(logits.flatten().tolist()))
