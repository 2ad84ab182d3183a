"""The unmodified `ollama` client against a daemon: list, show, generate, chat, streamed and not."""

import sys

import ollama


def main(address: str, model: str) -> None:
    client = ollama.Client(host=f"http://{address}")
    names = [entry.model for entry in client.list().models]
    assert f"{model}:latest" in names, names

    shown = client.show(model)
    assert shown.details.family == "llama", shown
    assert shown.modelinfo["general.architecture"] == "llama", shown

    options = {"temperature": 0, "num_predict": 8}
    whole = client.generate(model=model, prompt="Hello", options=options)
    assert whole.done and whole.eval_count and whole.response, whole
    pieces = list(client.generate(model=model, prompt="Hello", options=options, stream=True))
    assert "".join(piece.response for piece in pieces) == whole.response, pieces
    assert pieces[-1].done and not pieces[0].done, pieces

    messages = [{"role": "user", "content": "Hello"}]
    answer = client.chat(model=model, messages=messages, options=options)
    assert answer.message.role == "assistant" and answer.message.content, answer
    pieces = list(client.chat(model=model, messages=messages, options=options, stream=True))
    assert "".join(piece.message.content for piece in pieces) == answer.message.content, pieces

    assert any(entry.model == f"{model}:latest" for entry in client.ps().models)
    client.copy(model, "copy")
    client.delete("copy")
    try:
        client.generate(model="copy", prompt="x")
    except ollama.ResponseError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("a deleted model answered")
    created = list(client.create(model="made", from_=model, system="Be brief.", stream=True))
    assert created[-1].status == "success", created
    print("ok")


main(*sys.argv[1:])
