"""The functions of the hot state: Lua files, composed to one library.

The names of the library and of its functions end with a hash of their text, so that processes of two versions can use
the same server. A server that lacks the library gets it from the first caller.
"""

from hashlib import sha256
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from .commands import Word, ask

FOLDER = files("readstate.adapters.valkey.lua")
LIBRARIES = "readstate_"
"""The names of all libraries, of whatever version, begin with this."""

_TOPICS = {
    ("user",): ("user", "hot_updates", "room_states"),
    ("badge", "replica"): ("badge_state",),
    ("presence",): ("presence_state",),
    ("channel", "timeline"): ("channel_shard", "timeline_state"),
    ("command", "focus", "generation", "instance", "notes", "positions", "stage"): (),
}
"""The first words of functions' names, and the files that these functions share."""
_REGISTER = """
local function register(name, body, flags)
  redis.register_function{
    function_name = name, flags = flags or {},
    callback = function(keys, arguments)
      KEYS, ARGV, call = keys, arguments, redis.call -- `redis.call` does not exist while a library is loaded
      return body()
    end,
  }
end
"""


def _text_of(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text("utf-8")


def _composed() -> str:
    """The library, with VERSION in place of its hash. A file of a function returns its body, and its flags if any."""
    shared = {"shared", *(name for names in _TOPICS.values() for name in names)}
    names = sorted(file.name.removesuffix(".lua") for file in FOLDER.iterdir() if file.name.endswith(".lua"))
    parts = ["local KEYS, ARGV, call", _text_of("shared"), _REGISTER]
    for words, common in _TOPICS.items():
        parts += ["do", *map(_text_of, common)]
        for name in names:
            if name not in shared and name.partition("_")[0] in words:
                parts.append(f"register('{name}_VERSION', (function()\n{_text_of(name)}\nend)())")
        parts.append("end")
    return "\n".join(parts)


_TEXT = _composed()
VERSION = sha256(_TEXT.encode()).hexdigest()[:12]
LIBRARY = LIBRARIES + VERSION
TEXT = f"#!lua name={LIBRARY}\n" + _TEXT.replace("_VERSION'", f"_{VERSION}'")


class Function:
    """A function of the library."""

    def __init__(self, file: str, *, expires: bool = False) -> None:
        self.name = f"{file}_{VERSION}"
        self.expires = expires
        """Whether a copy that arrives late must do nothing. If so, the last argument is a deadline."""


COMMAND = Function("command")
"""Runs one command on one key."""


def is_lacking(error: Exception) -> bool:
    """Whether the server does not have the library."""
    return isinstance(error, ResponseError) and str(error).startswith("Function not found")


async def load(node: Redis) -> None:
    try:
        await ask(node, "FUNCTION", "LOAD", TEXT)
    except ResponseError as error:
        if "already exists" not in str(error):  # another process has loaded it meanwhile
            raise


async def call(node: Redis, function: Function, key: str, *arguments: Word) -> Any:
    """Call a function with one key on one server."""
    command = ("FCALL", function.name, 1, key, *arguments)
    try:
        return await ask(node, *command)
    except ResponseError as error:
        if not is_lacking(error):
            raise
    await load(node)
    return await ask(node, *command)
