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
CASES["cut"] = ({"sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": False}}, None)


def main() -> None:
    model, golden = pathlib.Path(sys.argv[1]), {}
    for name, (files, prompt) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, "model")
            shutil.copytree(model, copy)
            for file, content in files.items():
                (copy / file).write_text(json.dumps(content))
            embedded = SentenceTransformer(str(copy), device="cpu").encode(TEXTS, prompt_name=prompt, normalize_embeddings=True)
        vectors = [[round(float(x), 7) for x in vector] for vector in embedded]
        golden[name] = {"files": files, "prompt_name": prompt, "texts": TEXTS, "vectors": vectors}
    pathlib.Path(__file__).with_name("sentence.json").write_text(json.dumps(golden) + "\n")


main()
