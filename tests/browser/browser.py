"""Shared code of the browser sessions: a page that records its errors and its requests to other hosts."""

import contextlib
import os
import shutil
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

#: The timeout in milliseconds of any step, for slow and shared machines.
PATIENCE = 60_000


class Visit:
    """A page with its recorded errors and foreign requests."""

    def __init__(self, page: Page, base: str):
        self.page, self.base = page, base
        self.faults: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.told(message))
        page.on("request", lambda request: self.asked(request.url))
        page.set_default_timeout(PATIENCE)

    def told(self, message) -> None:
        # The browser also logs failed requests; the page itself reports those.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.netloc != urlsplit(self.base).netloc:
            self.foreign.append(url)

    def go(self, path: str) -> None:
        self.page.goto(self.base + path)

    def check(self) -> None:
        assert not self.faults, self.faults
        assert not self.foreign, f"others were asked: {self.foreign}"


@contextlib.contextmanager
def browser():
    """Starts Debian's Chromium."""
    # Chromium's sandbox works neither for root nor in most containers.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        program = os.environ.get("LODE_TEST_CHROMIUM") or shutil.which("chromium")
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def visit(address: str, **context):
    """Opens a daemon's page in a new browser. Fails if an error was recorded."""
    with browser() as chromium:
        with visit_in(chromium, address, **context) as visited:
            yield visited


@contextlib.contextmanager
def visit_in(chromium, address: str, **context):
    with contextlib.closing(chromium.new_context(**context)) as opened:
        visited = Visit(opened.new_page(), f"http://{address}")
        yield visited
        visited.check()
