"""Writes a GGUF file of a llama of 1 B parameters with random weights in BF16, and the vocabulary of another file."""

import random
import struct

SIZES = {1: 1, 0: 1, 7: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32, F32, BF16_TYPE, F32_TYPE = 8, 9, 4, 6, 30, 0
HIDDEN, LAYERS, HEADS, KV_HEADS, WIDTH = 2048, 16, 32, 8, 8192
ALIGNMENT = 32


def read_values(path):
    """The metadata of a file: name → its bytes with the type before them."""
    with open(path, "rb") as file:
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")

        def text():
            (length,) = struct.unpack("<Q", file.read(8))
            return file.read(length).decode()

        def skip(kind):
            if kind == STRING:
                text()
            elif kind == ARRAY:
                inner, length = struct.unpack("<IQ", file.read(12))
                if inner in SIZES:
                    file.seek(length * SIZES[inner], 1)
                else:
                    for _ in range(length):
                        skip(inner)
            else:
                file.seek(SIZES[kind], 1)

        values = {}
        for _ in range(count):
            name, begin = text(), file.tell()
            (kind,) = struct.unpack("<I", file.read(4))
            skip(kind)
            end = file.tell()
            file.seek(begin)
            values[name] = file.read(end - begin)
        return values


def name_bytes(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def random_bf16(count, generator):
    """Numbers between 2^-7 and 2^-6 with either sign."""
    numbers = bytearray(generator.randbytes(2 * count))
    # The sign and the first seven bits of the exponent 120; the last one is zero.
    numbers[1::2] = bytes(numbers[1::2]).translate(bytes(0xBC if byte & 1 else 0x3C for byte in range(256)))
    numbers[0::2] = bytes(numbers[0::2]).translate(bytes(byte & 0x7F for byte in range(256)))
    return numbers


def write(source, path):
    """Writes the model to `path`, with the vocabulary of the file `source`."""
    values = {name: value for name, value in read_values(source).items() if name.startswith("tokenizer.")}
    (vocabulary,) = struct.unpack("<Q", values["tokenizer.ggml.tokens"][8:16])
    u32 = lambda number: struct.pack("<II", U32, number)  # noqa: E731
    f32 = lambda number: struct.pack("<If", F32, number)  # noqa: E731
    own = {
        "general.architecture": struct.pack("<I", STRING) + name_bytes("llama"),
        "general.alignment": u32(ALIGNMENT),
        "llama.vocab_size": u32(vocabulary),
        "llama.context_length": u32(32768),
        "llama.embedding_length": u32(HIDDEN),
        "llama.block_count": u32(LAYERS),
        "llama.feed_forward_length": u32(WIDTH),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(KV_HEADS),
        "llama.rope.dimension_count": u32(HIDDEN // HEADS),
        "llama.rope.freq_base": f32(500000.0),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
    }
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd.weight": (HIDDEN, vocabulary), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = {"attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, kv), "attn_v": (HIDDEN, kv)}
        block.update(attn_output=(HIDDEN, HIDDEN), ffn_norm=(HIDDEN,), ffn_gate=(HIDDEN, WIDTH), ffn_up=(HIDDEN, WIDTH))
        block["ffn_down"] = (WIDTH, HIDDEN)
        shapes.update({f"blk.{layer}.{name}.weight": shape for name, shape in block.items()})
    values = {**own, **values}
    generator = random.Random(1)
    pad = lambda size: -size % ALIGNMENT  # noqa: E731
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(values)))
        for name, value in values.items():
            file.write(name_bytes(name) + value)
        offset = 0
        for name, shape in shapes.items():
            count = 1
            for size in shape:
                count *= size
            kind = F32_TYPE if len(shape) == 1 else BF16_TYPE
            file.write(name_bytes(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
            offset += count * (4 if kind == F32_TYPE else 2)
            offset += pad(offset)
        file.write(bytes(pad(file.tell())))
        for shape in shapes.values():
            if len(shape) == 1:
                data = struct.pack("<f", 1.0) * shape[0]
                file.write(data + bytes(pad(len(data))))
                continue
            for _ in range(shape[1]):
                file.write(random_bf16(shape[0], generator))
            file.write(bytes(pad(2 * shape[0] * shape[1])))
