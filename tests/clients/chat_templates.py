"""Renders conversations with transformers. Reads a JSON list of [template, [variables, …]], and writes for each template
a list of results, `{"text": …}` or `{"error": …}`."""

import datetime
import json
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

answer = []
for source, conversations in json.load(sys.stdin):
    rendered = []
    try:
        template = _compile_jinja_template(source)
    except Exception as error:
        answer.append([{"error": f"{type(error).__name__}: {error}"} for _ in conversations])
        continue
    for variables in conversations:
        now = datetime.datetime.fromisoformat(variables.pop("now"))
        try:
            rendered.append({"text": template.render(**variables, strftime_now=now.strftime)})
        except Exception as error:
            rendered.append({"error": f"{type(error).__name__}: {error}"})
    answer.append(rendered)
json.dump(answer, sys.stdout)
