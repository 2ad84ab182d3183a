"""Makes embedded/NAME.gguf: towers of tiny models as they lie in a model's own GGUF file, in the form of Ollama's converter.

    python make_embedded.py GGUF_PY ZOO        (transformers 5.24, PyTorch; gguf-py of llama.cpp b11434)

GGUF_PY is the folder gguf-py of llama.cpp, ZOO the folder with the tiny models of 2026 from the reference data. The files have the tensors
of towers only. Source of keys and names: convert/convert_*.go of Ollama, at fb307609; and llama/compat for the older names of Qwen3-VL.
"""

import json
import pathlib
import re
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file

from variants import VARIANTS

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, sys.argv[1])

import gguf  # noqa: E402

ZOO = pathlib.Path(sys.argv[2])


def go_replace(name, pairs):
    """Replaces as Go's strings.NewReplacer: at each place, the first pair that matches there."""
    out, at = "", 0
    while at < len(name):
        pair = next(((old, new) for old, new in zip(pairs[::2], pairs[1::2]) if name.startswith(old, at)), None)
        out += pair[1] if pair else name[at]
        at += len(pair[0]) if pair else 1
    return out


def gemma3(config, weights):
    vision = config["vision_config"]
    # Published folders have one more part in the names.
    weights = {name.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model."): weight for name, weight in weights.items()}
    pairs = [
        "vision_tower.vision_model.embeddings", "v", "vision_tower.vision_model", "v", "encoder.layers", "blk", "self_attn.q_proj", "attn_q",
        "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.out_proj", "attn_output",
        "input_projection_weight", "input_projection.weight", "multi_modal_projector", "mm",
    ]
    tensors = {go_replace(name, pairs): weight for name, weight in weights.items()}
    # Published folders have no head, which is not used. One is added to norms outside of the tower.
    tensors = {name: weight for name, weight in tensors.items() if not name.startswith("v.head.")}
    tensors = {name: weight.float() + 1 if name == "mm.mm_soft_emb_norm.weight" else weight for name, weight in tensors.items()}
    keys = {f"vision.{key}": vision[name] for key, name in {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "image_size": "image_size", "patch_size": "patch_size", "attention.head_count": "num_attention_heads"}.items()}
    keys |= {"vision.num_channels": 3, "vision.attention.layer_norm_epsilon": vision["layer_norm_eps"], "mm.tokens_per_image": config["mm_tokens_per_image"]}
    return keys, tensors


def gemma4(config, weights):
    vision = config["vision_config"]
    pairs = [
        ".linear.weight", ".weight", "model.vision_tower.encoder.layers", "v.blk", "model.vision_tower.patch_embedder.input_proj", "v.patch_embd",
        "model.vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight", "model.vision_tower.std_bias", "v.std_bias",
        "model.vision_tower.std_scale", "v.std_scale", "model.embed_vision.embedding_projection", "mm.input_projection",
        "input_layernorm", "ln1", "self_attn.q_proj", "attn_q", "self_attn.q_norm", "attn_q_norm", "self_attn.k_proj", "attn_k",
        "self_attn.k_norm", "attn_k_norm", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_out", "mlp.gate_proj", "ffn_gate",
        "mlp.down_proj", "ffn_down", "mlp.up_proj", "ffn_up", "post_attention_layernorm", "attn_post_norm", "pre_feedforward_layernorm", "ln2",
        "post_feedforward_layernorm", "ffn_post_norm",
    ]
    tensors = {}
    for name, weight in weights.items():
        name = go_replace(name, pairs)
        if name == "v.patch_embd.weight":
            side = vision["patch_size"]
            weight = weight.view(-1, side, side, 3).permute(0, 3, 1, 2)
        tensors[name] = weight.reshape(1) if weight.ndim == 0 else weight
    # The bounds again, in one tensor.
    parts = [f"{part}.{bound}" for part in ["attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"] for bound in ["input_min", "input_max", "output_min", "output_max"]]
    packed = [tensors[f"v.blk.{layer}.{part}"].reshape(1) for layer in range(vision["num_hidden_layers"]) for part in parts]
    tensors["v.clamp_data"] = torch.cat([*packed, torch.zeros(4)])
    keys = {f"vision.{key}": vision[name] for key, name in {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "attention.head_count": "num_attention_heads", "feed_forward_length": "intermediate_size", "patch_size": "patch_size", "projector.scale_factor": "pooling_kernel_size"}.items()}
    return keys | {"vision.num_channels": 3, "vision.attention.layer_norm_epsilon": 1e-6}, tensors


def mistral3(config, weights):
    vision = config["vision_config"]
    # Published folders have no outer part in the names.
    weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
    pairs = [
        "layers", "blk", "transformer.layers", "blk", "vision_tower", "v", "ln_pre", "encoder_norm", "attention.q_proj", "attn_q",
        "attention.k_proj", "attn_k", "attention.v_proj", "attn_v", "attention.o_proj", "attn_output", "attention_norm", "attn_norm",
        "feed_forward.gate_proj", "ffn_gate", "feed_forward.down_proj", "ffn_down", "feed_forward.up_proj", "ffn_up", "multi_modal_projector", "mm",
    ]
    tensors = {go_replace(name, pairs): weight for name, weight in weights.items()}
    keys = {f"vision.{key}": vision[name] for key, name in {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads", "attention.key_length": "head_dim", "image_size": "image_size", "patch_size": "patch_size"}.items()}
    keys |= {"vision.num_channels": 3, "vision.rope.freq_base": 10000.0, "spatial_merge_size": config["spatial_merge_size"], "mm.projector_bias": False}
    return keys, tensors


def qwen25vl(config, weights):
    vision = config["vision_config"]
    pairs = ["mlp.down_proj", "ffn_down", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "model.visual", "v", "visual", "v", "blocks", "blk", "attn.proj", "attn_out", "norm1", "ln1", "norm2", "ln2"]
    tensors = {}
    for name, weight in weights.items():
        name = go_replace(name, pairs)
        if "patch_embed.proj" in name:
            for frame in range(2):
                tensors[name.replace("patch_embed.proj", f"patch_embd_{frame}")] = weight[:, :, frame]
        elif "attn.qkv" in name:
            for part, own in zip("qkv", weight.chunk(3)):
                tensors[name.replace("attn.qkv", f"attn_{part}")] = own
        else:
            tensors[name] = weight
    keys = {f"vision.{key}": vision[name] for key, name in {"block_count": "depth", "embedding_length": "hidden_size", "attention.head_count": "num_heads", "patch_size": "patch_size", "spatial_merge_size": "spatial_merge_size", "window_size": "window_size"}.items()}
    keys |= {"vision.num_channels": 0, "vision.spatial_patch_size": vision["patch_size"], "vision.attention.layer_norm_epsilon": 1e-6, "vision.rope.freq_base": 10000.0, "vision.temporal_patch_size": 2, "vision.fullatt_block_indexes": vision["fullatt_block_indexes"], "rope.mrope_section": [4, 2, 2]}
    return keys, tensors


def qwen3vl(config, weights):
    vision = config["vision_config"]
    pairs = ["model.visual", "v", "patch_embed.proj", "patch_embed", "blocks", "blk", "attn.qkv", "attn_qkv", "attn.proj", "attn_out", "deepstack_merger_list", "deepstack_merger"]
    tensors = {}
    for name, weight in weights.items():
        name = go_replace(name, pairs)
        if "attn_qkv" in name:
            for part, own in zip("qkv", weight.chunk(3)):
                tensors[name.replace("attn_qkv", f"attn_{part}")] = own
        else:
            tensors[name] = weight.flatten(0, 1) if name == "v.patch_embed.weight" else weight
    keys = {f"vision.{key}": vision[name] for key, name in {"block_count": "depth", "embedding_length": "hidden_size", "attention.head_count": "num_heads", "patch_size": "patch_size", "spatial_merge_size": "spatial_merge_size", "deepstack_visual_indexes": "deepstack_visual_indexes"}.items()}
    keys |= {"vision.num_channels": 3, "vision.attention.layer_norm_epsilon": 1e-6, "vision.rope.freq_base": 10000.0, "vision.temporal_patch_size": 2, "vision.shortest_edge": 64, "vision.longest_edge": 1024, "vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3, "rope.mrope_section": [4, 2, 2]}
    return keys, tensors


# Model of the zoo, architecture of the file, and the function that makes keys and tensors.
CASES = [("gemma3", "gemma3", gemma3), ("gemma4-e-bounded", "gemma4", gemma4), ("ministral3-silu", "mistral3", mistral3), ("qwen2_5_vl", "qwen25vl", qwen25vl), ("qwen3_vl", "qwen3vl", qwen3vl)]


def write(path, architecture, keys, tensors):
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        key = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, weight in tensors.items():
        if re.match(r"(v|mm)\.", name):
            writer.add_tensor(name, weight.float().contiguous().numpy().astype(numpy.float16 if weight.ndim > 1 else numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    (HERE / "embedded").mkdir(exist_ok=True)
    for name, architecture, make in CASES:
        with tempfile.TemporaryDirectory() as work:
            folder = ZOO / name / "model"
            for ending, variant in VARIANTS.items():
                if name.endswith(ending):
                    folder = pathlib.Path(work) / name
                    variant(ZOO / name.removesuffix(ending) / "model", folder)
            config = json.loads((folder / "config.json").read_text())
            weights = load_file(folder / "model.safetensors")
        write(HERE / f"embedded/{name}.gguf", architecture, *make(config, weights))


main()
