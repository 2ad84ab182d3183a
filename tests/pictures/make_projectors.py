"""Makes projectors/NAME.gguf: projector files of tiny models, as llama.cpp's converter writes them.

    python make_projectors.py LLAMA_CPP ZOO [TEXT]    (transformers 5.24, PyTorch; llama.cpp b11434)

LLAMA_CPP is the source of llama.cpp, ZOO the folder with the tiny models of 2026 from the reference data. With TEXT, a folder, the
text parts of the models are written there, so that other programs can load both.
"""

import io
import json
import os
import pathlib
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout

from safetensors.torch import load_file, save_file

from variants import bounded

HERE = pathlib.Path(__file__).resolve().parent
llama_cpp, zoo = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
text = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]

import convert_hf_to_gguf as converter  # noqa: E402
from conversion import base, gemma, qwen3vl, qwenvl  # noqa: E402

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
# The settings of the class, which the converter does not know, and the tokens that it looks for.
CASES = {
    "gemma3": ({**HALF, "image_seq_length": 4}, {"<image_soft_token>": 310, "<start_of_image>": 311, "<end_of_image>": 312}),
    "gemma4-dense": (HALF, {"<|image>": 310, "<image|>": 311, "<|image|>": 312}),
    "gemma4-e-bounded": (HALF, {"<|image>": 310, "<image|>": 311, "<|image|>": 312}),
    "qwen3_vl": ({}, {"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310}),
    "qwen2_5_vl": (CLIP, {"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310}),
    "ministral3": (CLIP, {"[IMG]": 310, "[IMG_BREAK]": 311, "[IMG_END]": 312}),
}


def add_tokens(folder, tokens):
    """Puts tokens in place of those with their ids."""
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    if isinstance(vocabulary, dict):
        for word in [word for word, id in vocabulary.items() if id in tokens.values()]:
            del vocabulary[word]
        vocabulary.update(tokens)
        known = {**vocabulary, **{token["content"]: token["id"] for token in whole["added_tokens"]}}
        joined = lambda pair: "".join(pair if isinstance(pair, list) else pair.split(" "))
        whole["model"]["merges"] = [pair for pair in whole["model"]["merges"] if joined(pair) in known]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["id"] not in tokens.values()]
    whole["added_tokens"] += [{"id": id, "content": token, **flags} for token, id in tokens.items()]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "additional_special_tokens": list(tokens)}))
    # It would be preferred, and does not have the tokens.
    (folder / "tokenizer.model").unlink(missing_ok=True)


def rename_tower(folder):
    """Names of published folders, which the converter expects: transformers 5 leaves out a part."""
    weights = load_file(folder / "model.safetensors")
    old, new = "vision_tower.", "vision_tower.vision_model."
    save_file({name.replace(old, new): weight for name, weight in weights.items()}, folder / "model.safetensors")


def copy_embedding(folder):
    """The name under which the converter finds the embedding of the token between lines."""
    weights = load_file(folder / "model.safetensors")
    embedding = next(name for name in weights if name.endswith("embed_tokens.weight"))
    weights["model.embed_tokens.weight"] = weights[embedding].clone()
    save_file(weights, folder / "model.safetensors")


def convert(folder, out, *arguments):
    sys.argv = ["convert", str(folder), *arguments, "--outfile", str(out)]
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        converter.main()


def main() -> None:
    known_hash = base.TextModel.get_vocab_base_pre

    def pre_tokenizer(self, tokenizer):
        try:
            return known_hash(self, tokenizer)
        except NotImplementedError:
            return "default"

    base.TextModel.get_vocab_base_pre = pre_tokenizer
    # Names of projectors are known for as many layers as the tower has, which are too few here.
    name_map = base.gguf.get_tensor_name_map
    base.gguf.get_tensor_name_map = lambda kind, layers: name_map(kind, max(layers, 8))
    # Bounds of the pixels, which the converter writes for other kinds: pictures of usual sizes
    # have too many tokens for these models.
    def with_bounds(parameters):
        def set_parameters(self):
            parameters(self)
            self.gguf_writer.add_vision_min_pixels(self.preprocessor_config["size"]["shortest_edge"])
            self.gguf_writer.add_vision_max_pixels(self.preprocessor_config["size"]["longest_edge"])

        return set_parameters

    def with_gemma_bounds(parameters):
        def set_parameters(self):
            parameters(self)
            settings = self.preprocessor_config
            side = settings["patch_size"] * settings["pooling_kernel_size"]
            self.gguf_writer.add_vision_projector_scale_factor(settings["pooling_kernel_size"])
            self.gguf_writer.add_vision_max_pixels(settings["max_soft_tokens"] * side * side)

        return set_parameters

    kind = gemma.Gemma4VisionAudioModel
    kind.set_gguf_parameters = with_gemma_bounds(kind.set_gguf_parameters)
    for kind in (qwen3vl.Qwen3VLVisionModel, qwenvl.Qwen2VLVisionModel):
        kind.set_gguf_parameters = with_bounds(kind.set_gguf_parameters)
    settings = {case["model"]: case["settings"] for case in json.loads((HERE / "towers.json").read_text())}
    os.chdir(llama_cpp)
    for name, (more, tokens) in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / name
            if name.endswith("-bounded"):
                bounded(zoo / name.removesuffix("-bounded") / "model", folder)
            else:
                shutil.copytree(zoo / name / "model", folder)
            (folder / "preprocessor_config.json").write_text(json.dumps({**more, **settings[name]}))
            add_tokens(folder, tokens)
            if name == "gemma3":
                rename_tower(folder)
            if text is not None:
                convert(folder, text / f"{name}.gguf", "--outtype", "f32")
            if name == "ministral3":
                copy_embedding(folder)
            convert(folder, HERE / f"projectors/{name}.gguf", "--mmproj", "--outtype", "f16")


main()
