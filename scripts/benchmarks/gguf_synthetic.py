"""Writes GGUF files of models with random BF16 weights and the vocabulary of another file.

  tiny       a Llama of two layers, to check that a benchmark runs
  1b         a Llama of 1.1 B parameters
  experts    a Qwen3 MoE of 0.9 B parameters, with 32 experts, four of them active per token
  qwen35     a Qwen 3.5 of 0.9 B parameters: gated delta rule in three of four layers
  gemma4     a Gemma 4 of 1.2 B parameters: embeddings of layers, windows, shared keys
  granite4   a Granite 4 of 1.1 B parameters: state space models in seven of eight layers
"""

import os
import struct

SIZES = {1: 1, 0: 1, 7: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, BOOL, I32, U32, F32, BF16_TYPE, F32_TYPE = 8, 9, 7, 5, 4, 6, 30, 0
ALIGNMENT = 32
POOL_BYTES = 1 << 24

KERNEL = 4
SIZES_OF_HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")

# Architecture, layer sizes, number of experts and of active experts per token.
MODELS = {
    "tiny": {"family": "llama", "hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "head": 32, "width": 256},
    "1b": {"family": "llama", "hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "head": 64, "width": 8192},
    "experts": {
        "family": "qwen3moe", "hidden": 1024, "layers": 16, "heads": 16, "kv_heads": 4, "head": 64, "width": 512,
        "experts": 32, "chosen": 4,
    },
    "qwen35": {
        "family": "qwen35", "hidden": 1536, "layers": 24, "heads": 8, "kv_heads": 2, "head": 256, "width": 4608,
        "rotated": 64, "ssm_heads": 16, "ssm_groups": 16, "ssm_head": 128, "state": 128, "attends": 4,
    },
    "gemma4": {
        "family": "gemma4", "hidden": 1536, "layers": 30, "heads": 8, "kv_heads": 1, "head": 512, "width": 6144,
        "sliding_head": 256, "window": 512, "attends": 5, "shared": 15, "token_width": 256,
    },
    "granite4": {
        "family": "granitehybrid", "hidden": 1536, "layers": 32, "heads": 12, "kv_heads": 4, "head": 128, "width": 4096,
        "ssm_heads": 48, "ssm_groups": 1, "ssm_head": 64, "state": 128, "attends": 8,
    },
}  # fmt: skip


def read_values(path):
    """Returns the metadata of a file: name → bytes of the type and the value."""
    with open(path, "rb") as file:
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")

        def length():
            return struct.unpack("<Q", file.read(8))[0]

        def skip(kind):
            if kind == STRING:
                file.seek(length(), 1)
            elif kind == ARRAY:
                (inner,) = struct.unpack("<I", file.read(4))
                count = length()
                if inner in SIZES:
                    file.seek(count * SIZES[inner], 1)
                else:
                    for _ in range(count):
                        skip(inner)
            else:
                file.seek(SIZES[kind], 1)

        values = {}
        for _ in range(count):
            name, begin = file.read(length()).decode(), file.tell()
            (kind,) = struct.unpack("<I", file.read(4))
            skip(kind)
            end = file.tell()
            file.seek(begin)
            values[name] = file.read(end - begin)
        return values


def text_bytes(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def u32(number):
    return struct.pack("<II", U32, number)


def f32(number):
    return struct.pack("<If", F32, number)


def array(kind, code, items):
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + struct.pack(f"<{len(items)}{code}", *items)


def attends(model, layer):
    """Whether a layer of a model with two kinds of layers has full attention."""
    return (layer + 1) % model["attends"] == 0


def padding(size):
    return -size % ALIGNMENT


def random_bf16(size):
    """Returns bytes of numbers between 2^-7 and 2^-5 with either sign."""
    numbers = bytearray(os.urandom(size))
    # The sign and the first seven bits of the exponent 120.
    numbers[1::2] = bytes(numbers[1::2]).translate(bytes(0xBC if byte & 1 else 0x3C for byte in range(256)))
    return bytes(numbers)


def metadata(model, vocabulary):
    family = model["family"]
    own = {
        "vocab_size": u32(vocabulary),
        "context_length": u32(32768),
        "embedding_length": u32(model["hidden"]),
        "block_count": u32(model["layers"]),
        "feed_forward_length": u32(model["width"]),
        "attention.head_count": u32(model["heads"]),
        "attention.head_count_kv": u32(model["kv_heads"]),
        "attention.key_length": u32(model["head"]),
        "attention.value_length": u32(model["head"]),
        "rope.dimension_count": u32(model["head"]),
        "rope.freq_base": f32(500000.0),
        "attention.layer_norm_rms_epsilon": f32(1e-5),
    }
    layers = range(model["layers"])
    if "experts" in model:
        own.update(expert_count=u32(model["experts"]), expert_used_count=u32(model["chosen"]))
        own["expert_feed_forward_length"] = u32(model["width"])
    if "ssm_heads" in model:
        own.update({"ssm.conv_kernel": u32(KERNEL), "ssm.state_size": u32(model["state"])})
        own.update({"ssm.group_count": u32(model["ssm_groups"]), "ssm.time_step_rank": u32(model["ssm_heads"])})
        own["ssm.inner_size"] = u32(model["ssm_heads"] * model["ssm_head"])
    if family == "qwen35":
        own.update({"full_attention_interval": u32(model["attends"]), "rope.dimension_count": u32(model["rotated"])})
        own["rope.dimension_sections"] = array(I32, "i", [11, 11, 10, 0])
    if family == "granitehybrid":
        kv_heads = [model["kv_heads"] if attends(model, layer) else 0 for layer in layers]
        own["attention.head_count_kv"] = array(I32, "i", kv_heads)
        own.update({"attention.scale": f32(1 / 128), "embedding_scale": f32(12.0), "logit_scale": f32(6.0)})
        own.update({"residual_scale": f32(0.22), "expert_count": u32(0), "expert_used_count": u32(0)})
    if family == "gemma4":
        own.update({f"{key}_swa": u32(model["sliding_head"]) for key in SIZES_OF_HEADS})
        own.update({"rope.freq_base_swa": f32(10000.0), "attention.sliding_window": u32(model["window"])})
        own["attention.sliding_window_pattern"] = array(BOOL, "?", [not attends(model, layer) for layer in layers])
        own.update({"attention.shared_kv_layers": u32(model["shared"]), "final_logit_softcapping": f32(30.0)})
        own["embedding_length_per_layer_input"] = u32(model["token_width"])
    general = {
        "general.architecture": struct.pack("<I", STRING) + text_bytes(family),
        "general.alignment": u32(ALIGNMENT),
    }
    return {**general, **{f"{family}.{name}": value for name, value in own.items()}}


def recurrent_shapes(model):
    """Returns the shapes of the mixer of a layer without attention."""
    hidden, heads, groups = model["hidden"], model["ssm_heads"], model["ssm_groups"]
    inner, shared = heads * model["ssm_head"], groups * model["state"]
    block = {"ssm_a": (heads,), "ssm_dt.bias": (heads,), "ssm_out.weight": (inner, hidden)}
    block["ssm_conv1d.weight"] = (KERNEL, inner + 2 * shared)
    if model["family"] == "qwen35":
        block.update({"attn_qkv.weight": (hidden, inner + 2 * shared), "attn_gate.weight": (hidden, inner)})
        block.update({"ssm_alpha.weight": (hidden, heads), "ssm_beta.weight": (hidden, heads)})
        block["ssm_norm.weight"] = (model["ssm_head"],)
    else:
        block.update({"ssm_in.weight": (hidden, 2 * (inner + shared) + heads), "ssm_conv1d.bias": (inner + 2 * shared,)})
        block.update({"ssm_a": (1, heads), "ssm_d": (1, heads), "ssm_norm.weight": (inner // groups, groups)})
    return block


def attention_shapes(model, layer):
    """Returns the shapes of the attention of a layer."""
    hidden, family = model["hidden"], model["family"]
    head = model["head"]
    if family == "gemma4" and not attends(model, layer):
        head = model["sliding_head"]
    query, kv = model["heads"] * head, model["kv_heads"] * head
    # Qwen 3.5 has a gate beside each query.
    wide = 2 * query if family == "qwen35" else query
    block = {"attn_q": (hidden, wide), "attn_output": (query, hidden)}
    if family != "gemma4" or layer < model["layers"] - model["shared"]:
        block.update(attn_k=(hidden, kv), attn_v=(hidden, kv))
    if family in ("qwen3moe", "qwen35", "gemma4"):
        block.update({f"attn_{part}_norm": (head,) for part in "qk" if f"attn_{part}" in block})
    return {f"{name}.weight": shape for name, shape in block.items()}


def network_shapes(model):
    """Returns the shapes of a feed-forward network, and of the norms and other parts of a layer."""
    hidden, width, family = model["hidden"], model["width"], model["family"]
    block = {"attn_norm": (hidden,), ("post_attention_norm" if family == "qwen35" else "ffn_norm"): (hidden,)}
    if "experts" in model:
        count = model["experts"]
        block.update(ffn_gate_inp=(hidden, count), ffn_down_exps=(width, hidden, count))
        block.update(ffn_gate_exps=(hidden, width, count), ffn_up_exps=(hidden, width, count))
    else:
        block.update(ffn_gate=(hidden, width), ffn_up=(hidden, width), ffn_down=(width, hidden))
    if family == "gemma4":
        own = model["token_width"]
        block.update(inp_gate=(hidden, own), proj=(own, hidden), layer_output_scale=(1,))
        block.update({name: (hidden,) for name in ("post_attention_norm", "post_ffw_norm", "post_norm")})
    return {f"{name}.weight": shape for name, shape in block.items()}


def tensor_shapes(model, vocabulary):
    """Returns name → dimensions, the innermost first."""
    hidden, layers = model["hidden"], model["layers"]
    shapes = {"token_embd.weight": (hidden, vocabulary), "output_norm.weight": (hidden,)}
    if model["family"] == "gemma4":
        own = model["token_width"]
        shapes.update({"rope_freqs.weight": (model["head"] // 2,), "per_layer_proj_norm.weight": (own,)})
        shapes.update({"per_layer_model_proj.weight": (hidden, own * layers)})
        shapes["per_layer_token_embd.weight"] = (own * layers, vocabulary)
    for layer in range(layers):
        is_recurrent = "ssm_heads" in model and not attends(model, layer)
        block = {**(recurrent_shapes(model) if is_recurrent else attention_shapes(model, layer)), **network_shapes(model)}
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
    return shapes


def is_float32(name, shape):
    return 1 in (len(shape), *shape) or any(part in name for part in ("gate_inp", "ssm_conv1d", "ssm_norm"))


def count_of(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def data_of(name, shape, pool, at):
    """Yields the bytes of a tensor in pieces."""
    count = count_of(shape)
    if 1 in (len(shape), *shape):
        # Rates of recurrent layers are stored with a negative sign.
        yield struct.pack("<f", -1.0 if name.endswith("ssm_a") else 1.0) * count
    elif is_float32(name, shape):
        places = ((at + 2 * index) % len(pool) for index in range(count))
        yield b"".join(b"\0\0" + pool[place : place + 2] for place in places)
    else:
        left = 2 * count
        while left:
            at %= len(pool)
            piece = pool[at : at + left]
            yield piece
            left -= len(piece)
            at += len(piece)


def write_header(file, values, tensors):
    """Writes the header of a GGUF file. `tensors`: name, shape, type and bytes of each, in the order of their data."""
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)))
    for key, value in values.items():
        file.write(text_bytes(key) + value)
    offset = 0
    for name, shape, kind, size in tensors:
        file.write(text_bytes(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += size
        offset += padding(offset)
    file.write(bytes(padding(file.tell())))


def write(name, source, path):
    """Writes a model to `path`, with the vocabulary of the file `source`."""
    model = MODELS[name]
    values = {key: value for key, value in read_values(source).items() if key.startswith("tokenizer.")}
    (vocabulary,) = struct.unpack("<Q", values["tokenizer.ggml.tokens"][8:16])
    values = {**metadata(model, vocabulary), **values}
    shapes = tensor_shapes(model, vocabulary)
    pool = random_bf16(POOL_BYTES)
    with open(path, "wb") as file:
        tensors = []
        for tensor, shape in shapes.items():
            kind, size = (F32_TYPE, 4) if is_float32(tensor, shape) else (BF16_TYPE, 2)
            tensors.append((tensor, shape, kind, count_of(shape) * size))
        write_header(file, values, tensors)
        for index, (tensor, shape) in enumerate(shapes.items()):
            # All tensors start at different offsets of the pool.
            for piece in data_of(tensor, shape, pool, index * 100_002 % POOL_BYTES):
                file.write(piece)
            file.write(bytes(padding(file.tell())))
