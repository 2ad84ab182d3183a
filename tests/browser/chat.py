"""A chat: it streams, is stopped, branches, is kept, and shows hostile text as text."""

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


def answered(page, number: int) -> None:
    page.locator(".message.assistant").nth(number).locator("button[aria-label='Answer anew']").wait_for()
    page.locator(".compose button[aria-label=Send]").wait_for()


def ask(visited, model: str, text: str, settings: dict[str, str]) -> None:
    """Begins a conversation."""
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
    # Answered anew: another branch, and the way back.
    page.locator("button[aria-label='Answer anew']").click()
    page.locator(".branches", has_text="2 / 2").wait_for()
    answered(page, 0)
    page.get_by_role("button", name="The version before").click()
    page.locator(".branches", has_text="1 / 2").wait_for()
    # Edited: the same of a message of one's own.
    page.get_by_role("button", name="Edit, and ask anew").click()
    page.locator(".edit textarea").fill("Say goodbye")
    page.locator(".edit").get_by_role("button", name="Send").click()
    page.locator(".message.user .branches", has_text="2 / 2").wait_for()
    answered(page, 0)
    # It is kept: after a reload it is there.
    page.reload()
    page.locator(".message.user .said", has_text="Say goodbye").wait_for()
    page.locator(".conversations li.current", has_text="Say **hello**").wait_for()


def leave(visited, model: str) -> None:
    """Another conversation is begun while an answer comes: what has come stays with its own."""
    page = visited.page
    ask(visited, model, "Count as far as you can", {"Most tokens": "100000"})
    page.locator(".message.assistant .figures-line", has_text="tokens/s").wait_for()
    page.get_by_role("button", name="New conversation").click()
    page.locator(".compose button[aria-label=Send]").wait_for()
    page.locator(".conversations li", has_text="Count as far").locator("button").first.click()
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    page.reload()
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    assert page.locator(".conversations li", has_text="Without a title").count() == 0
    # A view that is slow to come draws nothing where one is by then.
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
    ask(visited, model, "Never stop", {"Most tokens": "100000"})
    page.locator(".message.assistant .figures-line", has_text="token").wait_for()
    page.locator(".compose button[aria-label=Stop]").click()
    answered(page, 0)
    page.locator(".message.assistant .figures-line", has_text="stopped").wait_for()
    # The runner has stopped, too.
    for _ in range(100):
        running = page.request.get(visited.base + "/api/lode/running").json()
        if running["active"] == 0:
            break
        page.wait_for_timeout(100)
    assert running["active"] == 0, running


def hostile(visited) -> None:
    """A conversation of somebody else, with what a model may say."""
    page = visited.page
    messages, parent = {}, None
    for number, text in enumerate(HOSTILE):
        role = "assistant" if number % 2 else "user"
        messages[str(number)] = {"id": str(number), "parent": parent, "role": role, "content": text, "thinking": text[:500]}
        parent = str(number)
    # Each of them as an answer, too.
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
        # What is no export is refused in words.
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
        leave(visited, model)
        stop(visited, model)
        hostile(visited)
    print("ok")


main()
