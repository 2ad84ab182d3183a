"""Tests the chat: streaming, stopping, branches, storage, and hostile text."""

import json
import pathlib
import sys
import tempfile

from browser import visit

HOSTILE = [
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>",
    "[a](javascript:window.pwned=1) ![b](https://example.org/pixel.png)",
    "\u202eright to left\u202c مرحبا",
    "$\\def\\a{\\a\\a}\\a$ and \\(x^2\\)",
    "x" * 200_000,
    "```html\n</code></pre><script>window.pwned = 1</script>\n```",
]


#: Settings that make an answer longer than any test waits: the schema forbids closing the list.
ENDLESS = {"Most tokens": "100000", "Format of the answer": json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 100_000})}


def answered(page, number: int) -> None:
    page.locator(".message.assistant").nth(number).locator("button[aria-label='Regenerate the answer']").wait_for()
    page.locator(".compose button[aria-label=Send]").wait_for()


def focused(page) -> str | None:
    """Returns the label of the focused element."""
    return page.evaluate("() => document.activeElement.getAttribute('aria-label')")


def ask(visited, model: str, text: str, settings: dict[str, str]) -> None:
    """Starts a conversation."""
    page = visited.page
    visited.go(f"/ui/chat?model={model}")
    page.locator(".model-button", has_text=model).wait_for()
    page.get_by_role("button", name="System prompt, options and tools").click()
    for label, value in settings.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Use these").click()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def converse(visited, model: str) -> None:
    page = visited.page
    ask(visited, model, "Say **hello**", {"Most tokens": "16", "Seed": "7"})
    answered(page, 0)
    foot = page.locator(".message.assistant .figures-line").text_content()
    assert "tokens/s" in foot and "first token after" in foot and "context" in foot, foot
    # A new answer is another branch, and the first one can be selected again. The focus stays on
    # a useful control.
    page.locator("button[aria-label='Regenerate the answer']").press("Enter")
    page.locator(".branches", has_text="2 / 2").wait_for()
    answered(page, 0)
    assert focused(page) == "Send", focused(page)
    page.get_by_role("button", name="The version before").press("Enter")
    page.locator(".branches", has_text="1 / 2").wait_for()
    assert focused(page) == "The version after", focused(page)
    # An open edit is kept while another message changes.
    page.get_by_role("button", name="Edit, and ask anew").click()
    page.locator(".edit textarea").fill("Not yet")
    page.get_by_role("button", name="The version after").click()
    page.locator(".branches", has_text="2 / 2").wait_for()
    assert page.locator(".edit textarea").input_value() == "Not yet"
    page.locator(".edit textarea").press("Escape")
    assert focused(page) == "Edit, and ask anew", focused(page)
    # An edited message of the user is another branch too.
    page.get_by_role("button", name="Edit, and ask anew").click()
    page.locator(".edit textarea").fill("Say goodbye")
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.locator(".message.user .branches", has_text="2 / 2").wait_for()
    answered(page, 0)
    # The conversation is stored: it is still there after a reload.
    page.reload()
    page.locator(".message.user .said", has_text="Say goodbye").wait_for()
    page.locator(".conversations li.current", has_text="Say **hello**").wait_for()


def tabs(visited, model: str) -> None:
    """A conversation in two tabs: both add to it, and a message removed in one is gone in the other. A draft is kept."""
    page = visited.page
    ask(visited, model, "In both tabs", {"Most tokens": "4", "Seed": "7"})
    answered(page, 0)
    message = page.get_by_label("Message", exact=True)
    message.fill("half of a sentence")
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="talker:latest").wait_for()
    page.go_back()
    page.locator(".message.user .said", has_text="In both tabs").wait_for()
    assert message.input_value() == "half of a sentence"
    page.get_by_role("button", name="New conversation").click()
    assert message.input_value() == ""
    page.locator(".conversations li", has_text="In both").locator("button").first.click()
    assert message.input_value() == "half of a sentence"
    other = page.context.new_page()
    other.goto(page.url)
    for tab in (page, other):
        tab.locator(".message.user .said", has_text="In both tabs").wait_for()
    for tab, text in ((page, "of the first"), (other, "of the second")):
        tab.get_by_label("Message", exact=True).fill(text)
        tab.keyboard.press("Enter")
    for tab, text in ((page, "of the first"), (other, "of the second")):
        answered(tab, 1)
        tab.locator(".message.user .said", has_text=text).wait_for()
        tab.locator(".message.user .branches", has_text="/ 2").wait_for()
    page.reload()
    page.locator(".message.user .branches", has_text="/ 2").wait_for()
    other.get_by_role("button", name="Delete “In both tabs”").click()
    other.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator(".conversations li", has_text="In both tabs").wait_for(state="detached")
    other.close()


CALLS = [{"id": f"call_{city}", "function": {"name": "weather", "arguments": {"city": city}}} for city in ("Rome", "Oslo")]


def tools(visited, model: str) -> None:
    """Two tool calls at once: the model continues when both results exist, each assigned to its call."""
    page = visited.page
    asked = []

    def answer(route) -> None:
        asked.append(route.request.post_data_json["messages"])
        said = {"role": "assistant", "content": "It is **warm**."} if len(asked) > 1 else {"role": "assistant", "content": "", "tool_calls": CALLS}
        route.fulfill(body=json.dumps({"message": said, "done": True, "done_reason": "stop", "eval_count": 3}) + "\n")

    page.route("**/api/chat", answer)
    ask(visited, model, "How warm is it?", {})
    for number, text in enumerate(("20", "-5")):
        page.locator(".call").nth(number).get_by_role("button", name="Give a result").click()
        page.get_by_role("dialog").get_by_label("Result").fill(text)
        page.get_by_role("dialog").get_by_role("button", name="Give it to the model").click()
        page.locator(".message.tool", has_text=text).wait_for()
    page.locator(".message.assistant strong", has_text="warm").wait_for()
    page.unroute("**/api/chat")
    assert len(asked) == 2, asked
    given = [(one["tool_name"], one["tool_call_id"], one["content"]) for one in asked[1] if one["role"] == "tool"]
    assert given == [("weather", "call_Rome", "20"), ("weather", "call_Oslo", "-5")], given
    assert asked[1][1]["tool_calls"] == CALLS, asked[1]


def exports(visited) -> None:
    """An import restores an exported conversation, without duplicates."""
    page = visited.page
    titles = page.locator(".conversations li button:first-child").all_text_contents()
    assert len(titles) > 1, titles
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = download.value.path()
    kept = json.loads(file.read_text())["conversations"]
    gone = page.locator(".conversations li", has_text="How warm")
    gone.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    gone.wait_for(state="detached")
    for _ in range(2):
        page.evaluate("() => document.querySelectorAll('.sr[role=status]').forEach((one) => one.replaceChildren())")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import").click()
        chooser.value.set_files({"name": "conversations.json", "mimeType": "application/json", "buffer": file.read_bytes()})
        page.locator(".sr[role=status]", has_text="imported").wait_for(state="attached")
        gone.wait_for()
        assert page.locator(".conversations li button:first-child").all_text_contents() == titles
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    again = json.loads(download.value.path().read_text())["conversations"]
    assert again == kept, "as it was"
    # The error names the fault in the file.
    kept[0]["messages"][kept[0]["current"]]["calls"] = [{}]
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files({"name": "conversations.json", "mimeType": "application/json", "buffer": json.dumps({"form": "lode-conversations/1", "conversations": kept}).encode()})
    page.locator("dialog", has_text="a call has no `function.name`").wait_for()
    page.keyboard.press("Escape")


def leave(visited, model: str) -> None:
    """An answer continues in its own conversation while another conversation or view is open."""
    page = visited.page
    ask(visited, model, "Count as far as you can", ENDLESS)
    page.locator(".message.assistant .figures-line", has_text="tokens/s").wait_for()
    page.get_by_role("button", name="New conversation").click()
    page.locator(".compose button[aria-label=Send]").wait_for()
    counting = page.locator(".conversations li", has_text="Count as far")
    counting.locator(".dot").wait_for()
    page.get_by_role("link", name="Running").click()
    page.locator("h1", has_text="Running").wait_for()
    assert page.request.get(visited.base + "/api/lode/running").json()["active"] == 1
    page.get_by_role("link", name="Chat").click()
    page.locator(".welcome").wait_for()
    counting.locator("button").first.click()
    said = page.locator(".message.assistant .markdown")
    before = len(said.text_content())
    page.locator(".message.assistant .figures-line", has_text="tokens/s").wait_for()
    # Back in the chat, the same conversation is open, with the text generated meanwhile, and
    # generation continues.
    page.get_by_role("link", name="Models").click()
    page.locator("h1", has_text="Models").wait_for()
    page.get_by_role("link", name="Chat").click()
    page.locator(".compose button[aria-label=Stop]").click()
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    assert len(said.text_content()) > before
    page.reload()
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    assert page.locator(".conversations li", has_text="Without a title").count() == 0
    # A view that loads slowly does not draw over the view that is open by then.
    page.route("**/api/show", lambda route: page.wait_for_timeout(700) or route.continue_())
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="talker:latest").click()
    page.get_by_role("link", name="Store").click()
    page.locator("h1", has_text="Store").wait_for()
    page.wait_for_timeout(1200)
    assert page.locator("h1").all_text_contents() == ["Store"], page.locator("h1").all_text_contents()
    page.unroute("**/api/show")


def stop(visited, model: str) -> None:
    page = visited.page
    ask(visited, model, "Never stop", ENDLESS)
    page.locator(".message.assistant .figures-line", has_text="token").wait_for()
    page.locator(".compose button[aria-label=Stop]").click()
    answered(page, 0)
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    # The runner has stopped too.
    for _ in range(100):
        running = page.request.get(visited.base + "/api/lode/running").json()
        if running["active"] == 0:
            break
        page.wait_for_timeout(100)
    assert running["active"] == 0, running


def hostile(visited) -> None:
    """Imports a foreign conversation with hostile texts."""
    page = visited.page
    messages, parent = {}, None
    for number, text in enumerate(HOSTILE):
        role = "assistant" if number % 2 else "user"
        messages[str(number)] = {"id": str(number), "parent": parent, "role": role, "content": text, "thinking": text[:500]}
        parent = str(number)
    # Each text is also the content of an answer.
    for number, text in enumerate(HOSTILE, len(HOSTILE)):
        messages[str(number)] = {"id": str(number), "parent": parent, "role": "assistant", "content": text, "model": "<b>x</b>"}
        parent = str(number)
    title = "<img src=x onerror='window.pwned = 1'>"
    conversation = {"title": title, "model": title, "messages": messages, "current": parent}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "conversations.json")
        file.write_text(json.dumps({"form": "lode-conversations/1", "conversations": [conversation]}))
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import").click()
        chooser.value.set_files(file)
        page.locator(".conversations li", has_text="onerror").first.locator("button").first.click()
        page.locator(".message").nth(2 * len(HOSTILE) - 1).wait_for()
        page.locator(".message math").first.wait_for()
        page.locator(".message pre code", has_text="window.pwned").first.wait_for()
        assert page.locator("main script, main img").count() == 0
        assert page.locator("main a[href^='javascript']").count() == 0
        assert page.evaluate("() => window.pwned") is None
        # A file that is not an export is refused with a message.
        file.write_text("{}")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import").click()
        chooser.value.set_files(file)
        page.get_by_role("dialog", name="This file cannot be imported").wait_for()
        page.keyboard.press("Escape")


def main() -> None:
    address, model = sys.argv[1:]
    with visit(address) as visited:
        converse(visited, model)
        tabs(visited, model)
        tools(visited, model)
        exports(visited)
        leave(visited, model)
        stop(visited, model)
        hostile(visited)
    print("ok")


main()
