"""Lua scripts: one file each, with the shared part before it."""

from hashlib import sha1
from importlib.resources import files
from typing import Self


class Script:
    """A script, known to the server by the hash of its text."""

    expires = False
    """Whether a copy that arrives late must do nothing: then its last argument is a deadline."""

    def __init__(self, *texts: str) -> None:
        self.text = "\n".join(texts)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, *names: str) -> Self:
        """From files beside a package; the first ones are shared by several."""
        return cls(*[(files(package) / f"{name}.lua").read_text("utf-8") for name in names])
