"""Makes patches.json: digests of the patches that the processors of transformers make of pictures.

    python make_patches.py        (transformers 5.24, Pillow 13.0, NumPy)

The bytes of a picture follow the rules of make_resampled.py. A case has the settings of a processor, the side of a patch, the rule and the
size of the picture, the number of columns and rows of patches, and the SHA-256 of all patches as little-endian float32. A patch is
[channel, frame, row, column], or [row, column, channel] for Gemma 4 and LFM2-VL.
"""

import hashlib
import json
import pathlib

import numpy
from PIL import Image
from transformers.image_processing_utils import select_best_resolution
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil, get_optimal_tiled_canvas
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import by_pillow
from make_resampled import noise, waves

by_pillow.use()
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
    (LlavaNextImageProcessorPil, {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}, "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]}, 14),
    (PixtralImageProcessorPil, {"size": {"longest_edge": 128}, "patch_size": {"height": 16, "width": 16}}, 16),
    (PixtralImageProcessorPil, {"size": {"longest_edge": 154}, "patch_size": 14, "do_normalize": False}, 14),
    (Idefics3ImageProcessorPil, {"size": {"longest_edge": 224}, "max_image_size": {"longest_edge": 64}}, 16),
    (Idefics3ImageProcessorPil, {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}, "do_image_splitting": False}, 14),
    (SmolVLMImageProcessorPil, {"size": {"longest_edge": 120}, "max_image_size": {"longest_edge": 60}}, 14),
    (SmolVLMImageProcessorPil, {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}, "resample": 3}, 16),
    (GotOcr2ImageProcessorPil, {"size": {"height": 56, "width": 56}, "crop_to_patches": True}, 14),
    (GotOcr2ImageProcessorPil, {"size": {"height": 64, "width": 48}, "crop_to_patches": True, "min_patches": 3, "max_patches": 7}, 16),
    (GotOcr2ImageProcessorPil, {"size": {"height": 56, "width": 56}}, 14),
    (Lfm2VlImageProcessor, {"max_image_tokens": 36, "min_image_tokens": 4, "tile_size": 64}, 16),
    (Lfm2VlImageProcessor, {"max_image_tokens": 9, "min_image_tokens": 2, "tile_size": 56, "encoder_patch_size": 14, "max_tiles": 6, "max_pixels_tolerance": 1.5, "use_thumbnail": False}, 14),
    (Lfm2VlImageProcessor, {"max_image_tokens": 16, "min_image_tokens": 4, "do_image_splitting": False, "downsample_factor": 1}, 16),
    (Gemma4ImageProcessorPil, {"max_soft_tokens": 70, "patch_size": 16, "pooling_kernel_size": 3}, 16),
]


def cut(pixels, patch):
    """Returns [rows · columns, channels · patch · patch] for [channels, height, width]."""
    channels, height, width = pixels.shape
    blocks = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return blocks.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch)


def in_blocks(part, columns, rows, block):
    """Returns patches in the order of blocks, which other classes return."""
    grid = part[: columns * rows].reshape(rows // block, block, columns // block, block, -1)
    return grid.transpose(0, 2, 1, 3, 4).reshape(columns * rows, -1)


def normalized(numbers):
    """Returns numbers as the classes for Pillow compute them: those for torchvision compute in another order."""
    scaled = (numpy.round((numbers * 0.5 + 0.5) * 255).astype(numpy.float64) * (1 / 255)).astype(numpy.float32)
    return (scaled - numpy.float32(0.5)) / numpy.float32(0.5)


def patches(processor, picture, patch):
    """Returns the patches, and the number of columns and rows of the first part."""
    made = processor(picture, return_tensors="np")
    pixels = made["pixel_values"]
    if "spatial_shapes" in made:
        shapes = made["spatial_shapes"].tolist()
        parts = [in_blocks(part, columns, rows, processor.downsample_factor) for part, (rows, columns) in zip(pixels, shapes)]
        return normalized(numpy.concatenate(parts)), shapes[0][1], shapes[0][0]
    if "image_grid_thw" in made:
        _, rows, columns = made["image_grid_thw"][0]
        return pixels, int(columns), int(rows)
    if "image_position_ids" in made:
        places = made["image_position_ids"][0]
        columns, rows = (int(side) + 1 for side in places.max(axis=0))
        return pixels[0][: columns * rows], columns, rows
    # Idefics 3 has the parts of each picture behind one more dimension.
    parts = pixels[0] if pixels.ndim == 5 else pixels
    if isinstance(processor, LlavaNextImageProcessorPil):
        # The small copy is the first part there.
        parts = numpy.concatenate([parts[1:], parts[:1]])
    rows, columns = (side // patch for side in parts.shape[2:])
    # Pixels behind the last patch of a side are not used.
    parts = parts[:, :, : rows * patch, : columns * patch]
    return numpy.concatenate([cut(part, patch) for part in parts]), columns, rows


def tiles(processor, picture, parts):
    """Returns the number of columns and rows of tiles."""
    if isinstance(processor, Lfm2VlImageProcessor):
        made = processor(picture, return_tensors="np", return_row_col_info=True)
        return int(made["image_cols"][0]), int(made["image_rows"][0])
    if isinstance(processor, LlavaNextImageProcessorPil):
        height, width = select_best_resolution((picture.height, picture.width), processor.image_grid_pinpoints)
        return width // processor.size["shortest_edge"], height // processor.size["shortest_edge"]
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
