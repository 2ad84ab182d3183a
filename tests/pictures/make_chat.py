"""Makes chat.json: the likeliest first tokens of answers to a question about the file of a picture.

    python make_chat.py ZOO        (transformers 5.24, tokenizers, PyTorch, Pillow 13.0)

ZOO is the folder with the tiny models of 2026 from the reference data. The files are the seeds of the fuzz target for pictures. The
tokenizer of the model gets the tokens of pictures in place of its last ones, as the test does that reads the golden numbers.
"""

import json
import pathlib
import sys

import torch
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HERE = pathlib.Path(__file__).parent
SEEDS = HERE / "../../fuzz/seeds/pictures"
FILES = ["plain.png", "palette.png", "transparent.png", "lossless.webp", "turned.jpg"]
HALF = [0.5, 0.5, 0.5]
SETTINGS = {"size": {"shortest_edge": 64, "longest_edge": 1024}, "patch_size": 4, "image_mean": HALF, "image_std": HALF}
TOKENS = {"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310, "<|video_pad|>": 311}
TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = "<|im_start|>user\nWhat is <|vision_start|>{}<|vision_end|> on it?<|im_end|>\n<|im_start|>assistant\n"


def tokenizer(path):
    """Returns the tokenizer with the tokens of pictures in place of its last ones."""
    whole = json.loads(path.read_text())
    vocabulary = whole["model"]["vocab"]
    for word in [word for word, id in vocabulary.items() if id in TOKENS.values()]:
        del vocabulary[word]
    vocabulary.update(TOKENS)
    known = {**vocabulary, **{token["content"]: token["id"] for token in whole["added_tokens"]}}
    whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if "".join(pair) in known]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole["added_tokens"] += [{"id": id, "content": token, **flags} for token, id in TOKENS.items()]
    return Tokenizer.from_str(json.dumps(whole))


@torch.no_grad()
def main() -> None:
    folder = pathlib.Path(sys.argv[1]) / "qwen3_vl" / "model"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    processor, words = Qwen2VLImageProcessorPil(**SETTINGS), tokenizer(folder / "tokenizer.json")
    answers = []
    for name in FILES:
        picture = ImageOps.exif_transpose(Image.open(SEEDS / name))
        inputs = dict(processor([picture], return_tensors="pt"))
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        ids = words.encode(PROMPT.format("<|image_pad|>" * (rows * columns // 4))).ids
        kinds = torch.tensor([[int(id == TOKENS["<|image_pad|>"]) for id in ids]])
        logits = model(input_ids=torch.tensor([ids]), mm_token_type_ids=kinds, **inputs).logits[0, -1]
        best = torch.log_softmax(logits, -1).topk(5)
        top = [round(float(own), 4) for own in best.values]
        answers.append({"file": name, "prompt_tokens": len(ids), "logprobs": top})
    settings = {"image_processor_type": "Qwen2VLImageProcessor", **SETTINGS}
    lines = ",\n".join(json.dumps(answer) for answer in answers)
    whole = json.dumps({"settings": settings, "template": TEMPLATE, "tokens": TOKENS}, indent=1)[:-2]
    (HERE / "chat.json").write_text(f'{whole},\n "answers": [\n{lines}\n]\n}}\n')


main()
