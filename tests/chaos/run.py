"""One storm from its seed: a fresh cluster, clients, the faults, peace, and the judgement."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.fleet import running_cluster

from .clients import FANOUT, clients_of, furnish, wired
from .devices import devices
from .judge import Judge
from .machines import proxied_backends
from .records import Records
from .schedule import SERVES, SESSION_MS, STORM_SECONDS, WORKERS, schedule
from .storm import Storm

FINISH_SECONDS = 100.0
IMPATIENT = {
    "session_timeout": SESSION_MS,
    "produce_timeout": 100,  # so that reads go to the spool
    "wait_timeout": 2,
    "shutdown_grace": 2,
    "fanout_max_members": FANOUT,
}


async def storm(
    seed: int, directory: Path, tell: Callable[[str], None] = print, seconds: float = STORM_SECONDS
) -> None:
    """Fails with everything that is wrong afterwards."""
    proxied = await asyncio.to_thread(proxied_backends)
    started = time.monotonic()

    def say(text: str) -> None:
        tell(f"[{time.monotonic() - started:5.1f}] {text}")

    async with running_cluster(directory, proxied.backends, serves=SERVES, workers=WORKERS, **IMPATIENT) as fleet:
        records, stopping = Records(), asyncio.Event()
        urls = [one.url for one in fleet.serves]
        async with wired(urls, records) as wire, devices(seed, urls, records, stopping) as live:
            clients = clients_of(seed, wire, records, stopping)
            await furnish(clients)
            say("the storm begins")
            tempest = Storm(proxied, fleet, schedule(seed, seconds), say)
            work = [asyncio.create_task(client.run()) for client in clients]
            try:
                await tempest.rage(seconds)
                stopping.set()
                await tempest.mend()
                say("everything runs again")
                finished, unfinished = await asyncio.wait(work, timeout=FINISH_SECONDS)
            finally:
                await asyncio.to_thread(proxied.heal)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
            say("everybody has finished")
            faults = await Judge(fleet, records, live).judge()
        faults = records.violations + faults
        faults += [f"a client has not finished: {task}" for task in unfinished]
        faults += [f"a client has failed: {task.exception()!r}" for task in finished if task.exception() is not None]
        say(f"judged: {len(records.sent)} messages, {len(faults)} faults, answers {records.answers}")
        if faults:
            logs = Path(tempfile.gettempdir()) / f"readstate-chaos-{seed}.log"
            logs.write_text(fleet.logs(0))
            raise AssertionError("\n".join([f"seed {seed}; all that the processes said is in {logs}", *faults]))
