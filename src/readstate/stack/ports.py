"""Free ports of this machine."""

import random
import socket

HOST = "127.0.0.1"
RANGE = range(20_000, 32_768)
"""Below the ports that the system gives to outgoing connections: one of those could take the place of a server that
is down for a moment."""
TRIES = 1_000


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on. Chosen at random: two that choose at once seldom meet."""
    chosen: list[int] = []
    for port in random.sample(RANGE, TRIES):
        if len(chosen) == count:
            return chosen
        if is_free(port):
            chosen.append(port)
    raise OSError(f"no {count} free ports between {RANGE.start} and {RANGE.stop - 1}")


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
