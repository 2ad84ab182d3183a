#!/usr/bin/env python3
"""Next-token logits of Gemma 3 270M, from its GGUF file (`scripts/fetch-model gemma3`).

    make_gemma_golden.py FILE > gemma3-270m.json

Needs torch, transformers, gguf, numpy and llama-cpp-python. All tensors are expanded to float32 and computed with in float32 by
transformers (`float32`); llama.cpp computes with the file as it is and its defaults (`llama_cpp`), and cuts texts. Of each prompt:
the ids, the 32 largest logits with their tokens, and those of 32 tokens spread over the vocabulary.
"""

import json
import sys

import llama_cpp
import numpy
import torch
import transformers

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5, 6, 7,",
    "Die Hauptstadt von Deutschland ist",
    # Longer than the sliding window of 512 tokens.
    "The lighthouse keeper counted the ships that passed. " * 70 + "Then he",
]
SPREAD = 8191


def chosen(logits):
    best = [int(i) for i in numpy.argsort(-logits, kind="stable")[:32]]
    spread = [i * SPREAD for i in range(32)]
    return {str(i): round(float(logits[i]), 5) for i in best + spread}


def of_transformers(path, prompts):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.rpartition("/")[0], gguf_file=path.rpartition("/")[2], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids])).logits[0, -1].numpy() for ids in prompts]


def of_llama_cpp(model, prompts):
    found = []
    for ids in prompts:
        model.reset()
        model.eval(ids)
        row = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
        found.append(numpy.ctypeslib.as_array(row, (model.n_vocab(),)).copy())
    return found


def main():
    path = sys.argv[1]
    model = llama_cpp.Llama(path, n_ctx=1024, n_batch=1024, verbose=False)
    prompts = [model.tokenize(text.encode(), add_bos=True) for text in PROMPTS]
    native, exact = of_llama_cpp(model, prompts), of_transformers(path, prompts)
    cases = []
    for text, ids, own, other in zip(PROMPTS, prompts, exact, native):
        float32 = chosen(own)
        cases.append({"text": text, "ids": ids, "float32": float32,
                      "llama_cpp": {i: round(float(other[int(i)]), 5) for i in float32}})
    json.dump({"cases": cases}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
