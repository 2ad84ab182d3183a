"""The unmodified `ollama` client against a daemon: every method but those of the cloud, streamed and not."""

import asyncio
import hashlib
import json
import pathlib
import struct
import sys
import tempfile

import ollama

import seeing

OPTIONS = {"temperature": 0, "num_predict": 8}


def refused(status: int, says: str, call) -> None:
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status and says in error.error, error
    else:
        raise AssertionError(f"expected {status} {says}")


def describes(client: ollama.Client, model: str) -> None:
    entry = next(entry for entry in client.list().models if entry.model == f"{model}:latest")
    assert entry.size and len(entry.digest) == 64 and entry.modified_at and entry.details.family == "llama", entry
    shown = client.show(model)
    assert shown.details.family == "llama" and shown.details.quantization_level, shown
    assert shown.modelinfo["general.architecture"] == "llama", shown
    assert shown.capabilities == ["completion", "tools"] and shown.modified_at and shown.modelfile, shown
    refused(404, "model 'nope' not found", lambda: client.show("nope"))


def generates(client: ollama.Client, model: str) -> None:
    whole = client.generate(model=model, prompt="Hello", options=OPTIONS)
    assert whole.done and whole.eval_count and whole.response and whole.total_duration, whole
    pieces = list(client.generate(model=model, prompt="Hello", options=OPTIONS, stream=True))
    assert "".join(piece.response for piece in pieces) == whole.response, pieces
    assert pieces[-1].done and pieces[-1].done_reason == "length" and not pieces[0].done, pieces
    told = client.generate(model=model, prompt="Hello", raw=True, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert len(told.logprobs) == told.eval_count, told
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in told.logprobs), told
    by_class = client.generate(model=model, prompt="Hello", options=ollama.Options(**OPTIONS), system="Be brief.")
    assert by_class.prompt_eval_count > whole.prompt_eval_count, by_class
    assert client.generate(model=model, keep_alive="5m").done_reason == "load"
    refused(404, "model 'nope' not found", lambda: client.generate(model="nope", prompt="x"))
    refused(400, "images", lambda: client.generate(model=model, prompt="x", images=[b"\x89PNG"]))
    refused(400, "does not support insert", lambda: client.generate(model=model, prompt="x", suffix="y"))
    refused(400, "does not support thinking", lambda: client.generate(model=model, prompt="x", think=True))
    refused(400, "temperature", lambda: list(client.generate(model=model, prompt="x", options={"temperature": "hot"}, stream=True)))


def chats(client: ollama.Client, model: str) -> None:
    messages = [ollama.Message(role="system", content="Be brief."), {"role": "user", "content": "Hello"}]
    answer = client.chat(model=model, messages=messages, options=OPTIONS)
    assert answer.message.role == "assistant" and answer.message.content, answer
    pieces = list(client.chat(model=model, messages=messages, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == answer.message.content, pieces
    told = client.chat(model=model, messages=messages, options=OPTIONS, logprobs=True, top_logprobs=1)
    assert len(told.logprobs) == told.eval_count, told
    # Earlier messages and tool calls are part of the prompt.
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    before = [*messages, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3", "tool_name": "add"}]
    longer = client.chat(model=model, messages=before, options=OPTIONS)
    assert longer.prompt_eval_count > answer.prompt_eval_count, longer
    assert client.chat(model=model).done_reason == "load"
    refused(404, "not found", lambda: client.chat(model="nope", messages=messages))


def converses(client: ollama.Client, model: str) -> None:
    """Tool calls, thinking and structured output, unstreamed and streamed."""
    def add(a: int) -> int:
        """Adds.

        Args:
            a: a number
        """

    call = r'<tool_call>\{"name": "add", "arguments": \{"a": [1-9]\}\}</tool_call>'
    shape = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    called = {**ask, "think": False, "tools": [add], "format": {"type": "grammar", "syntax": "regex", "definition": call}}
    said = client.chat(**called).message
    assert said.tool_calls[0].function.name == "add" and not said.content, said
    pieces = [piece.message for piece in client.chat(**called, stream=True)]
    assert [one for piece in pieces for one in piece.tool_calls or []][0].function.arguments["a"] in range(1, 10), pieces
    assert not "".join(piece.content or "" for piece in pieces), pieces
    answered = [*ask["messages"], said, {"role": "tool", "content": "3", "tool_name": "add"}]
    assert client.chat(model=model, messages=answered, think=False, options=OPTIONS).message.content
    thought = client.chat(**ask, think=True, options=OPTIONS).message
    assert thought.thinking and not thought.content, thought
    pieces = [piece.message for piece in client.chat(**ask, think=True, options=OPTIONS, stream=True)]
    assert "".join(piece.thinking or "" for piece in pieces) == thought.thinking, pieces
    formed = {**ask, "think": False, "format": shape}
    assert json.loads(client.chat(**formed).message.content)["n"] in range(1, 10)
    assert json.loads("".join(piece.message.content for piece in client.chat(**formed, stream=True)))["n"] in range(1, 10)


def adapter(folder: pathlib.Path) -> list[pathlib.Path]:
    """A LoRA adapter of rank 1, as PEFT writes it, of a projection with 64 columns and 64 rows."""
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight"
    header = {
        name % "A": {"dtype": "F32", "shape": [1, 64], "data_offsets": [0, 256]},
        name % "B": {"dtype": "F32", "shape": [64, 1], "data_offsets": [256, 512]},
    }
    text = json.dumps(header).encode()
    numbers = struct.pack("<128f", *([0.5] * 128))
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    weights.write_bytes(struct.pack("<Q", len(text)) + text + numbers)
    config.write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 16}))
    return [weights, config]


def adapts(client: ollama.Client, model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        adapters = {path.name: client.create_blob(path) for path in adapter(pathlib.Path(folder))}
    assert client.create(model="adapted", from_=model, adapters=adapters).status == "success"
    assert "ADAPTER" in client.show("adapted").modelfile, client.show("adapted")
    answers = [client.generate(model=name, prompt="Hello", options=OPTIONS).response for name in (model, "adapted")]
    assert answers[0] != answers[1], answers
    refused(400, "not found", lambda: client.create(model="x", from_=model, adapters={"a": "sha256:" + "0" * 64}))
    assert client.delete("adapted").status == "success"


def creates(client: ollama.Client, model: str, folder: str) -> None:
    files = {path.name: client.create_blob(path) for path in sorted(pathlib.Path(folder).iterdir())}
    assert all(digest == "sha256:" + hashlib.sha256(pathlib.Path(folder, name).read_bytes()).hexdigest() for name, digest in files.items())
    assert client.create(model="uploaded", files=files).status == "success"
    assert client.show("uploaded").modelinfo == client.show(model).modelinfo
    settings = {
        "system": "Be brief.", "license": ["MIT", "BSD"], "parameters": {"temperature": 0, "stop": ["a", "b"]},
        "messages": [{"role": "user", "content": "Hi"}],
    }
    created = list(client.create(model="made", from_=model, stream=True, **settings))
    assert created[-1].status == "success", created
    shown = client.show("made")
    assert shown.license == "MIT\nBSD" and shown.parameters.splitlines()[0].split() == ["temperature", "0"], shown
    assert client.create(model="small", from_=model, quantize="q8_0").status == "success"
    assert client.show("small").details.quantization_level == "Q8_0", client.show("small")
    adapts(client, model)
    refused(400, "neither 'from' or 'files'", lambda: client.create(model="x"))
    for name in ["uploaded", "made", "small"]:
        assert client.delete(name).status == "success"


def transfers(client: ollama.Client, model: str, address: str) -> None:
    """The daemon pushes to its own registry."""
    name = f"{address}/library/pushed:v1"
    assert client.copy(model, name).status == "success"
    statuses = [line.status for line in client.push(name, insecure=True, stream=True)]
    assert statuses[-1] == "success", statuses
    assert client.delete(name).status == "success"
    pulled = client.pull(name, insecure=True)
    assert pulled.status == "success", pulled
    assert any(entry.model == name for entry in client.list().models)
    statuses = [line.status for line in client.pull(name, insecure=True, stream=True)]
    assert statuses[0] == "pulling manifest" and statuses[-1] == "success", statuses
    client.delete(name)


def ends(client: ollama.Client, model: str) -> None:
    loaded = next(entry for entry in client.ps().models if entry.model == f"{model}:latest")
    assert loaded.size and loaded.expires_at and loaded.context_length and loaded.size_vram is not None, loaded
    assert client.generate(model=model, keep_alive=0).done_reason == "unload"
    assert all(entry.model != f"{model}:latest" for entry in client.ps().models)
    refused(404, 'model "nope" not found', lambda: client.copy("nope", "other"))
    refused(404, "model 'nope' not found", lambda: client.delete("nope"))


async def without_waiting(address: str, model: str) -> None:
    client = ollama.AsyncClient(host=f"http://{address}")
    assert (await client.list()).models
    asked = [client.generate(model=model, prompt=word, raw=True, options=OPTIONS) for word in ["one", "two", "three"]]
    assert all(answer.done for answer in await asyncio.gather(*asked))
    pieces = [piece async for piece in await client.chat(model=model, messages=[{"role": "user", "content": "Hi"}], options=OPTIONS, stream=True)]
    assert pieces[-1].done, pieces


def sees(client: ollama.Client) -> None:
    """A path, bytes and base64 are the same picture."""
    if seeing.MODEL is None:
        return
    forms = [str(seeing.PICTURE), seeing.PICTURE.read_bytes(), seeing.encoded()]
    ask = lambda form: client.chat(model=seeing.MODEL, messages=[{"role": "user", "content": "What?", "images": [form]}], options=OPTIONS)
    answers = [ask(form) for form in forms]
    assert len({answer.message.content for answer in answers}) == 1, answers
    assert answers[0].prompt_eval_count > client.chat(model=seeing.MODEL, messages=[{"role": "user", "content": "What?"}], options=OPTIONS).prompt_eval_count
    assert client.generate(model=seeing.MODEL, prompt="What?", images=[seeing.PICTURE], options=OPTIONS).done
    assert "vision" in client.show(seeing.MODEL).capabilities


def main(address: str, model: str, talker: str, folder: str) -> None:
    client = ollama.Client(host=f"http://{address}")
    describes(client, model)
    generates(client, model)
    chats(client, model)
    converses(client, talker)
    sees(client)
    creates(client, model, folder)
    transfers(client, model, address)
    asyncio.run(without_waiting(address, model))
    ends(client, model)
    print("ok")


main(*sys.argv[1:])
