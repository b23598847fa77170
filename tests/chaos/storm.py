"""Does to a cluster what a schedule says, and mends it in the end."""

import asyncio
import time
from collections.abc import Callable, Sequence

from readstate.stack.server import Server as StackServer
from tests.cluster.fleet import ClusterProcesses
from tests.servers import Child

from .machines import ProxiedBackends
from .schedule import Fault

Tell = Callable[[str], None]
DELAY_SECONDS = 0.05
STOP_SECONDS = 60.0


class Storm:
    """Faults over one fleet. Everything that blocks is done in threads."""

    def __init__(self, proxied: ProxiedBackends, fleet: ClusterProcesses, faults: Sequence[Fault], tell: Tell) -> None:
        self._proxied = proxied
        self._faults = faults
        self._tell = tell
        self._fleet = fleet
        self._hit: set[str] = set()
        self._children: dict[str, Child] = {child.data_dir.name: child for child in fleet.children}
        backends = proxied.backends
        self._servers: dict[str, StackServer] = {
            "valkey": backends.valkey,
            "kafka": backends.kafka,
            "postgres": backends.postgres,
        }

    async def rage(self, seconds: float) -> None:
        """All the faults at their times; returns when the time is over and each has had its end."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                group.create_task(self._befall(fault, started))
            await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))

    async def mend(self) -> None:
        """Everything runs and is ready."""
        await asyncio.to_thread(self._proxied.heal)
        await asyncio.to_thread(self._fleet.mend)

    async def _befall(self, fault: Fault, started: float) -> None:
        await asyncio.sleep(max(0.0, started + fault.at - time.monotonic()))
        if fault.whom in self._hit:  # a stop may take longer than the schedule thought
            return
        self._hit.add(fault.whom)
        self._tell(str(fault))
        await asyncio.to_thread(self._begin, fault)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(self._end, fault)
        self._hit.discard(fault.whom)

    def _begin(self, fault: Fault) -> None:
        if fault.what in {"cut", "stall", "delay"}:
            proxy = self._proxied.proxies[fault.whom]
            if fault.what == "delay":
                proxy.delay(DELAY_SECONDS)
            else:
                proxy.cut() if fault.what == "cut" else proxy.stall()
        elif fault.what == "flush":
            self._proxied.backends.valkey.ask("FLUSHALL")
        elif fault.whom in self._servers:
            server = self._servers[fault.whom]
            server.kill() if fault.what == "kill" else server.pause()
        else:
            child = self._children[fault.whom]
            if child.runs and fault.what == "stop":
                self._stop(child)
            elif child.runs:
                child.kill() if fault.what == "kill" else child.pause()

    def _stop(self, child: Child) -> None:
        """What was taken is finished first, but that must not take for ever."""
        started = time.monotonic()
        code = child.stop(STOP_SECONDS)
        self._tell(f"{child.data_dir.name} has stopped after {time.monotonic() - started:.1f} s, with code {code}")

    def _end(self, fault: Fault) -> None:
        if fault.what in {"cut", "stall", "delay"}:
            self._proxied.proxies[fault.whom].heal()
        elif fault.whom in self._servers:
            server = self._servers[fault.whom]
            server.start() if fault.what == "kill" else server.resume()
        else:
            child = self._children[fault.whom]
            if child.runs:
                child.resume()
            else:
                child.close()
                child.launch()
