"""Transfers and maintenance of models in the page: an interrupted and resumed pull, a push, uploads, diff, copy,
removal, damage, hostile names, prune."""

import json
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import threading

from browser import visit

#: The number of bytes that pass before the connection stalls.
FEW = 40_000


class Wire(threading.Thread):
    """A proxy between a client and a daemon that stalls after a number of bytes from the daemon."""

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
    page.locator("text=There is no such model here").wait_for()
    page.get_by_role("button", name="Pull", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(f"{wire.address}/library/one:latest")
    dialog.get_by_label("The registry speaks HTTP without TLS").check()
    dialog.get_by_role("button", name="Pull", exact=True).click()
    # A part has arrived, and the transfer stalls.
    page.locator(".transfer .facts", has_text=" of ").wait_for()
    # The same holds for single blobs: at least one is in progress.
    page.locator(".transfer summary", has_text="under way").wait_for()
    page.locator(".transfer .parts li", has_text=" of ").first.wait_for()
    page.locator(".transfer").get_by_role("button", name="Cancel").click()
    page.locator(".transfer .state.cancelled").wait_for()
    before = wire.passed
    wire.open.set()
    page.locator(".transfer").get_by_role("button", name="Resume").click()
    page.locator(".transfer .state.done").wait_for()
    assert wire.passed > before
    page.locator(".transfer .parts li", has_text="model.norm.weight").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name=f"{wire.address}/library/one").wait_for()


def compare(visited, one: str) -> None:
    page = visited.page
    visited.go(f"/ui/model?name={one}&tab=map")
    page.locator(".map rect").first.wait_for()
    page.get_by_label("Colours").select_option("difference")
    page.get_by_role("dialog").get_by_role("button", name="other:latest").click()
    page.locator(".legend li", has_text="differs a little").wait_for()
    page.get_by_role("button", name="Compare with another").wait_for()
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
    # An existing name is only replaced after a confirmation.
    act("copied:latest", "Copy to another name")
    page.get_by_role("dialog").get_by_label("New name").fill("made")
    page.get_by_role("dialog").get_by_role("button", name="Copy", exact=True).click()
    digests = {model["name"]: model["digest"] for model in page.request.get(visited.base + "/api/tags").json()["models"]}
    page.get_by_role("dialog", name="Replace made:latest?").get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog", name="Replace made:latest?").wait_for(state="detached")
    now = {model["name"]: model["digest"] for model in page.request.get(visited.base + "/api/tags").json()["models"]}
    assert now == digests, now
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
    dialog = page.locator("dialog", has_text="would be removed:")
    dialog.get_by_role("button", name="Remove all of this").click()
    page.get_by_role("dialog", name="Pruned").wait_for()


def create(visited, folder: str) -> None:
    """Creates models from a folder on the daemon's machine, and from a folder that does not exist."""
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


def push(visited, peer: str) -> None:
    """Shows the plan of a push, and then pushes."""
    page = visited.page
    visited.go("/ui/models")
    for line in ("to be sent", "there already"):
        page.get_by_role("button", name="What to do with made:latest").click()
        page.get_by_role("dialog").get_by_role("button", name="Push to a registry").click()
        dialog = page.locator("dialog", has_text="Show the plan")
        dialog.get_by_label("To", exact=True).fill(f"{peer}/team/made:latest")
        dialog.get_by_label("The registry speaks HTTP without TLS").check()
        dialog.get_by_role("button", name="Show the plan").click()
        row = page.locator("dialog tr", has_text=line)
        row.wait_for()
        assert not row.text_content().startswith("0 "), row.text_content()
        page.get_by_role("dialog").get_by_role("button", name="Push", exact=True).click()
        page.locator(".transfer .state.done").wait_for()
        page.keyboard.press("Escape")
    there = page.request.get(f"http://{peer}/api/tags").json()["models"]
    assert "team/made:latest" in [model["name"] for model in there], there


def send(visited, folder: str) -> None:
    """Uploads files, then a folder. A failed create does not upload them again."""
    page = visited.page
    files = [str(file) for file in pathlib.Path(folder).iterdir() if file.is_file()]
    sent = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/api/lode/upload") else None)
    visited.go("/ui/models")
    for name, field, chosen in (("sent", "files", files), ("whole", "folder", folder)):
        sent.clear()
        page.get_by_role("button", name="Create", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name of the new model").fill(name)
        dialog.locator(f"[name={field}]").set_input_files(chosen)
        # The first create fails after all files have arrived.
        page.route("**/api/create", lambda route: route.fulfill(status=500, body='{"error": "not now"}'), times=1)
        dialog.get_by_role("button", name="Create", exact=True).click()
        page.locator(".transfer .state.failed").wait_for()
        page.locator(".transfer .failure", has_text="not now").wait_for()
        page.locator(".transfer .parts li", has_text="config.json").first.wait_for()
        assert len(sent) == len(files), sent
        page.locator(".transfer").get_by_role("button", name="Try again").click()
        page.locator(".transfer .state.done").wait_for()
        assert len(sent) == len(files), sent
        page.keyboard.press("Escape")
        page.get_by_role("link", name=f"{name}:latest").wait_for()
    models = {model["name"]: model for model in page.request.get(visited.base + "/api/tags").json()["models"]}
    assert models["sent:latest"]["digest"] == models["whole:latest"]["digest"], models


def damage(visited, one: str, home: str) -> None:
    """A damaged blob: it is found, reported with its models and layer, and fetched again."""
    page = visited.page
    tensors = page.request.post(visited.base + "/api/show", data={"model": one, "verbose": True}).json()["tensors"]
    tensor = next(tensor for tensor in tensors if tensor["name"].endswith("up_proj.weight"))
    [blob] = [file for file in pathlib.Path(home).rglob(f"*{tensor['digest'].split(':')[1]}*") if file.is_file()]
    raw = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    visited.go("/ui/store")
    page.get_by_role("button", name="Check all").click()
    found = page.get_by_role("dialog")
    found.locator(".failure", has_text="1 problem").wait_for()
    found.locator("li", has_text=one).locator(f"text={tensor['name']}").first.wait_for()
    found.get_by_role("button", name="Repair").click()
    page.locator("dialog", has_text="1 blob fetched again").wait_for()
    assert blob.read_bytes() == raw
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")


def hostile(visited, folder: str) -> None:
    """A model with hostile names and documents: the page shows them as text."""
    page = visited.page
    script = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\u202e"
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        file = pathlib.Path(place, "model.safetensors")
        raw = file.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header, data = json.loads(raw[8:][:length]), raw[8 + length:]
        for name in (script, "long" * 500):
            header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [len(data), len(data) + 16]}
            data += bytes(16)
        told = json.dumps(header).encode()
        file.unlink()
        file.write_bytes(struct.pack("<Q", len(told)) + told + data)
        made = {"model": "hostile", "path": place, "system": script, "license": script * 50, "template": script, "stream": False}
        answer = page.request.post(visited.base + "/api/create", data=made)
        assert answer.ok, answer.text()
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 740})
        for tab, ready in (("overview", "text=Types of tensors"), ("tensors", ".table-body .row"), ("map", ".map rect"), ("documents", "text=onerror"), ("lineage", "text=Made from it"), ("blobs", ".table-body .row")):
            visited.go(f"/ui/model?name=hostile:latest&tab={tab}")
            page.locator(ready).first.wait_for()
            assert page.locator("main script, main img, dialog img").count() == 0, tab
            wide = page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= width, f"{tab} is {wide} wide at {width}"
        visited.go("/ui/model?name=hostile:latest&tab=tensors")
        page.get_by_label("Search by name, type or digest").fill("onerror")
        page.locator(".table-body button", has_text="onerror").click()
        page.get_by_role("dialog").locator(".histogram").wait_for()
        assert page.locator("dialog img").count() == 0
        page.keyboard.press("Escape")
    assert page.evaluate("() => window.pwned") is None
    page.set_viewport_size({"width": 1280, "height": 800})


def main() -> None:
    address, peer, folder, home = sys.argv[1:]
    wire = Wire(peer)
    with visit(address) as visited:
        pull(visited, wire)
        create(visited, folder)
        visited.page.request.post(visited.base + "/api/copy", data={"source": "made", "destination": "other"})
        compare(visited, f"{wire.address}/library/one:latest")
        push(visited, peer)
        send(visited, folder)
        damage(visited, f"{wire.address}/library/one:latest", home)
        manage(visited)
        hostile(visited, folder)
        # Creates an earlier version, which prune can remove.
        copied = {"source": "made", "destination": f"{wire.address}/library/one:latest"}
        assert visited.page.request.post(visited.base + "/api/copy", data=copied).ok
        upkeep(visited)
    print("ok")


main()
