"""Makes towers.json: rows that towers of transformers compute of pictures, and the logits behind them.

    python make_towers.py ZOO        (transformers 5.24, PyTorch, Pillow 13.0, NumPy)

ZOO is the folder with the tiny models of 2026 from the reference data. A case has the model, the settings of its picture processor, and
sequences. The bytes of a picture follow the rules of make_resampled.py. A sequence is a list of token ids; {"picture": N} stands for the
rows of its Nth picture, with "line" for those of one of its lines, and with "part" for those of a tile or of the small copy. "rows" are every 7th number of the rows of each picture, and "logits" are those behind the last token.
"""

import json
import pathlib
import sys
import tempfile

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4 import image_processing_pil_gemma4 as gemma4
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import by_pillow
from make_resampled import noise, waves
from variants import VARIANTS

by_pillow.use()
# Photo-like noise, wide, tall and tiny.
PICTURES = [(noise, (40, 30)), (waves, (64, 10)), (noise, (9, 50)), (waves, (3, 2))]
# Results of processors that models take.
NAMES = ("pixel_values", "image_grid_thw", "image_sizes", "image_position_ids", "pixel_attention_mask", "spatial_shapes")
HALF = [0.5, 0.5, 0.5]
# Ids between the lines of a picture, and behind it.
LINE_END, PICTURE_END = 311, 312
# Models that take pictures in parts: tiles, and a small copy.
TILED = ("idefics3", "internvl", "internvl-normed", "lfm2_vl", "smolvlm")
QWEN = {"size": {"shortest_edge": 64, "longest_edge": 1024}, "patch_size": 4, "image_mean": HALF, "image_std": HALF}
GEMMA4 = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 12}
# The class refuses other numbers of tokens than those of published models.
gemma4._SUPPORTED_SOFT_TOKENS = (12,)
PIXTRAL = {"size": {"longest_edge": 32}, "patch_size": 4}
TILES = {"size": {"height": 16, "width": 16}, "crop_to_patches": True, "max_patches": 6}
LFM2 = {"encoder_patch_size": 4, "downsample_factor": 2, "min_image_tokens": 2, "max_image_tokens": 6, "tile_size": 16,
        "max_tiles": 4, "max_pixels_tolerance": 1.5}
# Model, class of its processor, and the settings.
MODELS = [
    ("gemma3", Gemma3ImageProcessorPil, {"size": {"height": 16, "width": 16}}),
    ("gemma4-dense", gemma4.Gemma4ImageProcessorPil, GEMMA4),
    ("gemma4-e", gemma4.Gemma4ImageProcessorPil, GEMMA4),
    ("gemma4-e-bounded", gemma4.Gemma4ImageProcessorPil, GEMMA4),
    ("gemma4-moe", gemma4.Gemma4ImageProcessorPil, GEMMA4),
    ("idefics3", Idefics3ImageProcessorPil, {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}),
    ("internvl", GotOcr2ImageProcessorPil, TILES),
    ("internvl-normed", GotOcr2ImageProcessorPil, TILES),
    ("lfm2_vl", Lfm2VlImageProcessor, LFM2),
    ("llava", CLIPImageProcessorPil, {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}}),
    ("llava_next", LlavaNextImageProcessorPil, {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}, "image_grid_pinpoints": [[16, 32], [32, 16]]}),
    ("qwen2_5_vl", Qwen2VLImageProcessorPil, QWEN),
    ("qwen3_vl", Qwen2VLImageProcessorPil, QWEN),
    ("qwen3_vl_moe", Qwen2VLImageProcessorPil, QWEN),
    ("qwen3_5", Qwen2VLImageProcessorPil, QWEN),
    ("qwen3_5_moe", Qwen2VLImageProcessorPil, QWEN),
    ("ministral3", PixtralImageProcessorPil, PIXTRAL),
    ("ministral3-silu", PixtralImageProcessorPil, PIXTRAL),
    ("mistral4", PixtralImageProcessorPil, PIXTRAL),
    ("smolvlm", SmolVLMImageProcessorPil, {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}}),
]


def made(rule, size):
    width, height = size
    return Image.fromarray(rule(width, height).reshape(height, width, 3), "RGB")


def rows_of(model, inputs):
    """Returns the rows of the pictures, or of their parts, one tensor each."""
    found = model.model.get_image_features(**inputs).pooler_output
    return list(found)


def parts_of(processor, picture):
    """Returns the number of parts of a picture."""
    values = processor([made(*picture)], return_tensors="pt")["pixel_values"]
    # Idefics 3 has an outer dimension for conversations.
    return values.shape[1] if values.ndim == 5 else values.shape[0]


def sequence(model, processor, pictures, parts):
    """Computes a sequence; `parts` are its ids, with None where the next picture is."""
    token = getattr(model.config, "image_token_id", None) or model.config.image_token_index
    has_lines = isinstance(processor, PixtralImageProcessorPil)
    # Pixtral's processor resizes to whole squares of joined patches.
    more = {"patch_size": {"height": 8, "width": 8}} if has_lines else {}
    inputs = dict(processor([made(*picture) for picture in pictures], return_tensors="pt", **more))
    inputs = {name: value for name, value in inputs.items() if name in NAMES}
    rows = rows_of(model, inputs)
    is_tiled = model.config.model_type in TILED
    if is_tiled:
        counts = [parts_of(processor, picture) for picture in pictures]
        # The class of Idefics 3 returns the rows of all parts together.
        left = iter(rows if len(rows) == sum(counts) else torch.cat(rows).chunk(sum(counts)))
        rows = [[next(left) for _ in range(count)] for count in counts]
    left, ids, named = list(rows), [], []
    for part in parts:
        if part is None:
            number, own = len(rows) - len(left), left.pop(0)
            if is_tiled:
                for at, part in enumerate(own):
                    named += [{"picture": number, "part": at}, LINE_END]
                    ids += [token] * len(part) + [LINE_END]
                continue
            count = len(own)
            if has_lines:
                lines, columns = (int(side) // 8 for side in inputs["image_sizes"][number])
                assert lines * columns == count
                for line in range(lines):
                    end = LINE_END if line + 1 < lines else PICTURE_END
                    named += [{"picture": number, "line": line}, end]
                    ids += [token] * columns + [end]
                continue
            named.append({"picture": number})
            ids += [token] * count
        else:
            named.append(part)
            ids.append(part)
    kinds = torch.tensor([[int(own == token) for own in ids]])
    kinds = {} if is_tiled or model.config.model_type.startswith("llava") else {"token_type_ids" if model.config.model_type == "gemma3" else "mm_token_type_ids": kinds}
    logits = model(input_ids=torch.tensor([ids]), **kinds, **inputs).logits[0, -1]
    return {
        "pictures": [{"rule": rule.__name__, "size": size} for rule, size in pictures],
        "ids": named,
        "rows": [[round(float(x), 5) for x in (torch.cat(own) if is_tiled else own).flatten()[::7]] for own in rows],
        "logits": [round(float(x), 5) for x in logits],
    }


@torch.no_grad()
def main() -> None:
    cases = []
    work = tempfile.TemporaryDirectory()
    for name, kind, settings in MODELS:
        folder = pathlib.Path(sys.argv[1]) / name / "model"
        for ending, variant in VARIANTS.items():
            if name.endswith(ending):
                folder = pathlib.Path(work.name) / name
                variant(pathlib.Path(sys.argv[1]) / name.removesuffix(ending) / "model", folder)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        processor = kind(**settings)
        # The class of Mistral 3 fails for pictures of one token.
        pictures = PICTURES[:3] if kind is PixtralImageProcessorPil else PICTURES
        sequences = [sequence(model, processor, [picture], [5, 17, None, 40, 41, 99]) for picture in pictures]
        sequences.append(sequence(model, processor, PICTURES[:2], [None, 7, 8, 9, None, 250]))
        settings = {"image_processor_type": kind.__name__.removesuffix("Pil"), **settings}
        cases.append({"model": name, "settings": settings, "sequences": sequences})
    lines = ",\n".join(json.dumps(case) for case in cases)
    pathlib.Path(__file__).with_name("towers.json").write_text(f"[\n{lines}\n]\n")


main()
