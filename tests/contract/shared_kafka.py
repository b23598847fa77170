"""One Kafka for all processes of a test run: it starts several seconds long, and topics of tests never meet.

A keeper process starts it and tells where it is. It runs as long as somebody is connected to the keeper, so it ends
with the last test process, however that ends.
"""

import contextlib
import fcntl
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import json

from readstate.stack import Kafka
from readstate.stack.server import Record

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
START_SECONDS = 180.0


def connect(options: Sequence[str]) -> tuple[Kafka, socket.socket]:
    """The Kafka of this run, which stays as long as the socket is open. Who starts it gives Java the options."""
    home = Path(tempfile.gettempdir()) / f"readstate-tests-{RUN[:8]}"
    home.mkdir(mode=0o700, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = _connected(home)
        if keeper is None:
            Kafka(home / "kafka").prepare(lambda _: None)  # fails here where there is no Java
            words = [sys.executable, "-P", __file__, str(home), *options]
            pid = os.posix_spawn(sys.executable, words, os.environ, setsid=True)  # nobody waits for it
            end = time.monotonic() + START_SECONDS
            while (keeper := _connected(home)) is None:
                assert os.waitpid(pid, os.WNOHANG) == (0, 0), "Kafka does not start"
                assert time.monotonic() < end, f"Kafka has not started in {START_SECONDS:.0f} s"
                time.sleep(0.05)
    data, record = json.decode(keeper.recv(4096), type=tuple[str, Record])
    return Kafka(Path(data), record=record), keeper


def _connected(home: Path) -> socket.socket | None:
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        keeper.connect(str(home / "keeper"))
    except OSError:
        keeper.close()
        return None
    return keeper


def keep(home: Path, options: Sequence[str]) -> None:
    """Kafka, as long as anybody is connected. The options are for Java."""
    address = home / "keeper"
    with contextlib.suppress(FileNotFoundError):
        address.unlink()
    data = home / f"kafka-{os.getpid()}"
    with Kafka(data, options=options) as kafka, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        where = json.encode((str(data), kafka.record))
        users = {listener.accept()[0]}
        for user in users:
            user.send(where)
        while users:
            for ready in select.select([listener, *users], [], [])[0]:
                if ready is listener:
                    user = listener.accept()[0]
                    user.send(where)
                    users.add(user)
                elif not ready.recv(1):
                    users.remove(ready)
                    ready.close()
        address.unlink()
    with contextlib.suppress(OSError):  # somebody else begins here
        (home / "lock").unlink()
        home.rmdir()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2:])
