"""Events that can't be done: tried three times, put aside, repaired or listed, and played again by command."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import eventually

from .conftest import WorkingService, listed

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {condition} AND nextval('refused') <= {times} THEN
        RAISE EXCEPTION 'refused by the test';
    END IF;
    RETURN NEW;
END
$$
"""
"""A fault of the database that concerns one row only. A sequence counts on when a transaction is undone."""
TRIGGER = "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
FOR_EVER = 1_000_000
TRIES = 4
"""The first one, and three more."""


@pytest.fixture(autouse=True)
async def _mended(service: WorkingService) -> AsyncIterator[None]:
    """The next test has the same database."""
    yield
    await allow(service)


async def refuse(service: WorkingService, table: str, condition: str, times: int = FOR_EVER) -> None:
    await service.sql("CREATE SEQUENCE refused")
    await service.sql(REFUSE.format(condition=condition, times=times))
    await service.sql(TRIGGER.format(table=table))


async def allow(service: WorkingService) -> None:
    await service.sql("DROP FUNCTION IF EXISTS refuse CASCADE")
    await service.sql("DROP SEQUENCE IF EXISTS refused")


async def until_listed(service: WorkingService, count: int) -> list[tuple[str, str, str]]:
    async def are_there() -> bool:
        return len(await listed(service)) == count

    await eventually(are_there, f"{count} dead letters are listed")
    return [(str(topic), str(error), str(event)) for topic, error, event in await listed(service)]


async def test_what_nobody_can_read_stops_neither_its_channel_nor_its_reader(service: WorkingService) -> None:
    await service.chat.send("alice", "m1")
    for junk in (b"", b"{", b'{"kind":"message","channel_id":"general"}', b"\xff\xfe", b"null"):
        await service.put(service.topics.messages, junk)
        await service.put(service.topics.reads, junk)

    await service.chat.send("alice", "m2")
    await service.chat.read("bob", up_to="m1")

    await service.all_done()
    assert await service.chat.count("bob") == 1
    letters = await until_listed(service, 10)
    assert {topic for topic, *_ in letters} == {service.topics.messages, service.topics.reads}
    assert (await service.receipts())["bob", "general"][1] == 1


async def test_a_message_that_fails_is_listed_and_can_be_played_again(service: WorkingService) -> None:
    await refuse(service, "messages", "NEW.id = 'odd'")
    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(service.rs.cluster.log, "_wait_timeout", 1.0)
        result = await service.chat.post("alice", id="odd", text="hello")
    assert result["status"] == "accepted"  # the log has it, and nobody has said yet what becomes of it
    await service.chat.send("alice", "m2")
    [(topic, error, event)] = await until_listed(service, 1)
    assert "refused by the test" in await service.command("dlt", "list")
    assert topic == service.topics.messages
    assert "refused by the test" in error
    assert '"odd"' in event
    assert await service.chat.count("bob") == 1

    await allow(service)
    assert "replayed 1" in await service.command("dlt", "replay", "--all")

    await service.all_done()
    assert await service.chat.count("bob") == 2
    assert await service.chat.waiting("bob", order="oldest") == ["m2", "odd"]
    assert await listed(service) == []


async def test_a_read_that_failed_is_repaired_from_what_is_known(service: WorkingService) -> None:
    await service.chat.send("alice", "m1", "m2", "m3")
    await service.all_done()
    await refuse(service, "read_receipts", "NEW.user_id = 'bob'", times=TRIES)

    await service.chat.read("bob", up_to="m2")

    assert await service.chat.count("bob") == 1

    async def is_repaired() -> bool:
        return (await service.receipts()).get(("bob", "general"), (0, 0))[1] == 2

    await eventually(is_repaired, "the database has what bob has read")
    assert await listed(service) == []


async def test_a_read_that_cant_be_repaired_is_listed_and_can_be_played_again(service: WorkingService) -> None:
    await service.chat.send("alice", "m1", "m2", "m3")
    await service.all_done()
    await refuse(service, "read_receipts", "NEW.user_id = 'bob'")
    await service.chat.read("bob", up_to="m2")
    [(topic, _, event)] = await until_listed(service, 1)
    assert topic == service.topics.reads
    assert '"bob"' in event

    await allow(service)
    assert "replayed 1" in await service.command("dlt", "replay", "--all")

    await service.all_done()
    assert (await service.receipts())["bob", "general"][1] == 2
    assert await listed(service) == []
