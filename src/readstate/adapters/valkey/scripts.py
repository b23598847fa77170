"""Lua scripts. Each is composed of files, the shared ones first."""

from hashlib import sha1
from importlib.resources import files

import msgspec

Word = str | bytes | int
"""A part of a command."""
encode = msgspec.msgpack.Encoder().encode
"""Packs an argument that scripts unpack."""


class Script:
    """The server knows a script by the hash of its text."""

    expires = False
    """Whether a copy that arrives late must do nothing. If so, the last argument is a deadline."""

    def __init__(self, *texts: str) -> None:
        self.text = "\n".join(texts)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def script(*names: str) -> Script:
    """A script of the hot state, composed of files in `lua`. The part that all of them share comes first."""
    folder = files("readstate.adapters.valkey.lua")
    return Script(*[(folder / f"{name}.lua").read_text("utf-8") for name in ("shared", *names)])


COMMAND = script("command")
"""Runs one command on one key."""
