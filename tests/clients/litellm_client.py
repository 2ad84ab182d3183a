"""The unmodified `litellm` with a daemon, by both of its providers: Ollama's API and OpenAI's."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

import seeing

litellm.suppress_debug_info = True


def converses(way: dict, quiet: dict, thinks: dict) -> None:
    """Tool calls, thinking and structured output, unstreamed and streamed."""
    whole = {"a": {"type": "integer", "minimum": 1, "maximum": 9}}
    shape = {"type": "object", "properties": whole, "required": ["a"], "additionalProperties": False}
    ask = {**way, "messages": [{"role": "user", "content": "Hello"}]}
    called = {**ask, **quiet, "tools": [{"type": "function", "function": {"name": "add", "parameters": shape}}]}
    if way["model"].startswith("ollama_chat"):
        regex = r'<tool_call>\{"name": "add", "arguments": \{"a": [1-9]\}\}</tool_call>'
        called["format"] = {"type": "grammar", "syntax": "regex", "definition": regex}
    else:
        called["tool_choice"] = "required"
    call = litellm.completion(**called).choices[0].message.tool_calls[0].function
    assert call.name == "add" and json.loads(call.arguments)["a"] in range(1, 10), call
    pieces = list(litellm.completion(**called, stream=True))
    calls = [call.function for piece in pieces for call in piece.choices[0].delta.tool_calls or []]
    assert calls[0].name == "add" and json.loads("".join(call.arguments or "" for call in calls))["a"], calls
    thought = litellm.completion(**ask, **thinks, max_tokens=6, temperature=0).choices[0].message
    assert thought.reasoning_content and not thought.content, thought
    pieces = litellm.completion(**ask, **thinks, max_tokens=6, temperature=0, stream=True)
    told = "".join(getattr(piece.choices[0].delta, "reasoning_content", None) or "" for piece in pieces)
    assert told == thought.reasoning_content, told
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": shape, "strict": True}}
    formed = litellm.completion(**ask, **quiet, response_format=form).choices[0].message
    assert json.loads(formed.content)["a"] in range(1, 10), formed
    pieces = litellm.completion(**ask, **quiet, response_format=form, stream=True)
    assert json.loads("".join(piece.choices[0].delta.content or "" for piece in pieces))["a"] in range(1, 10)


def main(address: str, model: str, talker: str) -> None:
    server = f"http://{address}"
    converses({"model": f"ollama_chat/{talker}", "api_base": server}, {"think": False}, {"think": True})
    hosted = {"model": f"openai/{talker}", "api_base": f"{server}/v1", "api_key": "none", "allowed_openai_params": ["reasoning_effort"]}
    converses(hosted, {"reasoning_effort": "none"}, {"reasoning_effort": "low"})
    ask = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0}
    ollama = {"model": f"ollama_chat/{model}", "api_base": f"http://{address}"}
    openai = {"model": f"openai/{model}", "api_base": f"http://{address}/v1", "api_key": "none"}
    for way in (ollama, openai):
        whole = litellm.completion(**way, **ask)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens <= 6, whole
        pieces = litellm.completion(**way, **ask, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text, way
    if seeing.MODEL is not None:
        parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": seeing.data_url()}}]
        for way in ({**ollama, "model": f"ollama_chat/{seeing.MODEL}"}, {**openai, "model": f"openai/{seeing.MODEL}"}):
            seen = litellm.completion(**way, messages=[{"role": "user", "content": parts}], max_tokens=4)
            assert seen.usage.prompt_tokens > 10, seen
    try:
        litellm.completion(**{**openai, "model": "openai/missing"}, **ask)
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("a missing model answered")
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
