"""Changes of scripts/fuzz-http to the requests that schemathesis generates.

A generated name matches no model, so most names are replaced by an existing one. Fields that would
make the daemon read local files, contact other machines or compute for a long time are removed or
limited.
"""

import schemathesis

MODEL = "tiny"
# Fields that create or remove a name; never the name that the other requests need.
CHANGES = {"/api/create": "model", "/api/copy": "destination", "/api/delete": "model", "/api/lode/unpin": "model"}
# Calls that look up an unknown name at other registries.
NEVER_OTHERS = {"/api/lode/plan"}
LIMITS = {"max_tokens": 64, "max_completion_tokens": 64, "max_output_tokens": 64, "num_predict": 64, "n": 8, "best_of": 8}


def is_to_be_known(name, path):
    """True if a name is replaced. Some are kept, so that unknown models are requested too."""
    return path in NEVER_OTHERS or len(name) % 4 != 3


def limited(value):
    """Returns the value with limits on the numbers that determine the work."""
    if isinstance(value, dict):
        return {key: smaller(key, limited(item)) for key, item in value.items()}
    if isinstance(value, list):
        return [limited(item) for item in value]
    return value


def smaller(key, value):
    most = LIMITS.get(key)
    if most is not None and isinstance(value, (int, float)) and not isinstance(value, bool) and value > most:
        return most
    return value


@schemathesis.serializer("application/x-tar")
def archive(context, value):
    """Sends the bytes unchanged; they are at most the beginning of an archive."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.hook
def before_call(context, case, kwargs):
    if not isinstance(case.body, dict):
        return
    path = case.operation.path
    body = limited(case.body)
    # `path` names a file of this machine.
    body.pop("path", None)
    changed = CHANGES.get(path)
    for key in ("model", "name", "from", "source", "destination", "a", "b"):
        if not isinstance(body.get(key), str):
            continue
        if key == changed or (key == "name" and changed is not None):
            if MODEL in body[key]:
                body[key] = "other"
        elif is_to_be_known(body[key], path):
            body[key] = MODEL
    if isinstance(body.get("models"), list):
        known = lambda name: isinstance(name, str) and is_to_be_known(name, path)
        body["models"] = [MODEL if known(name) else name for name in body["models"]]
    options = body.get("options")
    if "/lode/" not in path and ("options" not in body or isinstance(options, dict)) and "model" in body:
        body["options"] = {"num_predict": 64, **(options or {})}
    case.body = body
