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
