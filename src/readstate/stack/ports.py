"""Free ports of this machine."""

import random
import socket

HOST = "127.0.0.1"
RANGE = range(20_000, 32_768)
"""Below the system's range for outgoing connections: one of those could take the port of a server that is down for a
short time."""
TRIES = 1_000


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no server listens. Random, so that concurrent callers rarely collide."""
    chosen: list[int] = []
    for port in random.sample(RANGE, TRIES):
        if len(chosen) == count:
            return chosen
        if is_free(port):
            chosen.append(port)
    raise OSError(f"no {count} free ports between {RANGE.start} and {RANGE.stop - 1}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
