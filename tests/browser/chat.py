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


def converse(visited, model: str) -> None:
    page = visited.page
    visited.go(f"/ui/chat?model={model}")
    page.locator(".model-button", has_text=model).wait_for()
    page.get_by_role("button", name="System prompt, options and tools").click()
    page.get_by_label("Most tokens").fill("16")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Use these").click()
    page.get_by_label("Message", exact=True).fill("Say **hello**")
    page.keyboard.press("Enter")
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


def stop(visited, model: str) -> None:
    page = visited.page
    visited.go(f"/ui/chat?model={model}")
    page.locator(".model-button", has_text=model).wait_for()
    page.get_by_role("button", name="System prompt, options and tools").click()
    page.get_by_label("Most tokens").fill("100000")
    page.get_by_role("button", name="Use these").click()
    page.get_by_label("Message", exact=True).fill("Never stop")
    page.keyboard.press("Enter")
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
        stop(visited, model)
        hostile(visited)
    print("ok")


main()
