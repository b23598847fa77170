"""docs/bus.md names every field that travels on the bus, and no other."""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from readstate.adapters.valkey.bus import wire
from readstate.adapters.valkey.bus.bus import Channels
from readstate.domain import announcements, model

PAGE = (Path(__file__).parents[2] / "docs" / "bus.md").read_text()
OTHERS: Mapping[str, type[Struct]] = {
    str(kind.__struct_config__.tag): kind
    for kind in announcements.Announcement.__args__
    if kind is not announcements.PointerMoved
}


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    return re.split(rf"^#+ {re.escape(title)}$", PAGE, flags=re.MULTILINE)[1].split("\n#")[0]


def rows(text: str) -> dict[str, str]:
    """The fields of its table, each with what is said of it."""
    return dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|$", text, re.MULTILINE))


def fields(kind: type[Struct]) -> set[str]:
    return {field.encode_name for field in structs.fields(kind)}


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_a_batch_and_its_reads_have_the_fields_that_are_documented() -> None:
    assert rows(section("Batches")).keys() == fields(wire.Batch)
    reads = rows(section("Reads"))
    assert reads.keys() == fields(wire.PointerChange)
    assert named(reads["before"]) == fields(wire.Before)


def test_every_kind_of_announcement_is_there_with_its_fields() -> None:
    described = set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE))
    assert described == OTHERS.keys()
    for kind, struct in OTHERS.items():
        assert rows(section(f"`{kind}`")).keys() == fields(struct), kind
    assert OTHERS.keys() | {"pointer"} == {
        str(one.__struct_config__.tag) for one in announcements.Announcement.__args__
    }


def test_a_message_is_described_whole() -> None:
    message = rows(section("`message`"))
    assert named(message["message"]) == fields(model.Message)
    assert named(message["reached"]) == fields(model.Undelivered)


def test_channels_have_the_names_that_are_documented() -> None:
    for prefix in ("", "chat:"):
        for name in Channels.named(prefix):
            assert f"`{name}`" in PAGE
    assert f"`{Channels.named('', 2).reads}`" in PAGE


def test_the_version_is_the_documented_one() -> None:
    assert rows(section("Batches"))["v"].startswith(f"{wire.VERSION}.")
