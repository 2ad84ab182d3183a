"""The model that sees pictures, and the file of a picture, from the environment of a session."""

import base64
import os
import pathlib

MODEL = os.environ.get("LODE_SEEING_MODEL")
PICTURE = pathlib.Path(os.environ.get("LODE_PICTURE", ""))


def data_url() -> str:
    return f"data:image/jpeg;base64,{encoded()}"


def encoded() -> str:
    return base64.b64encode(PICTURE.read_bytes()).decode()
