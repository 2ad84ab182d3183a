"""Writes GGUF models that see pictures, with random weights: the text part in Q8_0, and the projector in F16.

  qwen3vl    the shape of Qwen3-VL 2B
  gemma3     the shape of Gemma 3 4B
  tiny       a Gemma 3 of two layers, to check that a benchmark runs

The vocabulary has the letters of ASCII and the tokens of pictures.
"""

import os
import struct

from .gguf_synthetic import (
    ARRAY,
    BOOL,
    F32,
    F32_TYPE,
    I32,
    STRING,
    array,
    count_of,
    f32,
    padding,
    text_bytes,
    u32,
    write_header,
)

F16_TYPE, Q8_0_TYPE = 1, 8
# Numbers of a block of Q8_0, and its bytes.
BLOCK, BLOCK_BYTES = 32, 34
BLOCKS = 1 << 17
NORMAL, CONTROL = 1, 3

MODELS = {
    "qwen3vl": {
        "family": "qwen3vl", "hidden": 2048, "layers": 28, "heads": 16, "kv_heads": 8, "head": 128, "width": 6144,
        "tower": {"hidden": 1024, "layers": 24, "heads": 16, "width": 4096, "patch": 16, "pixels": 768, "block": 2, "deep": [5, 11, 17]},
        "picture": (1024, 768),
    },
    "gemma3": {
        "family": "gemma3", "hidden": 2560, "layers": 34, "heads": 8, "kv_heads": 4, "head": 256, "width": 10240,
        "tower": {"hidden": 1152, "layers": 27, "heads": 16, "width": 4304, "patch": 14, "pixels": 896, "block": 4},
        "picture": (896, 896),
    },
    "tiny": {
        "family": "gemma3", "hidden": 128, "layers": 2, "heads": 2, "kv_heads": 1, "head": 64, "width": 256,
        "tower": {"hidden": 64, "layers": 2, "heads": 2, "width": 128, "patch": 4, "pixels": 32, "block": 2},
        "picture": (32, 32),
    },
}  # fmt: skip
TOKENS = {
    "qwen3vl": ["<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"],
    "gemma3": ["<eos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"],
}


def text(value):
    return struct.pack("<I", STRING) + text_bytes(value)


def texts(values):
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(text_bytes, values))


def vocabulary(family):
    """Returns the keys of a tokenizer whose tokens are bytes, and the number of tokens."""
    # The letters that stand for bytes in such vocabularies.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = [chr(byte) for byte in plain] + [chr(256 + place) for place in range(len(others))]
    special = TOKENS[family]
    tokens = [*letters, chr(288) + "t", *special]
    tokens += [f"<unused{number}>" for number in range(-len(tokens) % BLOCK)]
    kinds = [NORMAL] * (len(letters) + 1)
    kinds += [CONTROL] * (len(tokens) - len(kinds))
    end = u32(len(letters) + 1)
    return {
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("qwen2"),
        "tokenizer.ggml.tokens": texts(tokens),
        "tokenizer.ggml.token_type": array(I32, "i", kinds),
        "tokenizer.ggml.merges": texts([chr(288) + " t"]),
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", BOOL, False),
    }, len(tokens)


def text_part(model):
    """Returns keys and shapes of the text part."""
    family, hidden, width = model["family"], model["hidden"], model["width"]
    query, kv, head = model["heads"] * model["head"], model["kv_heads"] * model["head"], model["head"]
    keys, count = vocabulary(family)
    own = {
        "context_length": u32(8192), "embedding_length": u32(hidden), "block_count": u32(model["layers"]),
        "feed_forward_length": u32(width), "attention.head_count": u32(model["heads"]),
        "attention.head_count_kv": u32(model["kv_heads"]), "attention.key_length": u32(head), "attention.value_length": u32(head),
        "rope.freq_base": f32(1000000.0), "attention.layer_norm_rms_epsilon": f32(1e-6), "vocab_size": u32(count),
    }  # fmt: skip
    shapes = {"token_embd.weight": (hidden, count), "output_norm.weight": (hidden,)}
    block = {
        "attn_q": (hidden, query), "attn_k": (hidden, kv), "attn_v": (hidden, kv), "attn_output": (query, hidden), "attn_norm": (hidden,),
        "attn_q_norm": (head,), "attn_k_norm": (head,), "ffn_norm": (hidden,), "ffn_gate": (hidden, width), "ffn_up": (hidden, width),
        "ffn_down": (width, hidden),
    }  # fmt: skip
    if family == "gemma3":
        own["attention.sliding_window"] = u32(1024)
        block.update(post_attention_norm=(hidden,), post_ffw_norm=(hidden,))
    else:
        own["rope.dimension_sections"] = array(I32, "i", [24, 20, 20, 0])
        own["n_deepstack_layers"] = u32(len(model["tower"]["deep"]))
    for layer in range(model["layers"]):
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    general = {"general.architecture": text(family)}
    return {**general, **{f"{family}.{name}": value for name, value in own.items()}, **keys}, shapes


def projector(model):
    """Returns keys and shapes of the projector file."""
    tower, decoder = model["tower"], model["hidden"]
    hidden, width, patch, block = tower["hidden"], tower["width"], tower["patch"], tower["block"]
    is_gemma = model["family"] == "gemma3"
    vision = {
        "projection_dim": u32(decoder), "image_size": u32(tower["pixels"]), "patch_size": u32(patch), "embedding_length": u32(hidden),
        "feed_forward_length": u32(width), "block_count": u32(tower["layers"]), "attention.head_count": u32(tower["heads"]),
        "attention.layer_norm_epsilon": f32(1e-6), "image_mean": array(F32, "f", [0.5] * 3), "image_std": array(F32, "f", [0.5] * 3),
    }  # fmt: skip
    shapes = {"v.patch_embd.weight": (patch, patch, 3, hidden), "v.patch_embd.bias": (hidden,), "v.post_ln.weight": (hidden,)}
    shapes.update({"v.post_ln.bias": (hidden,), "v.position_embd.weight": (hidden, (tower["pixels"] // patch) ** 2)})
    parts = {"attn_out": (hidden, hidden), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}
    if is_gemma:
        parts.update(attn_q=(hidden, hidden), attn_k=(hidden, hidden), attn_v=(hidden, hidden))
        vision["projector.scale_factor"] = u32(block)
        shapes.update({"mm.input_projection.weight": (decoder, hidden), "mm.soft_emb_norm.weight": (hidden,)})
    else:
        parts["attn_qkv"] = (hidden, 3 * hidden)
        joined = hidden * block * block
        shapes["v.patch_embd.weight.1"] = (patch, patch, 3, hidden)
        vision["spatial_merge_size"] = u32(block)
        vision["is_deepstack_layers"] = array(BOOL, "?", [layer in tower["deep"] for layer in range(tower["layers"])])
        perceptrons = [("mm.0", "mm.2"), *((f"v.deepstack.{layer}.fc1", f"v.deepstack.{layer}.fc2") for layer in tower["deep"])]
        for first, second in perceptrons:
            shapes.update({f"{first}.weight": (joined, joined), f"{first}.bias": (joined,)})
            shapes.update({f"{second}.weight": (joined, decoder), f"{second}.bias": (decoder,)})
        for layer in tower["deep"]:
            shapes.update({f"v.deepstack.{layer}.norm.{kind}": (joined,) for kind in ("weight", "bias")})
    for layer in range(tower["layers"]):
        for name, shape in parts.items():
            shapes.update({f"v.blk.{layer}.{name}.weight": shape, f"v.blk.{layer}.{name}.bias": shape[-1:]})
        shapes.update({f"v.blk.{layer}.{norm}.{kind}": (hidden,) for norm in ("ln1", "ln2") for kind in ("weight", "bias")})
    general = {
        "general.architecture": text("clip"), "general.file_type": u32(1), "clip.has_vision_encoder": struct.pack("<I?", BOOL, True),
        "clip.projector_type": text("gemma3" if is_gemma else "qwen3vl_merger"), "clip.use_gelu": struct.pack("<I?", BOOL, True),
    }  # fmt: skip
    return {**general, **{f"clip.vision.{name}": value for name, value in vision.items()}}, shapes


class Pool:
    """Random numbers, of which tensors take pieces."""

    def __init__(self):
        codes = os.urandom(BLOCKS * BLOCK)
        # A scale of 2^-12: numbers up to 0.03.
        scale = struct.pack("<e", 2.0**-12)
        self.blocks = b"".join(scale + codes[at : at + BLOCK] for at in range(0, len(codes), BLOCK))
        floats = bytearray(codes)
        # The sign, and the first bits of the exponent of 2^-6.
        floats[1::2] = bytes(floats[1::2]).translate(bytes(0xA4 if byte & 1 else 0x24 for byte in range(256)))
        self.floats = bytes(floats)

    def pieces(self, kind, count):
        """Yields the bytes of so many numbers."""
        pool, left = (self.blocks, count // BLOCK * BLOCK_BYTES) if kind == Q8_0_TYPE else (self.floats, 2 * count)
        while left:
            piece = pool[:left]
            yield piece
            left -= len(piece)


def kind_of(name, shape, matrix):
    if len(shape) == 1:
        return F32_TYPE
    return F32_TYPE if name == "v.position_embd.weight" else matrix


def size_of(kind, shape):
    count = count_of(shape)
    return {F32_TYPE: 4 * count, F16_TYPE: 2 * count, Q8_0_TYPE: count // BLOCK * BLOCK_BYTES}[kind]


def write_file(path, keys, shapes, matrix, pool):
    """Writes a file whose matrices have the type `matrix`."""
    with open(path, "wb") as file:
        kinds = {name: kind_of(name, shape, matrix) for name, shape in shapes.items()}
        tensors = [(name, shape, kinds[name], size_of(kinds[name], shape)) for name, shape in shapes.items()]
        write_header(file, keys, tensors)
        for name, shape, kind, _ in tensors:
            if kind == F32_TYPE:
                is_norm = name.endswith("weight") and len(shape) == 1
                file.write(struct.pack("<f", 1.0 if is_norm else 0.01) * count_of(shape))
            else:
                for piece in pool.pieces(kind, count_of(shape)):
                    file.write(piece)
            file.write(bytes(padding(file.tell())))


def write(name, folder):
    """Writes a model; returns the paths of its text part and of its projector."""
    pool, model = Pool(), MODELS[name]
    paths = folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"
    write_file(paths[0], *text_part(model), Q8_0_TYPE, pool)
    write_file(paths[1], *projector(model), F16_TYPE, pool)
    return paths
