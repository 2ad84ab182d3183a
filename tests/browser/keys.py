"""A daemon with API keys: the page asks for a key, reports a refused one, and keeps it only in the tab."""

import sys

from browser import browser, visit_in


def main() -> None:
    address, admin, reader = sys.argv[1:]
    with browser() as chromium:
        with visit_in(chromium, address) as visited:
            page = visited.page
            visited.go("/ui/models")
            dialog = page.get_by_role("dialog", name="An API key is needed")
            dialog.get_by_label("API key").fill("wrong")
            page.keyboard.press("Enter")
            page.locator("dialog", has_text="this API key is not known").get_by_label("API key").fill(reader)
            page.keyboard.press("Enter")
            page.get_by_role("link", name="tiny:latest").wait_for()
            # This tab keeps the key across a reload.
            page.reload()
            page.get_by_role("link", name="tiny:latest").wait_for()
            # The page reports an action that the key does not allow.
            page.get_by_role("button", name="What to do with tiny:latest").click()
            page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            page.locator("dialog", has_text="is removed").get_by_role("button", name="Delete").click()
            page.locator("dialog", has_text="it needs the scope `write`").wait_for()
            page.keyboard.press("Escape")
            # After the key is forgotten, the page asks for another one.
            page.get_by_role("button", name="Forget the API key of this tab").click()
            page.get_by_role("dialog", name="An API key is needed").get_by_label("API key").fill(admin)
            page.keyboard.press("Enter")
            page.get_by_role("link", name="tiny:latest").wait_for()
        with visit_in(chromium, address) as visited:
            visited.go("/ui/models")
            # Other tabs do not have the key. Without one, the page says why it shows nothing.
            visited.page.get_by_role("dialog", name="An API key is needed").wait_for()
            visited.page.keyboard.press("Escape")
            visited.page.locator("main .failure", has_text="an API key is needed").wait_for()
    print("ok")


main()
