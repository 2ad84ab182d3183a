"""Makes texts.json: the text that processors of transformers put in place of a picture.

    python make_texts.py        (transformers 5.24)

A case has a model, the numbers of columns and rows of tiles (1 and 1 if the picture is not cut), the number of tokens of a part and of the
small copy, and the text.
"""

import json
import pathlib
from types import SimpleNamespace

from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor


def of_idefics3(kind, columns, rows, part):
    names = {"fake_image_token": "<fake_token_around_image>", "image_token": "<image>", "global_image_tag": "<global-img>", "global_image_token": "<global-img>"}
    # Pictures that are not cut have no tiles there.
    rows, columns = (0, 0) if columns * rows == 1 else (rows, columns)
    return kind.replace_image_token(SimpleNamespace(**names, image_seq_len=part), {"rows": [[rows]], "cols": [[columns]]}, 0)


def of_internvl(columns, rows, part):
    processor = SimpleNamespace(image_token="<IMG_CONTEXT>", start_image_token="<img>", end_image_token="</img>", image_seq_length=part)
    count = columns * rows + (columns * rows > 1)
    return InternVLProcessor.replace_image_token(processor, {"num_patches": [count]}, 0)


def of_lfm2(columns, rows, part, copy):
    names = {"image": "<image>", "image_start": "<|image_start|>", "image_end": "<|image_end|>", "image_thumbnail": "<|img_thumbnail|>"}
    processor = SimpleNamespace(**{f"{name}_token": token for name, token in names.items()})
    tokens = copy if columns * rows > 1 else part
    return Lfm2VlProcessor._build_image_tokens(processor, rows, columns, part, tokens, True, True)


def main() -> None:
    cases = []
    for columns, rows in [(1, 1), (2, 1), (3, 2)]:
        texts = {
            "idefics3": (3, of_idefics3(Idefics3Processor, columns, rows, 3)),
            "smolvlm": (3, of_idefics3(SmolVLMProcessor, columns, rows, 3)),
            "internvl": (3, of_internvl(columns, rows, 3)),
            "lfm2_vl": (2, of_lfm2(columns, rows, 3, 2)),
        }
        cases += [{"model": model, "tiles": [columns, rows], "part": 3, "copy": copy, "text": text} for model, (copy, text) in texts.items()]
    lines = ",\n".join(json.dumps(case) for case in cases)
    pathlib.Path(__file__).with_name("texts.json").write_text(f"[\n{lines}\n]\n")


main()
