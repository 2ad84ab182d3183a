"""The unmodified `openai` client against a daemon: all supported endpoints, streamed and unstreamed, and errors."""

import json
import sys

import openai

import seeing


def models(client: openai.OpenAI, model: str) -> None:
    assert f"{model}:latest" in [entry.id for entry in client.models.list()]
    entry = client.models.retrieve(model)
    assert (entry.id, entry.object, entry.owned_by) == (model, "model", "library"), entry
    assert entry.created > 1_600_000_000, entry


def chat(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 6}
    raw = client.chat.completions.with_raw_response.create(**ask)
    assert raw.headers["x-lode-model-digest"].startswith("sha256:"), raw.headers
    whole = raw.parse()
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, whole
    assert choice.finish_reason in ("stop", "length"), choice
    assert whole.usage.completion_tokens <= 6 and whole.usage.prompt_tokens > 0, whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage
    again = client.chat.completions.create(**ask)
    assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage

    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content, (text, choice.message.content)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens and not chunks[-1].choices, chunks[-1]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == choice.finish_reason, chunks
    assert len({chunk.id for chunk in chunks}) == 1, chunks

    told = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0]
    assert len(told.logprobs.content) >= 1, told
    for token in told.logprobs.content:
        assert len(token.top_logprobs) == 2 and token.logprob == token.top_logprobs[0].logprob, token

    warm = {**ask, "temperature": 1.0, "seed": 7, "n": 3}
    several = client.chat.completions.create(**warm)
    assert [choice.index for choice in several.choices] == [0, 1, 2], several
    repeated = client.chat.completions.create(**warm)
    texts = [choice.message.content for choice in several.choices]
    assert texts == [choice.message.content for choice in repeated.choices], "a seed repeats"
    streamed = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(**warm, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [streamed[index] for index in range(3)] == texts, streamed

    stopped = client.chat.completions.create(**ask, stop=[choice.message.content[0]]).choices[0]
    assert stopped.finish_reason == "stop" and not stopped.message.content, stopped


def converses(client: openai.OpenAI, model: str) -> None:
    """Tool calls, thinking and structured output, unstreamed and streamed."""
    whole = {"a": {"type": "integer", "minimum": 1, "maximum": 9}}
    shape = {"type": "object", "properties": whole, "required": ["a"], "additionalProperties": False}
    add = {"name": "add", "description": "Adds.", "parameters": shape, "strict": True}
    ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    quiet = {**ask, "reasoning_effort": "none"}
    called = {**quiet, "tools": [{"type": "function", "function": add}], "tool_choice": "required"}
    choice = client.chat.completions.create(**called).choices[0]
    call = choice.message.tool_calls[0]
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "add") and not choice.message.content, choice
    assert json.loads(call.function.arguments)["a"] in range(1, 10), call
    with client.chat.completions.stream(**called) as stream:
        told = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert told.function.name == "add" and json.loads(told.function.arguments)["a"] in range(1, 10), told
    answered = [*ask["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    assert client.chat.completions.create(**{**quiet, "messages": answered}, max_tokens=4).choices[0].message.content

    thinks = {**ask, "reasoning_effort": "low", "max_tokens": 6, "temperature": 0}
    thought = client.chat.completions.create(**thinks).choices[0].message
    assert thought.reasoning and not thought.content, thought
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**thinks, stream=True)]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == thought.reasoning, deltas

    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": shape, "strict": True}}
    formed = client.chat.completions.create(**quiet, response_format=form).choices[0].message
    assert json.loads(formed.content)["a"] in range(1, 10), formed
    chunks = client.chat.completions.create(**quiet, response_format=form, stream=True)
    assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks))["a"] in range(1, 10)

    ask = {"model": model, "input": "Hello", "reasoning": {"effort": "none"}}
    called = {**ask, "tools": [{"type": "function", **add}], "tool_choice": "required"}
    call = client.responses.create(**called).output[-1]
    assert (call.type, call.name) == ("function_call", "add") and json.loads(call.arguments)["a"] in range(1, 10), call
    with client.responses.stream(**called) as stream:
        call = stream.get_final_response().output[-1]
    assert (call.type, call.name) == ("function_call", "add") and json.loads(call.arguments)["a"] in range(1, 10), call
    formed = client.responses.create(**ask, text={"format": {"type": "json_schema", "name": "one", "schema": shape}})
    assert json.loads(formed.output_text)["a"] in range(1, 10), formed
    thinks = client.responses.create(model=model, input="Hello", reasoning={"effort": "low"}, max_output_tokens=6)
    assert thinks.output[0].type == "reasoning", thinks


def completions(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "temperature": 0, "max_tokens": 5}
    whole = client.completions.create(**ask, prompt="Once upon", logprobs=1)
    choice = whole.choices[0]
    assert choice.text and len(choice.logprobs.tokens) == len(choice.logprobs.text_offset), choice
    pieces = list(client.completions.create(**ask, prompt="Once upon", stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == choice.text, pieces
    echoed = client.completions.create(**ask, prompt="Once upon", echo=True)
    assert echoed.choices[0].text == "Once upon" + choice.text, echoed
    both = client.completions.create(**ask, prompt=["Once upon", "A"], n=2)
    assert [one.index for one in both.choices] == [0, 1, 2, 3], both
    assert both.choices[0].text == choice.text, both
    tokens = client.completions.create(**ask, prompt=[1, 2, 3])
    assert tokens.usage.prompt_tokens == 3, tokens


def embeddings(client: openai.OpenAI, model: str) -> None:
    # The client requests base64 by default.
    vectors = client.embeddings.create(model=model, input=["one", "two"])
    assert [entry.index for entry in vectors.data] == [0, 1], vectors
    plain = client.embeddings.create(model=model, input="one", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(plain, vectors.data[0].embedding)) < 1e-4
    assert abs(sum(x * x for x in plain) - 1) < 1e-3, "vectors have length 1"
    short = client.embeddings.create(model=model, input="one", dimensions=8).data[0].embedding
    assert len(short) == 8 and abs(sum(x * x for x in short) - 1) < 1e-3, short


def responses(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "input": "Hello", "temperature": 0, "max_output_tokens": 6}
    whole = client.responses.create(**ask)
    told = client.responses.create(**ask, instructions="Be brief.")
    assert told.usage.input_tokens > whole.usage.input_tokens and told.instructions == "Be brief.", told
    assert whole.output_text and whole.status in ("completed", "incomplete"), whole
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens, whole.usage
    events = list(client.responses.create(**ask, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert events[0].type == "response.created", events[0]
    assert events[-1].type == f"response.{whole.status}", events[-1]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text, (text, whole.output_text)
    # The client's accumulator only supports complete responses.
    stop = next((letter for letter in text[1:] if letter != "\ufffd"), text[0])
    ended = {"options": {"stop": [stop]}}
    with client.responses.stream(**ask, extra_body=ended) as stream:
        final = stream.get_final_response()
    assert (final.status, final.output_text) == ("completed", text.split(stop)[0]), final
    follow = [{"role": "user", "content": "Hello"}, *whole.output, {"role": "user", "content": "More"}]
    assert client.responses.create(**{**ask, "input": follow}).output_text is not None


def errors(client: openai.OpenAI, model: str) -> None:
    def fails(kind: type[openai.APIStatusError], param: str | None, call) -> None:
        try:
            call()
        except kind as error:
            assert error.param == param and error.message, error
        else:
            raise AssertionError(f"no {kind.__name__}")

    hello = [{"role": "user", "content": "Hello"}]
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    ask = client.chat.completions.create
    fails(openai.NotFoundError, "model", lambda: ask(model="missing", messages=hello))
    fails(openai.NotFoundError, "model", lambda: client.models.retrieve("missing"))
    fails(openai.BadRequestError, "temperature", lambda: ask(model=model, messages=hello, temperature=9))
    fails(openai.BadRequestError, "messages[0].content[0].image_url", lambda: ask(model=model, messages=picture))
    respond = client.responses.create
    fails(openai.BadRequestError, "previous_response_id", lambda: respond(model=model, input="x", previous_response_id="r"))


def sees(client: openai.OpenAI) -> None:
    if seeing.MODEL is None:
        return
    parts = [{"type": "image_url", "image_url": {"url": seeing.data_url(), "detail": "auto"}}, {"type": "text", "text": "What?"}]
    said = client.chat.completions.create(model=seeing.MODEL, messages=[{"role": "user", "content": parts}], max_tokens=4, temperature=0)
    parts = [{"type": "input_image", "image_url": seeing.data_url(), "detail": "auto"}, {"type": "input_text", "text": "What?"}]
    response = client.responses.create(model=seeing.MODEL, input=[{"role": "user", "content": parts}], max_output_tokens=4, temperature=0)
    assert response.output_text == said.choices[0].message.content, (response, said)
    assert response.usage.input_tokens == said.usage.prompt_tokens > 10, said


def main(address: str, model: str, talker: str) -> None:
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
    for part in (models, chat, completions, embeddings, responses, errors):
        part(client, model)
    converses(client, talker)
    sees(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
