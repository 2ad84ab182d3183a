"""The unmodified `litellm` against a daemon, by both of its ways: Ollama's API and OpenAI's."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True


def main(address: str, model: str) -> None:
    ask = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0}
    ollama = {"model": f"ollama_chat/{model}", "api_base": f"http://{address}"}
    openai = {"model": f"openai/{model}", "api_base": f"http://{address}/v1", "api_key": "none"}
    for way in (ollama, openai):
        whole = litellm.completion(**way, **ask)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens <= 6, whole
        pieces = litellm.completion(**way, **ask, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text, way
    try:
        litellm.completion(**{**openai, "model": "openai/missing"}, **ask)
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("a missing model answered")
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
