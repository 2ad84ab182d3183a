"""The unmodified `langchain-ollama` against a daemon: chat and completion, streamed and not."""

import json
import sys

from langchain_ollama import ChatOllama, OllamaLLM

import seeing


def add(a: int) -> int:
    """Adds."""


def converses(url: str, model: str) -> None:
    """Tool calls, thinking and structured output, unstreamed and streamed."""
    regex = r'<tool_call>\{"name": "add", "arguments": \{"a": [1-9]\}\}</tool_call>'
    grammar = {"type": "grammar", "syntax": "regex", "definition": regex}
    caller = ChatOllama(model=model, base_url=url, reasoning=False, format=grammar).bind_tools([add])
    said = caller.invoke("Hello")
    assert said.tool_calls[0]["name"] == "add" and said.tool_calls[0]["args"]["a"] in range(1, 10), said
    pieces = [call for piece in caller.stream("Hello") for call in piece.tool_calls]
    assert [call["name"] for call in pieces] == ["add"], pieces
    thinker = ChatOllama(model=model, base_url=url, reasoning=True, temperature=0, num_predict=6)
    thought = thinker.invoke("Hello").additional_kwargs["reasoning_content"]
    pieces = [piece.additional_kwargs.get("reasoning_content", "") for piece in thinker.stream("Hello")]
    assert thought and "".join(pieces) == thought, pieces
    numbers = {"n": {"type": "integer", "minimum": 1, "maximum": 9}}
    shape = {"title": "one", "type": "object", "properties": numbers, "required": ["n"]}
    former = ChatOllama(model=model, base_url=url, reasoning=False)
    assert former.with_structured_output(shape, method="json_schema").invoke("Hello")["n"] in range(1, 10)
    formed = ChatOllama(model=model, base_url=url, reasoning=False, format=shape)
    assert json.loads("".join(piece.content for piece in formed.stream("Hello")))["n"] in range(1, 10)


def main(address: str, model: str, talker: str) -> None:
    url = f"http://{address}"
    converses(url, talker)
    chat = ChatOllama(model=model, base_url=url, temperature=0, num_predict=6)
    whole = chat.invoke([("system", "Be brief."), ("human", "Hello")])
    assert whole.content and whole.usage_metadata["output_tokens"] <= 6, whole
    pieces = list(chat.stream([("system", "Be brief."), ("human", "Hello")]))
    assert "".join(piece.content for piece in pieces) == whole.content, pieces
    if seeing.MODEL is not None:
        parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": seeing.data_url()}]
        seen = ChatOllama(model=seeing.MODEL, base_url=url, temperature=0, num_predict=4).invoke([("human", parts)])
        assert seen.usage_metadata["input_tokens"] > 10, seen
    text = OllamaLLM(model=model, base_url=url, temperature=0, num_predict=6)
    assert "".join(text.stream("Hello")) == text.invoke("Hello")
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
