"""The unmodified `anthropic` client against a daemon: messages, streamed and not, counted; errors."""

import json
import sys

import anthropic

import seeing


def converses(client: anthropic.Anthropic, model: str) -> None:
    """Tool calls, thinking and structured output, unstreamed and streamed."""
    whole = {"a": {"type": "integer", "minimum": 1, "maximum": 9}}
    shape = {"type": "object", "properties": whole, "required": ["a"], "additionalProperties": False}
    ask = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
    tools = [{"name": "add", "description": "Adds.", "input_schema": shape}]
    called = {**ask, "tools": tools, "tool_choice": {"type": "any"}, "thinking": {"type": "disabled"}}
    said = client.messages.create(**called)
    call = said.content[-1]
    assert (said.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "add"), said
    assert call.input["a"] in range(1, 10), call
    with client.messages.stream(**called) as stream:
        call = stream.get_final_message().content[-1]
    assert call.type == "tool_use" and call.input["a"] in range(1, 10), call
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": said.content[-1].id, "content": "3"}]}
    answered = [*ask["messages"], {"role": "assistant", "content": said.content}, result]
    assert client.messages.create(**{**ask, "messages": answered, "max_tokens": 4}).content

    thinks = {**ask, "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 6}
    thought = client.messages.create(**thinks, extra_body={"options": {"temperature": 0}}).content[0]
    assert thought.type == "thinking" and thought.thinking, thought
    with client.messages.stream(**thinks, extra_body={"options": {"temperature": 0}}) as stream:
        deltas = [event.thinking for event in stream if event.type == "thinking"]
    assert "".join(deltas) == thought.thinking, deltas

    form = {"output_config": {"format": {"type": "json_schema", "schema": shape}}, "thinking": {"type": "disabled"}}
    formed = client.messages.create(**ask, extra_body=form).content[0]
    assert json.loads(formed.text)["a"] in range(1, 10), formed


def main(address: str, model: str, talker: str) -> None:
    client = anthropic.Anthropic(base_url=f"http://{address}", api_key="none", max_retries=0)
    converses(client, talker)
    ask = {"model": model, "max_tokens": 6, "messages": [{"role": "user", "content": "Hello"}]}
    # Uses Lode's `options`, because the client no longer has a temperature parameter.
    cold = {"extra_body": {"options": {"temperature": 0}}}
    whole = client.messages.create(**ask, system="Be brief.", **cold)
    assert (whole.role, whole.type, whole.content[0].type) == ("assistant", "message", "text"), whole
    assert whole.stop_reason in ("end_turn", "max_tokens"), whole
    count = client.messages.count_tokens(model=model, messages=ask["messages"], system="Be brief.").input_tokens
    usage = whole.usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)

    with client.messages.stream(**ask, system="Be brief.", **cold) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, (text, whole)
    assert final.stop_reason == whole.stop_reason, final
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == count, final.usage
    assert final.usage.cache_read_input_tokens > 0, "the prompt was computed before"

    events = [event.type for event in client.messages.create(**ask, stream=True)]
    assert (events[0], events[-1]) == ("message_start", "message_stop"), events

    blocks = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "again"}]
    turns = [{"role": "user", "content": blocks}, {"role": "assistant", "content": whole.content}, ask["messages"][0]]
    assert client.messages.create(**{**ask, "messages": turns}).content is not None

    listed = [entry.id for entry in client.models.list()]
    assert f"{model}:latest" in listed, listed
    assert client.models.retrieve(model).display_name == model

    if seeing.MODEL is not None:
        source = {"type": "base64", "media_type": "image/jpeg", "data": seeing.encoded()}
        blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
        turns = [{"role": "user", "content": blocks}]
        said = client.messages.create(model=seeing.MODEL, max_tokens=4, messages=turns)
        counted = client.messages.count_tokens(model=seeing.MODEL, messages=turns).input_tokens
        assert said.content and counted == said.usage.input_tokens + (said.usage.cache_read_input_tokens or 0), said

    picture = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    for kind, wrong in ((anthropic.NotFoundError, {"model": "missing"}), (anthropic.BadRequestError, {"messages": picture})):
        try:
            client.messages.create(**{**ask, **wrong})
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        else:
            raise AssertionError(f"no {kind.__name__}")
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
