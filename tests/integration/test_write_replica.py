"""The write replica takes over what the hot store has, and answers for it then."""

from readstate.hot.write_replica import ReplicatedBadges, WriteReplica
from readstate.telemetry import BADGE_WRITES_SAVED
from tests.contract.conftest import ManualClock, badges_over
from tests.contract.test_hot_badges import load, wrote
from tests.contract.valkey import PATIENCE, cluster, hot_store, single


def saved() -> float:
    return BADGE_WRITES_SAVED._value.get()  # type: ignore[no-any-return]


async def test_senders_that_the_replica_was_filled_with_cause_no_write() -> None:
    async with hot_store(single) as store:
        replica = WriteReplica(cluster().url, prefix=store.prefix, answer_seconds=PATIENCE)
        badges = ReplicatedBadges(badges_over(store, ManualClock()), replica)
        await load(badges, 0, "alice", "wörld {}")
        await badges.add([wrote("carol", 1)])
        assert not replica.rests, "it took all that was there"
        before = saved()
        assert await badges.add([wrote("alice", 2), wrote("wörld {}", 2), wrote("carol", 2)]) == set()
        assert saved() == before + 3
        assert await badges.count("bob") == 3
        await badges.close()
