"""Tokenizes texts with Python's `tokenizers`. Reads a JSON list of [tokenizer.json, [texts]], and writes for each tokenizer
and text the ids without and with special tokens."""

import json
import sys

from tokenizers import Tokenizer

answer = []
for path, texts in json.load(sys.stdin):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encode = lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids
    answer.append([[encode(text, False), encode(text, True)] for text in texts])
json.dump(answer, sys.stdout)
