"""The form in which DeepSeek V4 is published: names without a prefix, FP8 weights with a power of two for each block,
experts with two FP4 numbers in a byte and a power of two for each 32 of them, and DeepSeek's own keys of the config.
"""

import json
import re

import torch
from safetensors.torch import load_file, save_file

# Rows and columns of a block.
BLOCK = 16
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP4_NAME = re.compile(r"\.experts\.(\d+\.w\d\.weight|gate_up_proj|down_proj)$")
FP8_NAME = re.compile(r"\.(wq_a|wq_b|wkv|wo_a|wo_b|[qo]_[ab]_proj|kv_proj|shared_experts\.\w+)\.weight$")
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def exponents(largest, limit):
    return torch.ceil(torch.log2(largest.clamp(min=1e-30) / limit))


def bytes_of(exponents):
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def fp4(weight):
    """Returns the codes of elements, and the exponent of each 32."""
    groups = weight.unflatten(-1, (-1, 32))
    powers = exponents(groups.abs().amax(-1), 6)
    codes = ((groups / torch.exp2(powers)[..., None])[..., None] - FP4).abs().argmin(-1)
    return codes.flatten(-2), powers


def fp8(weight):
    """Returns the codes of elements, and the exponent of each block."""
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.reshape(rows, BLOCK, columns, BLOCK)
    powers = exponents(blocks.abs().amax((1, 3)), 448)
    return (blocks / torch.exp2(powers)[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn), powers


def is_compressor(name):
    return ".compressor." in name or ".indexer." in name


def rounded(name, weight):
    """Returns the numbers that a weight has once it is published."""
    if FP4_NAME.search(name):
        codes, powers = fp4(weight)
        return FP4[codes] * torch.exp2(powers).repeat_interleave(32, -1)
    if FP8_NAME.search(name) and not is_compressor(name):
        codes, powers = fp8(weight)
        return codes.float() * torch.exp2(powers).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return weight


def published(name):
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
    return name.replace(".attn.norm.", ".attn.kv_norm.")


def publish(folder):
    """Rewrites a folder that transformers saved."""
    tensors = {}
    for old, weight in load_file(folder / "model.safetensors").items():
        name = published(old)
        scale = name.removesuffix(".weight") + ".scale"
        if FP4_NAME.search(name):
            codes, powers = fp4(weight.float())
            low, high = codes.to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
            tensors[name], tensors[scale] = (low | (high << 4)).view(torch.int8), bytes_of(powers)
        elif FP8_NAME.search(name) and not is_compressor(name):
            tensors[name], powers = fp8(weight.float())
            tensors[scale] = bytes_of(powers)
        else:
            tensors[name] = weight
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["compress_rate_hca"] = config.pop("compress_rates")["heavily_compressed_attention"]
    # Published lists have an item for a layer that predicts several tokens.
    config["compress_ratios"] = [RATIOS[kind] for kind in config.pop("layer_types")] + [0]
    config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")
    config["qk_rope_head_dim"] = int(config["head_dim"] * config.pop("partial_rotary_factor"))
    config["rope_theta"], config["compress_rope_theta"] = (rope[kind]["rope_theta"] for kind in ("main", "compress"))
    keys = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    config["rope_scaling"] = {"type": "yarn", **{key: rope["compress"][key] for key in keys}}
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                     "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    config |= {"expert_dtype": "fp4", "topk_method": "noaux_tc"}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
