"""The gateway and the Valkey client extend classes that are no public API. Pins hold them; this says when they move."""

import hashlib
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from redis.asyncio.connection import AbstractConnection
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import Server, ServerState

ROOT = Path(__file__).parents[2]
PINNED = {"uvicorn": "minor", "httptools": "minor", "websockets": "major", "redis": "major"}
READ: dict[Any, str] = {
    HttpToolsProtocol: "18fdf324b11bf160",
    RequestResponseCycle: "e67d470d435dcc1c",
    FlowControl: "126debcdaa894c83",
    WebSocketsSansIOProtocol: "0bbcec98938432f7",
    Server: "06e799f7c58f8be6",
    ServerState: "f2260fbf10154746",
    AbstractConnection.send_packed_command: "baaeabd916209157",
    AbstractConnection._send_packed_command: "875d11f341700316",
}
"""The classes and methods, as they were when the code that extends them was written."""


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        one.name: one for one in map(Requirement, project["dependencies"] + project["optional-dependencies"]["cluster"])
    }


@pytest.mark.parametrize(("name", "part"), PINNED.items())
def test_the_library_is_pinned_tightly(name: str, part: str) -> None:
    allowed = requirements()[name].specifier
    installed = Version(version(name))
    after = f"{installed.major}.{installed.minor + 1}" if part == "minor" else f"{installed.major + 1}.0"
    before = f"{installed.major}.{installed.minor - 1}.99" if part == "minor" else f"{installed.major - 1}.99"

    assert installed in allowed
    assert Version(after) not in allowed
    assert Version(before) not in allowed


@pytest.mark.parametrize("name", PINNED)
def test_the_lock_is_within_the_pin(name: str) -> None:
    found = re.search(rf"^{name}==(\S+)", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE)

    assert found
    assert Version(found[1]) in requirements()[name].specifier


@pytest.mark.parametrize("extended", READ, ids=lambda one: one.__qualname__)
def test_what_is_extended_is_as_it_was_read(extended: Any) -> None:
    found = hashlib.sha256(inspect.getsource(extended).encode()).hexdigest()[:16]

    assert found == READ[extended], (
        f"{extended.__module__}.{extended.__qualname__} has changed: read what changed, compare it with the code that "
        "extends it (gateway/http, gateway/ws, cli/serving.py, adapters/valkey/pool.py), then "
        "renew the digest"
    )
