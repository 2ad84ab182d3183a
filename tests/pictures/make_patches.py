"""Makes patches.json: digests of the patches that the processors of transformers make of pictures.

    python make_patches.py        (transformers 5.24, Pillow 13.0, NumPy)

The bytes of a picture follow the rules of make_resampled.py. A case has the settings of a processor, the side of a patch, the rule and the
size of the picture, the number of columns and rows of patches, and the SHA-256 of all patches as little-endian float32. A patch is
[channel, frame, row, column], or [row, column, channel] for Gemma 4.
"""

import hashlib
import json
import pathlib

import numpy
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil, get_optimal_tiled_canvas
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from make_resampled import noise, waves

SIZES = [(97, 61), (400, 60), (50, 300), (5, 4), (640, 480)]
HALF = [0.5, 0.5, 0.5]
# The class, its settings, and the side of a patch.
PROCESSORS = [
    (Qwen2VLImageProcessorPil, {"size": {"shortest_edge": 4096, "longest_edge": 65536}, "patch_size": 16, "image_mean": HALF, "image_std": HALF}, 16),
    (Qwen2VLImageProcessorPil, {"min_pixels": 3136, "max_pixels": 100352}, 14),
    (SiglipImageProcessorPil, {"size": {"height": 64, "width": 64}}, 16),
    (SiglipImageProcessorPil, {"size": {"height": 56, "width": 84}, "resample": 2, "image_mean": [0.4, 0.5, 0.6]}, 14),
    (Gemma3ImageProcessorPil, {"size": {"height": 56, "width": 56}, "do_pan_and_scan": None}, 14),
    (CLIPImageProcessorPil, {"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 64}}, 16),
    (LlavaImageProcessorPil, {"size": {"shortest_edge": 57}, "crop_size": {"height": 56, "width": 56}}, 14),
    (PixtralImageProcessorPil, {"size": {"longest_edge": 128}, "patch_size": {"height": 16, "width": 16}}, 16),
    (PixtralImageProcessorPil, {"size": {"longest_edge": 154}, "patch_size": 14, "do_normalize": False}, 14),
    (Idefics3ImageProcessorPil, {"size": {"longest_edge": 224}, "max_image_size": {"longest_edge": 64}}, 16),
    (Idefics3ImageProcessorPil, {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}, "do_image_splitting": False}, 14),
    (SmolVLMImageProcessorPil, {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}, "resample": 3}, 16),
    (GotOcr2ImageProcessorPil, {"size": {"height": 56, "width": 56}, "crop_to_patches": True}, 14),
    (GotOcr2ImageProcessorPil, {"size": {"height": 64, "width": 48}, "crop_to_patches": True, "min_patches": 3, "max_patches": 7}, 16),
    (GotOcr2ImageProcessorPil, {"size": {"height": 56, "width": 56}}, 14),
    (Gemma4ImageProcessorPil, {"max_soft_tokens": 70, "patch_size": 16, "pooling_kernel_size": 3}, 16),
]


def cut(pixels, patch):
    """Returns [rows · columns, channels · patch · patch] for [channels, height, width]."""
    channels, height, width = pixels.shape
    blocks = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return blocks.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch)


def patches(processor, picture, patch):
    """Returns the patches, and the number of columns and rows."""
    made = processor(picture, return_tensors="np")
    pixels = made["pixel_values"]
    if "image_grid_thw" in made:
        _, rows, columns = made["image_grid_thw"][0]
        return pixels, int(columns), int(rows)
    if "image_position_ids" in made:
        places = made["image_position_ids"][0]
        columns, rows = (int(side) + 1 for side in places.max(axis=0))
        return pixels[0][: columns * rows], columns, rows
    # Idefics 3 has the parts of each picture behind one more dimension.
    parts = pixels[0] if pixels.ndim == 5 else pixels
    rows, columns = (side // patch for side in parts.shape[2:])
    return numpy.concatenate([cut(part, patch) for part in parts]), columns, rows


def tiles(processor, picture, parts):
    """Returns the number of columns and rows of tiles."""
    if parts == 1:
        return 1, 1
    if isinstance(processor, GotOcr2ImageProcessorPil):
        size = (processor.size["height"], processor.size["width"])
        return get_optimal_tiled_canvas((picture.height, picture.width), size, processor.min_patches, processor.max_patches)
    made = processor(picture, return_tensors="np", return_row_col_info=True)
    return made["cols"][0][0], made["rows"][0][0]


def main() -> None:
    cases = []
    for kind, settings, patch in PROCESSORS:
        processor = kind(**settings)
        name = kind.__name__.removesuffix("Pil")
        for number, (width, height) in enumerate(SIZES):
            rule = [noise, waves][number % 2]
            picture = Image.fromarray(rule(width, height).reshape(height, width, 3), "RGB")
            numbers, columns, rows = patches(processor, picture, patch)
            tile_columns, tile_rows = tiles(processor, picture, len(numbers) // (columns * rows))
            digest = hashlib.sha256(numpy.ascontiguousarray(numbers, dtype="<f4").tobytes()).hexdigest()
            settings_of_file = {"image_processor_type": name, **settings}
            sizes = {"rule": rule.__name__, "size": [width, height], "columns": columns, "rows": rows, "tile_columns": tile_columns, "tile_rows": tile_rows}
            cases.append({"settings": settings_of_file, "patch": patch, **sizes, "sha256": digest})
    lines = ",\n".join(json.dumps(case) for case in cases)
    pathlib.Path(__file__).with_name("patches.json").write_text(f"[\n{lines}\n]\n")


main()
