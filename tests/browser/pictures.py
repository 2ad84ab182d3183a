"""Tests pictures in the chat: attached, pasted and dropped; shown, sent, exported and imported."""

import base64
import json
import pathlib
import sys

from browser import visit

# Makes an event with the files as its data.
TRANSFER = """([kind, files]) => {
  const data = new DataTransfer();
  for (const [name, type, content] of files)
    data.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name, { type }));
  const target = document.querySelector(kind === "paste" ? ".compose textarea" : ".talk");
  const options = { bubbles: true, cancelable: true };
  target.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, { ...options, clipboardData: data }) : new DragEvent(kind, { ...options, dataTransfer: data }));
}"""


def attached(page, count: int) -> None:
    page.wait_for_function("(count) => document.querySelectorAll('.pictures.attached img').length === count", arg=count)


def answered(page, number: int) -> None:
    page.locator(".message.assistant").nth(number).locator("button[aria-label='Regenerate the answer']").wait_for()


def give(page, kind: str, path: pathlib.Path, media_type: str) -> None:
    page.evaluate(TRANSFER, [kind, [[path.name, media_type, base64.b64encode(path.read_bytes()).decode()]]])


def attach(visited, model: str, folder: pathlib.Path) -> None:
    page = visited.page
    visited.go(f"/ui/chat?model={model}")
    page.locator(".model-button", has_text=model).wait_for()
    page.locator(".badge, .capability", has_text="vision").first.wait_for()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach pictures").click()
    chooser.value.set_files([folder / "plain.png", folder / "photo.jpg"])
    attached(page, 2)
    page.get_by_role("button", name="Remove picture 1").click()
    attached(page, 1)
    give(page, "paste", folder / "lossy.webp", "image/webp")
    attached(page, 2)
    give(page, "drop", folder / "animated.gif", "image/gif")
    attached(page, 3)
    # Other files are refused by name.
    give(page, "drop", folder / "plain.png", "text/plain")
    page.get_by_text("plain.png is no PNG, JPEG, WebP or GIF file").wait_for()
    page.keyboard.press("Escape")
    attached(page, 3)


def send(visited) -> None:
    page = visited.page
    page.get_by_label("Message", exact=True).fill("What is it?")
    with page.expect_request("**/api/chat") as request:
        page.keyboard.press("Enter")
    message = request.value.post_data_json["messages"][0]
    assert message["content"] == "What is it?" and len(message["images"]) == 3, message["content"]
    answered(page, 0)
    assert page.locator(".message.user .pictures img").count() == 3
    attached(page, 0)
    # A picture needs no text, and the first ones are sent again in the next turn.
    page.evaluate(TRANSFER, ["paste", [["dot.png", "image/png", DOT]]])
    attached(page, 1)
    with page.expect_request("**/api/chat") as request:
        page.get_by_role("button", name="Send").click()
    messages = request.value.post_data_json["messages"]
    assert [len(one.get("images", [])) for one in messages] == [3, 0, 1], messages
    answered(page, 1)


def keep(visited) -> None:
    """Pictures survive the page, and an export and its import."""
    page = visited.page
    page.reload()
    page.locator(".conversations li button", has_text="What is it?").first.click()
    page.wait_for_function("() => document.querySelectorAll('.message.user .pictures img').length === 4")
    loaded = "() => [...document.querySelectorAll('.message.user img')].every((one) => one.complete && one.naturalWidth > 0)"
    page.wait_for_function(loaded)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").first.click()
    file = json.loads(pathlib.Path(download.value.path()).read_text())
    messages = list(file["conversations"][0]["messages"].values())
    sent = next(one for one in messages if len(one.get("pictures", [])) == 3)
    assert sent["pictures"][0].startswith("data:image/jpeg;base64,"), sent["pictures"][0][:40]
    sent["pictures"][0] = "https://example.org/pixel.png"
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files({"name": "conversations.json", "mimeType": "application/json", "buffer": json.dumps(file).encode()})
    page.locator("dialog", has_text="`pictures` has something else").wait_for()
    page.keyboard.press("Escape")


def blind(visited, model: str) -> None:
    """A model without vision takes no pictures."""
    page = visited.page
    visited.go(f"/ui/chat?model={model}")
    page.locator(".model-button", has_text=model).wait_for()
    page.get_by_role("button", name="Attach pictures").wait_for(state="hidden")
    page.evaluate(TRANSFER, ["drop", [["dot.png", "image/png", DOT]]])
    page.get_by_text("This model does not see pictures").wait_for()
    page.keyboard.press("Escape")
    attached(page, 0)


DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def main() -> None:
    address, model, other, folder = sys.argv[1:]
    with visit(address) as visited:
        attach(visited, model, pathlib.Path(folder))
        send(visited)
        keep(visited)
        blind(visited, other)
    print("ok")


main()
