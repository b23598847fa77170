"""Real servers for development and tests, each on a free port of this machine.

    with servers("valkey", "postgres") as stack:
        service = Readstate.open(hot_url=stack.valkey.url, database_url=stack.postgres.url)
        stack.valkey.kill()
        stack.valkey.start()

Single servers take options: `with Valkey(tmp_path / "valkey", persistent=True) as valkey: …`. At the end of its block
a server is stopped and its data are removed. Calls block; in asynchronous code use `asyncio.to_thread`.
"""

from .cluster import ValkeyCluster
from .kafka import Kafka, KafkaCluster
from .postgres import Postgres
from .running import PROFILE, VARIABLES, Stack, Status, check_names, locked, read_state, servers
from .server import ServerFailed, SoftwareMissing
from .valkey import Valkey

__all__ = [
    "PROFILE",
    "VARIABLES",
    "Kafka",
    "KafkaCluster",
    "Postgres",
    "ServerFailed",
    "SoftwareMissing",
    "Stack",
    "Status",
    "Valkey",
    "ValkeyCluster",
    "check_names",
    "locked",
    "read_state",
    "servers",
]
