"""Loads exported MLX models with mlx_lm, and computes with them what it computes with the originals.

usage: mlx_lm_export.py EXPORT ORIGINAL [EXPORT ORIGINAL]…
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
from mlx_lm.utils import load

TOKENS = [1, 17, 93, 4, 5, 64, 127, 3, 88, 41, 41, 100]

mx.set_default_device(mx.cpu)


def logits(folder):
    model, _ = load(folder)
    return model(mx.array([TOKENS]))


def main(folders):
    assert folders and len(folders) % 2 == 0, __doc__
    for export, original in zip(folders[::2], folders[1::2]):
        ours, theirs = logits(export), logits(original)
        assert ours.dtype == theirs.dtype and mx.array_equal(ours, theirs), f"{original}: logits differ after the export"
    print("ok")


main(sys.argv[1:])
