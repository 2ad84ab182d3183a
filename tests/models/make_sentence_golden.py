"""Makes sentence.json: what sentence-transformers makes of texts with the `bert` fixture of the reference data, pooled in every way,
with prompts, and cut.

    python make_sentence_golden.py PATH-OF-THE-FIXTURES/hf/bert/model        (sentence-transformers 6.2, torch 2.15)

Each case has files that replace those of the model's folder, the name of a prompt, the texts and their vectors, divided by their length.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

TEXTS = ["The lighthouse keeper counted the ships.", "A baker weighs the flour by hand.", "café"]
MODES = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
PROMPTS = {"prompts": {"query": "A question: ", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"}


def pooling(modes, include_prompt=True):
    flags = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
    return {"word_embedding_dimension": 64, **flags, "include_prompt": include_prompt}


CASES = {mode: ({"1_Pooling/config.json": pooling([mode])}, None) for mode in MODES}
CASES["two modes"] = ({"1_Pooling/config.json": pooling(["mean_tokens", "cls_token"])}, None)
CASES["a prompt"] = ({"config_sentence_transformers.json": PROMPTS}, "query")
CASES["an empty prompt"] = ({"config_sentence_transformers.json": PROMPTS}, "document")
CASES["a default prompt"] = ({"config_sentence_transformers.json": {**PROMPTS, "default_prompt_name": "query"}}, None)
CASES["a prompt that is not pooled"] = (
    {"config_sentence_transformers.json": PROMPTS, "1_Pooling/config.json": pooling(["mean_tokens"], False)},
    "query",
)
# Linear layers behind pooling. The numbers of their tensors follow a rule, which the tests repeat.
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


def with_dense(pools, *layers):
    """Returns the files of a model with layers (inputs, outputs, has a bias, activation) behind pooling."""
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(layers) + ["Normalize"]
    path = lambda at, kind: "" if kind == "Transformer" else f"{at}_{kind}"
    modules = [{"idx": at, "name": str(at), "path": path(at, kind), "type": f"sentence_transformers.models.{kind}"} for at, kind in enumerate(kinds)]
    files = {"modules.json": modules, "1_Pooling/config.json": pooling(pools)}
    for at, (inputs, outputs, bias, activation) in enumerate(layers, 2):
        config = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation}
        files[f"{at}_Dense/config.json"] = config
    return files


CASES["two layers"] = (with_dense(["mean_tokens"], (64, 192, False, IDENTITY), (192, 48, False, IDENTITY)), None)
CASES["a layer with an activation"] = (with_dense(["mean_tokens"], (64, 32, True, TANH)), None)
CASES["a layer behind two modes"] = (with_dense(["cls_token", "mean_tokens"], (128, 40, True, IDENTITY)), None)
CASES["cut"] = ({"sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": False}}, None)


def dense_tensors(config):
    """Returns the tensors of a layer: sines of the positions of their numbers."""
    inputs, outputs = config["in_features"], config["out_features"]
    tensors = {"linear.weight": torch.arange(outputs * inputs).sin().reshape(outputs, inputs)}
    return {**tensors, "linear.bias": torch.arange(outputs).sin()} if config["bias"] else tensors


def main() -> None:
    model, golden = pathlib.Path(sys.argv[1]), {}
    for name, (files, prompt) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, "model")
            shutil.copytree(model, copy)
            for file, content in files.items():
                (copy / file).parent.mkdir(exist_ok=True)
                (copy / file).write_text(json.dumps(content))
                if "_Dense/" in file:
                    save_file(dense_tensors(content), copy / file.replace("config.json", "model.safetensors"))
            embedded = SentenceTransformer(str(copy), device="cpu").encode(TEXTS, prompt_name=prompt, normalize_embeddings=True)
        vectors = [[round(float(x), 7) for x in vector] for vector in embedded]
        golden[name] = {"files": files, "prompt_name": prompt, "texts": TEXTS, "vectors": vectors}
    pathlib.Path(__file__).with_name("sentence.json").write_text(json.dumps(golden) + "\n")


main()
