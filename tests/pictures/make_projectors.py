"""Makes projectors/NAME.gguf: projector files of tiny models, as llama.cpp's converters write them.

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

import numpy
from safetensors.torch import load_file, save_file

from variants import VARIANTS

HERE = pathlib.Path(__file__).resolve().parent
llama_cpp, zoo = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
text = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]

import convert_hf_to_gguf as converter  # noqa: E402
from conversion import base, gemma, lfm2, qwen3vl, qwenvl  # noqa: E402

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
# The settings of the class, which the converter does not know, and the tokens that it looks for.
CASES = {
    "gemma3": ({**HALF, "image_seq_length": 4}, {"<image_soft_token>": 310, "<start_of_image>": 311, "<end_of_image>": 312}),
    "gemma4-dense": (HALF, {"<|image>": 310, "<image|>": 311, "<|image|>": 312}),
    "gemma4-e-bounded": (HALF, {"<|image>": 310, "<image|>": 311, "<|image|>": 312}),
    "smolvlm": (HALF, {"<fake_token_around_image>": 308, "<global-img>": 309, "<image>": 310, "<row_1_col_1>": 311, "<row_1_col_2>": 312}),
    "internvl": (CLIP, {"<img>": 308, "</img>": 309, "<IMG_CONTEXT>": 310}),
    "internvl-normed": (CLIP, {"<img>": 308, "</img>": 309, "<IMG_CONTEXT>": 310}),
    "lfm2_vl": (HALF, {"<|image_start|>": 308, "<|image_end|>": 309, "<image>": 310, "<|img_thumbnail|>": 311}),
    "qwen3_vl": ({}, {"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310}),
    "qwen2_5_vl": (CLIP, {"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310}),
    "ministral3": (CLIP, {"[IMG]": 310, "[IMG_BREAK]": 311, "[IMG_END]": 312}),
}


# Classes of text models, by which the converter finds the text part of these models.
TEXT_CLASSES = {"internvl": "Qwen2ForCausalLM", "lfm2_vl": "Lfm2ForCausalLM", "smolvlm": "LlamaForCausalLM"}


def add_classes(folder):
    """Names the classes of the parts, as published folders do."""
    config = json.loads((folder / "config.json").read_text())
    if name := TEXT_CLASSES.get(config["model_type"]):
        config["text_config"]["architectures"] = [name]
        if config["model_type"] == "internvl":
            config["vision_config"]["architectures"] = ["InternVisionModel"]
        (folder / "config.json").write_text(json.dumps(config))


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
    # Published folders of LFM2-VL have no head, which is not used.
    weights = {name.replace(old, new): weight for name, weight in weights.items() if "vision_tower.head." not in name}
    save_file(weights, folder / "model.safetensors")


def rename_internvl(folder):
    """Names of published folders, which the converter expects: transformers 5 leaves out a part."""
    weights = load_file(folder / "model.safetensors")
    of_tower = ("vision_tower.", "multi_modal_projector.")
    save_file({f"model.{name}" if name.startswith(of_tower) else name: weight for name, weight in weights.items()}, folder / "model.safetensors")


def write_llava(folder, out):
    """Writes the file that legacy-models/convert_image_encoder_to_gguf.py writes of a LLaVA with CLIP."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    layers = vision["num_hidden_layers"] + 1 + config["vision_feature_layer"]
    writer = base.gguf.GGUFWriter(out, "clip")
    for key in ("has_text_encoder", "has_vision_encoder", "has_llava_projector"):
        writer.add_bool(f"clip.{key}", key != "has_text_encoder")
    writer.add_string("clip.projector_type", "mlp")
    numbers = {"image_size": "image_size", "patch_size": "patch_size", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "projection_dim": "projection_dim", "attention.head_count": "num_attention_heads"}
    for key, name in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", vision[name])
    writer.add_uint32("clip.vision.block_count", layers)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
    for key, values in CLIP.items():
        writer.add_array(f"clip.vision.{key}", values)
    writer.add_bool("clip.use_gelu", False)
    if pinpoints := config.get("image_grid_pinpoints"):
        writer.add_array("clip.vision.image_grid_pinpoints", [side for sides in pinpoints for side in sides])
        writer.add_string("clip.vision.image_aspect_ratio", "anyres")
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
    # The converter exchanges the two projections of a network.
    parts = {"multi_modal_projector.linear_1": "mm.0", "multi_modal_projector.linear_2": "mm.2", "vision_tower.": "v.", "encoder.layers": "blk", "embeddings.": "", "_proj": "", "self_attn.": "attn_", "pre_layrnorm": "pre_ln", "layer_norm": "ln", "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up", "embedding": "embd"}
    for name, weight in load_file(folder / "model.safetensors").items():
        left = [part for part in name.split(".") if part.isdigit()]
        if name == "image_newline":
            writer.add_tensor("model.image_newline", weight.float().numpy())
        if not name.startswith(("vision_tower.", "multi_modal_projector.")) or "post_layernorm" in name or left and int(left[0]) >= layers:
            continue
        for part, short in parts.items():
            name = name.replace(part, short)
        writer.add_tensor(name, weight.float().numpy().astype(numpy.float16 if weight.ndim > 1 else numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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

    # The converter knows patches of 16 pixels only.
    def by_channels(self, data, name, layer):
        if "patch_embedding.weight" in name:
            side = self.hparams_vision["patch_size"]
            data = data.view(-1, side, side, 3).permute(0, 3, 1, 2)
        yield from base.MmprojModel.modify_tensors(self, data, name, layer)

    lfm2.LFM2VLModel.modify_tensors = by_channels
    kind = gemma.Gemma4VisionAudioModel
    kind.set_gguf_parameters = with_gemma_bounds(kind.set_gguf_parameters)
    for kind in (qwen3vl.Qwen3VLVisionModel, qwenvl.Qwen2VLVisionModel):
        kind.set_gguf_parameters = with_bounds(kind.set_gguf_parameters)
    settings = {case["model"]: case["settings"] for case in json.loads((HERE / "towers.json").read_text())}
    os.chdir(llama_cpp)
    for name, (more, tokens) in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / name
            ending = next((ending for ending in VARIANTS if name.endswith(ending)), None)
            source = zoo / name.removesuffix(ending or "") / "model"
            VARIANTS.get(ending, shutil.copytree)(source, folder)
            (folder / "preprocessor_config.json").write_text(json.dumps({**more, **settings[name]}))
            add_tokens(folder, tokens)
            add_classes(folder)
            if name in ("gemma3", "lfm2_vl"):
                rename_tower(folder)
            if name.startswith("internvl"):
                rename_internvl(folder)
            if text is not None:
                convert(folder, text / f"{name}.gguf", "--outtype", "f32")
            if name == "ministral3":
                copy_embedding(folder)
            convert(folder, HERE / f"projectors/{name}.gguf", "--mmproj", "--outtype", "f16")
    for name in ("llava", "llava_next"):
        write_llava(zoo / name / "model", HERE / f"projectors/{name}.gguf")


main()
