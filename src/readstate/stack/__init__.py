"""Real servers for development and tests, each on a free port of this machine.

    with servers("valkey", "postgres") as stack:
        service = Readstate.open(hot_url=stack.valkey.url, database_url=stack.postgres.url)
        stack.valkey.kill()
        stack.valkey.start()

Single servers take options: `with Valkey(tmp_path / "valkey", persistent=True) as valkey: …`. At the end of its block
a server is stopped and its data are removed. Calls block; in asynchronous code use `asyncio.to_thread`.
"""

from .cluster import ValkeyCluster as ValkeyCluster
from .kafka import Kafka as Kafka
from .kafka import KafkaCluster as KafkaCluster
from .postgres import Postgres as Postgres
from .running import PROFILE as PROFILE
from .running import VARIABLES as VARIABLES
from .running import Stack as Stack
from .running import Status as Status
from .running import check_names as check_names
from .running import locked as locked
from .running import read_state as read_state
from .running import servers as servers
from .server import ServerFailed as ServerFailed
from .server import SoftwareMissing as SoftwareMissing
from .valkey import Valkey as Valkey
