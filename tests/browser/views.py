"""Every view of the page: it shows its content, can be used by keyboard, and has no serious finding of axe-core."""

import sys

from axe_playwright_python.sync_playwright import Axe

from browser import browser, visit_in

MODEL = "tiny:latest"
TABS = ["Overview", "Tensors", "Map", "Memory", "Documents", "Lineage", "Versions", "Manifest"]
#: Paths, each with a selector of an element that exists once the view is drawn.
VIEWS = [
    ("/", ".compose textarea"),
    ("/ui/models", f"text={MODEL}"),
    ("/ui/store", ".treemap a"),
    ("/ui/running", "text=No model is loaded"),
    ("/ui/registry", "text=library/tiny"),
    ("/ui/nothing", "text=There is no such page"),
] + [(f"/ui/model?name={MODEL}&tab={tab}", ready) for tab, ready in [
    ("overview", "text=Types of tensors"), ("tensors", ".table-body .row"), ("map", ".map rect"),
    ("memory", "text=Ollama's formula"), ("documents", "text=Modelfile"), ("lineage", "text=Made from it"),
    ("versions", "text=the present one"), ("blobs", "text=Verify now"),
]]
SIZES = [({"width": 1280, "height": 800}, "light"), ({"width": 360, "height": 740}, "dark"), ({"width": 2560, "height": 1440}, "light")]
#: Views, each with the name of a button that opens a dialog.
DIALOGS = [("/ui/models", "Pull"), ("/ui/models", "Create"), ("/ui/chat", "System prompt, options and tools"), ("/ui/chat", "Model: tiny:latest")]


def findings(page) -> list[str]:
    result = Axe().run(page).response
    told = []
    for violation in result["violations"]:
        line = f"{violation['impact']} {violation['id']}: {[node['target'] for node in violation['nodes']][:3]}"
        told.append(line)
    return told


def judge(page, place: str) -> None:
    found = findings(page)
    for line in found:
        print(f"{place}: {line}", file=sys.stderr)
    assert not [line for line in found if line.startswith(("serious", "critical"))], found


def look(chromium, address: str) -> None:
    for size, scheme in SIZES:
        # The page's content security policy would forbid injecting axe-core.
        with visit_in(chromium, address, viewport=size, color_scheme=scheme, bypass_csp=True) as visited:
            for path, ready in VIEWS:
                visited.go(path)
                visited.page.locator(ready).first.wait_for()
                wide = visited.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= size["width"], f"{path} is {wide} wide at {size['width']}"
                tall = visited.page.evaluate("document.documentElement.scrollHeight")
                assert tall <= size["height"], f"{path} is {tall} tall at {size['height']}"
                judge(visited.page, f"{path} at {size['width']}")
            for path, button in DIALOGS:
                visited.go(path)
                visited.page.get_by_role("button", name=button, exact=True).click()
                visited.page.get_by_role("dialog").wait_for()
                judge(visited.page, f"{button} at {size['width']}")


def keys(chromium, address: str) -> None:
    """Navigates from the bar to a tensor's values by keyboard only."""
    with visit_in(chromium, address) as visited:
        page = visited.page
        visited.go("/ui/models")
        page.locator(f"text={MODEL}").first.wait_for()
        page.keyboard.press("Tab")
        page.locator(".skip:focus").wait_for()
        page.get_by_role("link", name=MODEL).focus()
        page.keyboard.press("Enter")
        tab = page.get_by_role("tab", name="Overview")
        tab.wait_for()
        tab.focus()
        page.keyboard.press("ArrowRight")
        page.get_by_role("tab", name="Tensors", selected=True).wait_for()
        page.locator(".table-body button").first.focus()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").locator(".histogram").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        # The map announces the tensor of the selected field, and Enter opens it.
        page.get_by_role("tab", name="Tensors").focus()
        page.keyboard.press("ArrowRight")
        page.locator(".map rect").first.wait_for()
        page.locator(".map").focus()
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.locator("[role=status]", has_text="model.layers.1.").wait_for()
        assert page.locator(".map rect.at").count() == 1
        page.keyboard.press("Enter")
        page.get_by_role("dialog").locator(".histogram").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        # Going back returns to the list of models.
        page.go_back()
        page.locator("h1", has_text="Models").wait_for()


def policy(chromium, address: str) -> None:
    with visit_in(chromium, address) as visited:
        answer = visited.page.goto(visited.base + "/ui/chat")
        said = answer.headers["content-security-policy"]
        assert "default-src 'none'" in said and "unsafe" not in said, said
        visited.page.locator(".compose textarea").wait_for()


def main() -> None:
    address = sys.argv[1]
    with browser() as chromium:
        look(chromium, address)
        keys(chromium, address)
        policy(chromium, address)
    print("ok")


main()
