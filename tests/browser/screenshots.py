"""Screenshots of the page for the documentation. `scripts/screenshots` runs it."""

import sys
from pathlib import Path

from browser import browser, visit_in

WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}
QUESTION = "Explain in two sentences what a registry of models is."


def shoot(visited, out: Path, name: str) -> None:
    # Waits for parts that are drawn after the store has been measured.
    visited.page.wait_for_timeout(600)
    visited.page.screenshot(path=out / f"{name}.jpg", type="jpeg", quality=72)


def chat(visited, out: Path) -> None:
    page = visited.page
    visited.go("/ui/chat?model=smollm2")
    page.locator(".model-button", has_text="smollm2").wait_for()
    page.get_by_role("button", name="System prompt, options and tools").click()
    page.get_by_label("Most tokens").fill("120")
    page.get_by_label("Seed").fill("3")
    page.get_by_role("button", name="Use these").click()
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator("button[aria-label='Regenerate the answer']").wait_for()
    shoot(visited, out, "chat")


def views(visited, out: Path) -> None:
    page = visited.page
    for name, path, ready in [
        ("models", "/ui/models", "text=smollm2:q8"),
        ("tensors", "/ui/model?name=smollm2:latest&tab=tensors", ".table-body button"),
        ("map", "/ui/model?name=smollm2:q8&tab=map", ".map rect"),
        ("memory", "/ui/model?name=gemma3:270m&tab=memory", ".stack"),
        ("store", "/ui/store", ".treemap a"),
        ("running", "/ui/running", ".spark"),
        ("registry", "/ui/registry", "text=library/smollm2"),
    ]:
        visited.go(path)
        page.locator(ready).first.wait_for()
        if name == "tensors":
            page.locator(".table-body button", has_text="down_proj").first.click()
            page.locator(".histogram").wait_for()
        if name == "registry":
            page.get_by_role("button", name="library/smollm2").click()
            page.locator(".simple code").first.wait_for()
        shoot(visited, out, name)


def main() -> None:
    address, out = sys.argv[1], Path(sys.argv[2])
    with browser() as chromium:
        with visit_in(chromium, address, viewport=WIDE) as visited:
            chat(visited, out)
            views(visited, out)
        with visit_in(chromium, address, viewport=PHONE, color_scheme="dark", device_scale_factor=1) as visited:
            visited.go("/ui/models")
            visited.page.locator("text=smollm2:q8").first.wait_for()
            shoot(visited, out, "phone")


main()
