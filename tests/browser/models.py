"""Models from one daemon to another in the page: a pull that is cut off and resumed, a difference, a copy, a removal, a prune."""

import socket
import sys
import threading

from browser import visit

#: Bytes that pass before the wire is cut.
FEW = 40_000


class Wire(threading.Thread):
    """Passes what a client and a daemon say to each other; for a while no more than so many bytes of the daemon's."""

    def __init__(self, address: str):
        super().__init__(daemon=True)
        host, port = address.split(":")
        self.peer = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = threading.Event()
        self.passed = 0
        self.start()

    def run(self) -> None:
        while True:
            client, _ = self.listener.accept()
            daemon = socket.create_connection(self.peer)
            threading.Thread(target=self.send, args=(client, daemon, False), daemon=True).start()
            threading.Thread(target=self.send, args=(daemon, client, True), daemon=True).start()

    def send(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while piece := source.recv(4096):
                if counts:
                    if self.passed > FEW:
                        self.open.wait()
                    self.passed += len(piece)
                sink.sendall(piece)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


def pull(visited, wire: Wire) -> None:
    page = visited.page
    visited.go("/ui/models")
    page.locator("text=No model is here").wait_for()
    page.get_by_role("button", name="Pull", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(f"{wire.address}/library/one:latest")
    dialog.get_by_label("The registry speaks HTTP without TLS").check()
    dialog.get_by_role("button", name="Pull", exact=True).click()
    # Some of it is here, and no more comes.
    page.locator(".transfer .facts", has_text=" of ").wait_for()
    page.locator(".transfer").get_by_role("button", name="Cancel").click()
    page.locator(".transfer .state.cancelled").wait_for()
    before = wire.passed
    wire.open.set()
    page.locator(".transfer").get_by_role("button", name="Resume").click()
    page.locator(".transfer .state.done").wait_for()
    assert wire.passed > before
    page.keyboard.press("Escape")
    page.get_by_role("link", name=f"{wire.address}/library/one").wait_for()


def compare(visited, one: str) -> None:
    page = visited.page
    visited.go(f"/ui/model?name={one}&tab=map")
    page.locator(".map rect").first.wait_for()
    page.get_by_label("Colours").select_option("difference")
    page.get_by_role("dialog").get_by_role("button", name="other:latest").click()
    page.locator(".legend li", has_text="the same").wait_for()
    page.get_by_label("Colours").select_option("sharing")
    page.locator(".legend li", has_text="in this model alone").wait_for()


def manage(visited) -> None:
    page = visited.page
    visited.go("/ui/models")

    def act(name: str, action: str) -> None:
        page.get_by_role("button", name=f"What to do with {name}").click()
        page.get_by_role("dialog").get_by_role("button", name=action).click()

    act("other:latest", "Copy to another name")
    page.get_by_role("dialog").get_by_label("New name").fill("copied")
    page.get_by_role("dialog").get_by_role("button", name="Copy", exact=True).click()
    page.get_by_role("link", name="copied:latest").wait_for()
    act("copied:latest", "Pin")
    page.locator(".row", has_text="copied:latest").locator("text=pinned").wait_for()
    act("copied:latest", "Delete")
    page.locator("dialog", has_text="It is pinned").wait_for()
    page.keyboard.press("Escape")
    act("other:latest", "Delete")
    page.locator("dialog", has_text="Nothing is freed").get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("link", name="other:latest").wait_for(state="detached")


def upkeep(visited) -> None:
    page = visited.page
    visited.go("/ui/store")
    page.get_by_role("button", name="Check all").click()
    page.locator("dialog", has_text="No damage").wait_for()
    page.keyboard.press("Escape")
    panel = page.locator(".panel", has=page.get_by_role("heading", name="Prune"))
    panel.get_by_role("button", name="Show what would go").click()
    page.get_by_role("dialog").get_by_role("button", name="Show what would go").click()
    dialog = page.locator("dialog", has_text="would be removed")
    dialog.get_by_role("button", name="Remove all of this").click()
    page.get_by_role("dialog", name="Pruned").wait_for()


def create(visited, folder: str) -> None:
    """From a folder of the daemon's machine, and of nothing."""
    page = visited.page
    visited.go("/ui/models")
    page.get_by_role("button", name="Create", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the new model").fill("made")
    dialog.get_by_role("button", name="Create", exact=True).click()
    dialog.locator(".failure", has_text="Say what the model is made of").wait_for()
    dialog.locator("[name=from]").fill(folder)
    dialog.get_by_role("button", name="Create", exact=True).click()
    page.locator(".transfer .state.done").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="made:latest").wait_for()


def main() -> None:
    address, peer, folder = sys.argv[1:]
    wire = Wire(peer)
    with visit(address) as visited:
        pull(visited, wire)
        create(visited, folder)
        visited.page.request.post(visited.base + "/api/copy", data={"source": "made", "destination": "other"})
        compare(visited, f"{wire.address}/library/one:latest")
        manage(visited)
        # An earlier version, for a prune.
        copied = {"source": "made", "destination": f"{wire.address}/library/one:latest"}
        assert visited.page.request.post(visited.base + "/api/copy", data=copied).ok
        upkeep(visited)
    print("ok")


main()
