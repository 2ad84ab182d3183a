"""Converts tiny models with llama.cpp's converter: converted_models.py LLAMA_CPP MODELS FILES [NAME...]

Models that the converter does not know are reported and left out. The configs of some models are
changed to the keys of published models, which the converter expects. The tiny tokenizers have none
of the tokens that it looks for, so all models get the vocabulary of their `tokenizer.json`.
"""

import io
import json
import logging
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

llama_cpp, models, files = (Path(path).resolve() for path in sys.argv[1:4])
sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]

import convert_hf_to_gguf as converter  # noqa: E402
from conversion import base, chatglm, deepseek, glm  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def nemotron_h(config):
    """One letter for each layer; the keys of experts only if there are any."""
    letters = {"linear_attention": "M", "mlp": "-", "full_attention": "*", "moe": "E"}
    pattern = "".join(letters[kind] for kind in config.pop("layers_block_type"))
    config.update(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern))
    if "E" not in pattern:
        of_experts = ("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor")
        for key in [key for key in config if "moe" in key or "expert" in key or key in of_experts]:
            del config[key]


def granite_hybrid(config):
    names = {"full_attention": "attention", "linear_attention": "mamba"}
    config["layer_types"] = [names[kind] for kind in config["layer_types"]]


def kimi_linear(config):
    """Lists of layers that count from 1."""
    kinds = list(enumerate(config["layer_types"], 1))
    config["first_k_dense_replace"] = 1
    config["linear_attn_config"] = {
        "full_attn_layers": [layer for layer, kind in kinds if kind == "full_attention"],
        "kda_layers": [layer for layer, kind in kinds if kind != "full_attention"],
        "head_dim": config["linear_head_dim"],
        "num_heads": config["linear_num_heads"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }


def qwen4_exp(config):
    """The name of attention in published configs."""
    names = {"indexed_attention": "full_attention"}
    config["layer_types"] = [names.get(kind, kind) for kind in config["layer_types"]]


def rename_kimi_linear(folder):
    """The dense first layer of published models is `mlp`."""
    weights = load_file(folder / "model.safetensors")
    dense = lambda name: name.replace("block_sparse_moe", "mlp") if ".layers.0." in name else name
    save_file({dense(name): weight for name, weight in weights.items()}, folder / "model.safetensors")


CHANGES = {
    "bamba": lambda config: config.update(attn_rotary_emb=8),
    "eurobert": lambda config: config.update(classifier_pooling="mean"),
    "glm4_moe_lite": lambda config: config.update(first_k_dense_replace=1),
    "granitemoehybrid": granite_hybrid,
    "granitemoehybrid-dense": granite_hybrid,
    "kimi_linear": kimi_linear,
    "mpt": lambda config: config.update(architectures=["MPTForCausalLM"]),
    "nemotron_h": nemotron_h,
    "nemotron_h-moe": nemotron_h,
    "qwen4_exp_text": qwen4_exp,
    "solar_open": lambda config: config["rope_parameters"].update(partial_rotary_factor=1.0),
}


def replace_tokenizers():
    text, known_hash, vocabulary = base.TextModel, base.TextModel.get_vocab_base_pre, base.TextModel.get_vocab_base

    def pre_tokenizer(self, tokenizer):
        try:
            return known_hash(self, tokenizer)
        except NotImplementedError:
            return "default"

    def tokens(self):
        try:
            return vocabulary(self)
        except AssertionError:
            count = self.hparams["vocab_size"]
            return [f"<{token}>" for token in range(count)], [1] * count, "default"

    text.get_vocab_base_pre, text.get_vocab_base = pre_tokenizer, tokens
    plain = lambda self, *_, **__: self._set_vocab_gpt2()
    for name in ("_set_vocab_glm", "_set_vocab_sentencepiece", "_set_vocab_llama_hf", "_set_vocab_qwen"):
        setattr(text, name, plain)
    for model in (chatglm.ChatGLMModel, deepseek.DeepseekV32Model, glm.SolarOpenModel):
        model.set_vocab = plain


def convert(name, work, load_config):
    folder = work / name
    shutil.copytree(models / name / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    CHANGES.get(name, lambda _: None)(config)
    (folder / "config.json").write_text(json.dumps(config))
    if name == "kimi_linear":
        rename_kimi_linear(folder)
    # The classes of transformers add the keys that were removed.
    is_raw = name.startswith(("nemotron_h", "qwen4"))
    base.ModelBase.load_hparams = staticmethod((lambda *_, **__: dict(config)) if is_raw else load_config)
    no_mtp = ["--no-mtp"] if name.startswith(("qwen3_5", "qwen4")) else []
    sys.argv = ["convert", str(folder), *no_mtp, "--outfile", str(files / f"{name}.gguf"), "--outtype", "f32"]
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        converter.main()


def main():
    logging.disable(logging.INFO)
    names = sys.argv[4:] or sorted(path.name for path in models.iterdir() if (path / "model").is_dir())
    load_config = base.ModelBase.load_hparams
    replace_tokenizers()
    os.chdir(llama_cpp)
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            try:
                convert(name, Path(work), load_config)
                print(f"{name}: converted", flush=True)
            except SystemExit:
                print(f"{name}: the converter does not know its class", flush=True)
            except Exception as error:  # noqa: BLE001 - any model may be one that the converter refuses
                print(f"{name}: {type(error).__name__}: {error}", flush=True)


main()
