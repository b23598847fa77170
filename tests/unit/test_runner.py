"""The loop of a worker, where its log fails in the middle of a batch."""

import asyncio
from collections.abc import Sequence

from readstate.errors import LogUnavailable
from readstate.log.kafka_consumer import Consumed
from readstate.workers.runner import Runner
from tests.conftest import eventually

Ends = dict[tuple[str, int], tuple[int, int]]


class Scripted:
    """One batch after the other, of a log that goes away whenever a batch takes long."""

    def __init__(self, *batches: list[Consumed]) -> None:
        self.batches = list(batches)
        self.committed: list[Consumed] = []
        self.breaths = 0

    async def batch(self, most: int, seconds: float) -> list[Consumed]:
        return self.batches.pop(0)

    async def commit(self, records: Sequence[Consumed]) -> None:
        self.committed += records

    async def breathe(self) -> None:
        self.breaths += 1
        raise LogUnavailable("Kafka cannot be read")

    async def ends(self) -> Ends:
        return {}

    async def check(self, ends: Ends) -> None: ...

    async def close(self) -> None: ...


async def test_a_batch_that_takes_long_gives_signs_of_life_and_a_log_that_goes_away_meanwhile_loses_none_of_it() -> (
    None
):
    records = [Consumed("t", 0, offset, b"", b"%d" % offset) for offset in range(3)]
    consumer = Scripted(records)
    done: list[bytes] = []
    fails = [False, True, True, True]  # from the end

    async def handle(batch: Sequence[Consumed]) -> None:
        if batch[0].offset <= 1 <= batch[-1].offset and fails.pop():
            raise ValueError("not now")
        before = consumer.breaths

        async def has_breathed_twice() -> bool:
            return consumer.breaths >= before + 2

        await eventually(has_breathed_twice, "it has given two signs of life")
        done.extend(record.value for record in batch)

    async def bury(record: Consumed, reason: str, tries: int) -> None:
        raise AssertionError(reason)

    runner = Runner("test", consumer, handle, bury, most=10, seconds=0, pauses=(0, 0, 0), breath=0.001)
    await runner.turn()
    assert done == [b"0", b"1", b"2"]
    assert consumer.committed == records
    assert runner.state == "ok"
    after = consumer.breaths
    await asyncio.sleep(0.01)
    assert consumer.breaths == after
