"""Variants of tiny models, with parts that the models of the reference data do not have."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file


def bounded(source, folder):
    """Copies a Gemma 4; its tower gets bounds of projections, and a standardization of its rows."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"].update(use_clipped_linears=True, standardize=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    linears = sorted(name for name in weights if "vision_tower" in name and name.endswith(".linear.weight"))
    for index, name in enumerate(linears):
        module = name.removesuffix(".linear.weight")
        bounds = {"input_min": -0.5, "input_max": 0.75, "output_min": -0.25 - index / 64, "output_max": 0.5 + index / 64}
        weights.update({f"{module}.{bound}": torch.tensor(value) for bound, value in bounds.items()})
    width = config["vision_config"]["hidden_size"]
    weights["model.vision_tower.std_bias"] = torch.linspace(-1, 1, width)
    weights["model.vision_tower.std_scale"] = torch.linspace(0.5, 2, width)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def normed(source, folder):
    """Copies an InternVL; its tower gets RMS norms, norms of queries and keys, and biases."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    vision.update(norm_type="rms_norm", use_qk_norm=True, attention_bias=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    width, layers = vision["hidden_size"], vision["num_hidden_layers"]
    for layer in range(layers):
        own = f"vision_tower.encoder.layer.{layer}"
        for norm in ["before", "after"]:
            del weights[f"{own}.layernorm_{norm}.bias"]
        for at, part in enumerate("qkv"):
            weights[f"{own}.attention.{part}_proj.bias"] = torch.linspace(-0.5, 0.25 * at, width)
            if part != "v":
                weights[f"{own}.attention.{part}_norm.weight"] = torch.linspace(0.5, 1.5 + at, width)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def silu(source, folder):
    """Copies a Mistral 3; its tower gets the activation of published models, which files of Ollama do not name."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "silu"
    (folder / "config.json").write_text(json.dumps(config))


# Endings of the names of variants, and the functions that make them.
VARIANTS = {"-bounded": bounded, "-normed": normed, "-silu": silu}
