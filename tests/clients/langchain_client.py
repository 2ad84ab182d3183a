"""The unmodified `langchain-ollama` against a daemon: chat and completion, streamed and not."""

import sys

from langchain_ollama import ChatOllama, OllamaLLM


def main(address: str, model: str) -> None:
    url = f"http://{address}"
    chat = ChatOllama(model=model, base_url=url, temperature=0, num_predict=6)
    whole = chat.invoke([("system", "Be brief."), ("human", "Hello")])
    assert whole.content and whole.usage_metadata["output_tokens"] <= 6, whole
    pieces = list(chat.stream([("system", "Be brief."), ("human", "Hello")]))
    assert "".join(piece.content for piece in pieces) == whole.content, pieces
    text = OllamaLLM(model=model, base_url=url, temperature=0, num_predict=6)
    assert "".join(text.stream("Hello")) == text.invoke("Hello")
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
