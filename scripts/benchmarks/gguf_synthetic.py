"""Writes GGUF files of models with random BF16 weights and the vocabulary of another file.

  tiny       a Llama of two layers, to check that a benchmark runs
  1b         a Llama of 1.1 B parameters
  experts    a Qwen3 MoE of 0.9 B parameters, with 32 experts, four of them active per token
"""

import os
import struct

SIZES = {1: 1, 0: 1, 7: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32, F32, BF16_TYPE, F32_TYPE = 8, 9, 4, 6, 30, 0
ALIGNMENT = 32
POOL_BYTES = 1 << 24

# Architecture, layer sizes, number of experts and of active experts per token.
MODELS = {
    "tiny": {"family": "llama", "hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "head": 32, "width": 256},
    "1b": {"family": "llama", "hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "head": 64, "width": 8192},
    "experts": {
        "family": "qwen3moe", "hidden": 1024, "layers": 16, "heads": 16, "kv_heads": 4, "head": 64, "width": 512,
        "experts": 32, "chosen": 4,
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
    if "experts" in model:
        own.update(expert_count=u32(model["experts"]), expert_used_count=u32(model["chosen"]))
        own["expert_feed_forward_length"] = u32(model["width"])
    general = {
        "general.architecture": struct.pack("<I", STRING) + text_bytes(family),
        "general.alignment": u32(ALIGNMENT),
    }
    return {**general, **{f"{family}.{name}": value for name, value in own.items()}}


def tensor_shapes(model, vocabulary):
    """Returns name → dimensions, the innermost first."""
    hidden, width, head = model["hidden"], model["width"], model["head"]
    query, kv = model["heads"] * head, model["kv_heads"] * head
    block = {"attn_norm": (hidden,), "attn_q": (hidden, query), "attn_k": (hidden, kv), "attn_v": (hidden, kv)}
    block.update(attn_output=(query, hidden), ffn_norm=(hidden,))
    if "experts" in model:
        count = model["experts"]
        block.update(attn_q_norm=(head,), attn_k_norm=(head,), ffn_gate_inp=(hidden, count))
        block.update(ffn_gate_exps=(hidden, width, count), ffn_up_exps=(hidden, width, count))
        block["ffn_down_exps"] = (width, hidden, count)
    else:
        block.update(ffn_gate=(hidden, width), ffn_up=(hidden, width), ffn_down=(width, hidden))
    shapes = {"token_embd.weight": (hidden, vocabulary), "output_norm.weight": (hidden,)}
    for layer in range(model["layers"]):
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    return shapes


def is_float32(name, shape):
    return len(shape) == 1 or "gate_inp" in name


def count_of(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def data_of(name, shape, pool, at):
    """Yields the bytes of a tensor in pieces."""
    count = count_of(shape)
    if len(shape) == 1:
        yield struct.pack("<f", 1.0) * count
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


def write(name, source, path):
    """Writes a model to `path`, with the vocabulary of the file `source`."""
    model = MODELS[name]
    values = {key: value for key, value in read_values(source).items() if key.startswith("tokenizer.")}
    (vocabulary,) = struct.unpack("<Q", values["tokenizer.ggml.tokens"][8:16])
    values = {**metadata(model, vocabulary), **values}
    shapes = tensor_shapes(model, vocabulary)
    pool = random_bf16(POOL_BYTES)
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(values)))
        for key, value in values.items():
            file.write(text_bytes(key) + value)
        offset = 0
        for tensor, shape in shapes.items():
            kind, size = (F32_TYPE, 4) if is_float32(tensor, shape) else (BF16_TYPE, 2)
            file.write(text_bytes(tensor) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
            offset += count_of(shape) * size
            offset += padding(offset)
        file.write(bytes(padding(file.tell())))
        for index, (tensor, shape) in enumerate(shapes.items()):
            # All tensors start at different offsets of the pool.
            for piece in data_of(tensor, shape, pool, index * 100_002 % POOL_BYTES):
                file.write(piece)
            file.write(bytes(padding(file.tell())))
