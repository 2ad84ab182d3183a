"""Makes resampled.json: digests of pictures that Pillow has resized.

    python make_resampled.py        (Pillow 13.0, NumPy)

The bytes of a picture follow a rule. A case has the rule, the sizes before and after as [width, height], the filter, and the SHA-256 of
the resized bytes, [height, width, 3].
"""

import hashlib
import itertools
import json
import pathlib

import numpy
from PIL import Image

FILTERS = {name: getattr(Image.Resampling, name.upper()) for name in ["box", "bilinear", "hamming", "bicubic", "lanczos"]}
SIZES = [
    ((64, 48), (17, 31)),
    ((64, 48), (128, 97)),
    ((64, 48), (64, 20)),
    ((64, 48), (33, 48)),
    ((64, 48), (64, 48)),
    ((301, 7), (28, 28)),
    ((5, 200), (56, 14)),
    ((1, 1), (9, 4)),
    ((3, 2), (448, 448)),
    ((640, 427), (336, 224)),
    ((641, 1), (1, 3)),
]


def noise(width, height):
    return ((numpy.arange(width * height * 3, dtype=numpy.uint64) * 2654435761 & 0xFFFFFFFF) >> 24).astype(numpy.uint8)


def waves(width, height):
    y, x, channel = numpy.indices((height, width, 3))
    return ((x * 7 + y * 13 + channel * 101) ^ (x * y // 5)).astype(numpy.uint8)


def main() -> None:
    cases = []
    for rule, (before, after), (name, kind) in itertools.product([noise, waves], SIZES, FILTERS.items()):
        width, height = before
        picture = Image.fromarray(rule(width, height).reshape(height, width, 3), "RGB").resize(after, kind)
        digest = hashlib.sha256(picture.tobytes()).hexdigest()
        cases.append({"rule": rule.__name__, "from": before, "to": after, "filter": name, "sha256": digest})
    lines = ",\n".join(json.dumps(case) for case in cases)
    pathlib.Path(__file__).with_name("resampled.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
