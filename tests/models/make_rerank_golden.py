"""Makes rerank.json: what sentence-transformers' CrossEncoder makes of a query and documents with fixtures of the reference data that
were given heads, or modules that score.

    python make_rerank_golden.py PATH-OF-THE-FIXTURES/hf        (sentence-transformers 6.2, transformers 5.23, torch 2.15)

A case says how its model is made of a fixture, so that tests make the same: `fixture`; `prefix`, put before the names of its tensors;
`tensors`, further ones, number `i` of which is `sin(seed + 12.9898 * i) * scale` in float32; `patches`, keys of JSON files (null takes one
away); `files`. Then what was asked, and the scores.
"""

import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder

QUERY = "Who counts the ships?"
DOCUMENTS = [
    "The lighthouse keeper counted the ships.",
    "A baker weighs the flour by hand, and the flour is white.",
    "ships",
    "Nobody counts the days. The days count.",
]
HIDDEN = 64
ROLES = (
    "{%- for m in messages %}{% if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "<|im_start|>user\n<Query>: {{ (messages | selectattr('role', 'eq', 'query') | first).content }}\n"
    "<Document>: {{ (messages | selectattr('role', 'eq', 'document') | first).content }}<|im_end|>\n"
    "<|im_start|>assistant\n{{ start | default('') }}"
)


def tensor(name, shape, seed, scale=0.4):
    return {"name": name, "shape": shape, "seed": seed, "scale": scale}


def config(fixture, kind, **more):
    return {"architectures": [f"{kind}ForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, **more}


def encoder(fixture, kind, prefix, tensors, patches=None, files=None, **more):
    """Returns a case: an encoder with a head, without the folder's embedding configuration."""
    return {
        "fixture": fixture,
        "prefix": prefix,
        "tensors": tensors,
        "patches": {"config.json": config(fixture, kind, **more), **(patches or {})},
        "files": files or {},
    }


# This tokenizer class sets token types, which distinguish the two texts of a pair.
TYPES = {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}}
BERT = [tensor("classifier.weight", [1, HIDDEN], 1), tensor("classifier.bias", [1], 2)]
ROBERTA = [
    tensor("classifier.dense.weight", [HIDDEN, HIDDEN], 3),
    tensor("classifier.dense.bias", [HIDDEN], 4),
    tensor("classifier.out_proj.weight", [1, HIDDEN], 5),
    tensor("classifier.out_proj.bias", [1], 6),
]
MODERN = [
    tensor("head.dense.weight", [HIDDEN, HIDDEN], 7),
    tensor("head.norm.weight", [HIDDEN], 8, 2.0),
    tensor("classifier.weight", [1, HIDDEN], 9),
    tensor("classifier.bias", [1], 10),
]
SCORE = [tensor("score.weight", [1, HIDDEN], 11, 0.1)]
PACKAGE = "sentence_transformers"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.base.modules.transformer.Transformer"},
    {"idx": 1, "name": "1", "path": "1_LogitScore", "type": f"{PACKAGE}.cross_encoder.modules.logit_score.LogitScore"},
]
RENDERS = {
    "transformer_task": "text-generation",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "logits"},
        "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
    },
    "module_output_name": "causal_logits",
}
PLAIN = {**RENDERS, "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}


def by_logits(score, settings=RENDERS, **own):
    """Returns a case: a decoder whose logits are scores. `own` has keys of `config_sentence_transformers.json`."""
    files = {
        "modules.json": MODULES,
        "1_LogitScore/config.json": {"module_input_name": "causal_logits", **score},
        "sentence_bert_config.json": settings,
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None, **own},
        "chat_template.jinja": ROLES,
    }
    patches = {"tokenizer_config.json": {"chat_template": None}}
    return {"fixture": "qwen3", "prefix": "", "tensors": [], "patches": patches, "files": files}


YES_NO = {"true_token_id": 105, "false_token_id": 77}
IDENTITY = "torch.nn.modules.linear.Identity"
CASES = {
    "bert": encoder("bert", "Bert", "bert.", BERT, TYPES),
    "bert, of one type": encoder("bert", "Bert", "bert.", BERT),
    "bert, of two types": encoder(
        "bert",
        "Bert",
        "bert.",
        BERT,
        {"tokenizer_config.json": {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}},
    ),
    "bert, as it is": encoder("bert", "Bert", "bert.", BERT, sentence_transformers={"activation_fn": IDENTITY}),
    "bert, tanh of older versions": encoder(
        "bert", "Bert", "bert.", BERT, sbert_ce_default_activation_function="torch.nn.modules.activation.Tanh"
    ),
    "bert, cut": encoder("bert", "Bert", "bert.", BERT, {"tokenizer_config.json": {"model_max_length": 24, **TYPES["tokenizer_config.json"]}}),
    "xlm-roberta": encoder("xlm-roberta", "XLMRoberta", "roberta.", ROBERTA),
    "modernbert": encoder("modernbert", "ModernBert", "model.", MODERN, classifier_pooling="cls"),
    "modernbert, mean": encoder("modernbert", "ModernBert", "model.", MODERN, classifier_pooling="mean"),
    "qwen3": encoder(
        "qwen3", "Qwen3", "", SCORE, {"tokenizer_config.json": {"chat_template": None}}, tie_word_embeddings=True
    ),
    "qwen3, yes and no": by_logits(YES_NO),
    "qwen3, one logit": by_logits({"true_token_id": 105, "false_token_id": None}, activation_fn=IDENTITY),
    "qwen3, without a template": by_logits(YES_NO, PLAIN),
    "qwen3, an instruction": by_logits(YES_NO),
    "qwen3, a default instruction": by_logits(YES_NO, prompts={"web": "Find an answer."}, default_prompt_name="web"),
    "qwen3, a variable": by_logits(YES_NO, {**RENDERS, "processing_kwargs": {"chat_template": {"start": "<think>"}}}),
    "qwen3, cut": by_logits(YES_NO, {**RENDERS, "max_seq_length": 70}),
}
for case in CASES.values():
    if case["fixture"] != "qwen3" or "modules.json" not in case["files"]:
        # Removes the embedding configuration of the fixture's folder.
        gone = ["modules.json", "1_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json"]
        case["files"] = {**{name: None for name in gone}, **case["files"]}
INSTRUCTIONS = {"qwen3, an instruction": "Find what answers."}


def numbers(own):
    count = math.prod(own["shape"])
    values = [math.sin(own["seed"] + 12.9898 * index) * own["scale"] for index in range(count)]
    return torch.from_numpy(numpy.array(values, dtype=numpy.float32).reshape(own["shape"]))


def make(fixtures, case, folder):
    shutil.copytree(fixtures / case["fixture"] / "model", folder)
    for name, content in case["files"].items():
        path = folder / name
        if content is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    for name, keys in case["patches"].items():
        document = json.loads((folder / name).read_text())
        for key, value in keys.items():
            document.pop(key, None)
            if value is not None:
                document[key] = value
        (folder / name).write_text(json.dumps(document))
    weights = folder / "model.safetensors"
    with safe_open(weights, "pt") as file:
        tensors = {case["prefix"] + name: file.get_tensor(name).float() for name in file.keys()}
    tensors |= {own["name"]: numbers(own) for own in case["tensors"]}
    if case["tensors"] and case["fixture"] == "qwen3":
        tensors.pop("lm_head.weight", None)
    save_file(tensors, weights, metadata={"format": "pt"})


def unpooled(model, pair):
    """Returns the scores of llama.cpp's files of such a model, which lack the pooler: the classifier's output for the first hidden state."""
    features = {name: tensor for name, tensor in model.preprocess([pair]).items() if torch.is_tensor(tensor)}
    whole = model[0].model
    with torch.no_grad():
        return whole.classifier(whole.bert(**features).last_hidden_state[:, 0])


def main() -> None:
    fixtures, golden = pathlib.Path(sys.argv[1]), {}
    pairs = [(QUERY, document) for document in DOCUMENTS]
    for name, case in CASES.items():
        instruction = INSTRUCTIONS.get(name)
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root, "model")
            make(fixtures, case, folder)
            model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
            tokens = [int(model.preprocess([pair], prompt=instruction or model.prompts.get(model.default_prompt_name))["attention_mask"].sum()) for pair in pairs]
            scores = model.predict(pairs, prompt=instruction)
            raw = model.predict(pairs, prompt=instruction, activation_fn=torch.nn.Identity())
        as_list = lambda values: [round(float(value), 7) for value in values]
        golden[name] = {**case, "query": QUERY, "documents": DOCUMENTS, "instruction": instruction}
        golden[name] |= {"tokens": tokens, "scores": as_list(scores), "raw_scores": as_list(raw)}
        if name == "bert":
            golden[name]["raw_scores_without_pooler"] = as_list(unpooled(model, pair) for pair in pairs)
        print(name, golden[name]["scores"], golden[name]["raw_scores"], tokens, file=sys.stderr)
    pathlib.Path(__file__).with_name("rerank.json").write_text(json.dumps(golden) + "\n")


main()
