"""Lua scripts. Each is composed of files, the shared ones first."""

from hashlib import sha1
from importlib.resources import files
from typing import Self


class Script:
    """The server knows a script by the hash of its text."""

    expires = False
    """Whether a copy that arrives late must do nothing. If so, the last argument is a deadline."""

    def __init__(self, *texts: str) -> None:
        self.text = "\n".join(texts)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, *names: str) -> Self:
        """Join the files `names` of a package."""
        return cls(*[(files(package) / f"{name}.lua").read_text("utf-8") for name in names])
