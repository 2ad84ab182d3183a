"""Converts models by mlx_lm, as floats and to 4 bits, and computes their logits in float32.

    mlx_conversions.py FIXTURES OUT

Writes OUT/NAME and OUT/NAME-4bit for each fixture: `model`, and `golden.safetensors` with `logits.s5` and `logits.s37`. Says of
each fixture that mlx_lm does not know why.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm import convert
from mlx_lm.utils import load_model


def converted(source, target, quantized):
    convert(str(source / "model"), mlx_path=str(target / "model"), quantize=quantized, q_bits=4, q_group_size=32)
    model, _ = load_model(target / "model", lazy=False)
    model.set_dtype(mx.float32)
    sequences = json.loads((source / "golden.json").read_text())["sequences"]
    logits = {f"logits.{s}": model(mx.array([sequences[s]["input_ids"]]))[0] for s in ("s5", "s37")}
    mx.save_safetensors(str(target / "golden.safetensors"), logits)


def main():
    fixtures, out = Path(sys.argv[1]), Path(sys.argv[2])
    mx.set_default_device(mx.cpu)
    for name in sorted(json.loads((fixtures / "manifest.json").read_text())["fixtures"]):
        for suffix in ("", "-4bit"):
            try:
                converted(fixtures / name, out / (name + suffix), bool(suffix))
            except ValueError as error:
                print(f"{name}{suffix}: {str(error).splitlines()[0][:120]}")


if __name__ == "__main__":
    main()
