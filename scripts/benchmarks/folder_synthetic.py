"""Hugging Face folders with random weights, of any size."""

import json
import math
import os


def synthetic_tensors(size, layers=32):
    """Returns the config and the tensor names and shapes of a BF16 Llama of about `size` bytes."""
    vocabulary = 32000 if size >= 1e9 else 4000
    # size = 2 · (layers · (4 h² + 3 · 2.6875 h²) + 2 · vocabulary · h), solved for h
    a, b, c = layers * (4 + 3 * 2.6875), 2.0 * vocabulary, -size / 2
    head = 64
    hidden = max(head, round((-b + math.sqrt(b * b - 4 * a * c)) / (2 * a) / head) * head)
    inner = round(hidden * 2.6875 / 32) * 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // head,
        "num_key_value_heads": hidden // head,
        "head_dim": head,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    tensors = [("model.embed_tokens.weight", [vocabulary, hidden])]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors += [(f"{prefix}self_attn.{p}_proj.weight", [hidden, hidden]) for p in "qkvo"]
        tensors += [(f"{prefix}mlp.{p}_proj.weight", [inner, hidden]) for p in ("gate", "up")]
        tensors += [(f"{prefix}mlp.down_proj.weight", [hidden, inner])]
        tensors += [(f"{prefix}{p}_layernorm.weight", [hidden]) for p in ("input", "post_attention")]
    return config, tensors + [("model.norm.weight", [hidden]), ("lm_head.weight", [vocabulary, hidden])]


def shards(tensors, limit=10**9):
    """Splits tensors, with their sizes in bytes, into files of at most `limit` bytes."""
    files = [[]]
    filled = 0
    for name, shape in tensors:
        length = 2 * math.prod(shape)
        if files[-1] and filled + length > limit:
            files.append([])
            filled = 0
        files[-1].append((name, shape, length))
        filled += length
    return files


def write_model(folder, size, layers=32):
    """Writes the synthetic model; returns the extents (file, offset, length) of its tensors.

    The bytes come from a random pool, with a counter in every 64 KiB so that all tensors differ.
    """
    config, tensors = synthetic_tensors(size, layers)
    pool, step, counter = os.urandom(1 << 24), 1 << 16, 0
    files, extents, weight_map = shards(tensors), [], {}
    folder.mkdir(parents=True)
    for number, members in enumerate(files, start=1):
        path = folder / f"model-{number:05}-of-{len(files):05}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, shape, length in members:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + length]}
            weight_map[name] = path.name
            at += length
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with open(path, "wb", buffering=1 << 20) as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for _, _, length in members:
                extents.append((path, file.tell(), length))
                for begin in range(0, length, step):
                    part = min(step, length - begin)
                    source = counter * step % len(pool)
                    file.write(counter.to_bytes(8, "little")[:part])
                    if part > 8:
                        file.write(memoryview(pool)[source : source + part - 8])
                    counter += 1
            file.flush()
            os.fsync(file.fileno())
    total = sum(length for _, _, length in extents)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return extents
