"""`readstate dlt`: events that failed three times and could not be repaired."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec import Struct
from msgspec.structs import asdict

from readstate.domain.errors import NotFound, TooLarge
from readstate.settings import Settings

from .commands import LOOK_AFTER, Commands
from .output import note, plain, present, table, utc
from .target import Json, within

if TYPE_CHECKING:
    from readstate.ports import DurableDeadLetters, ListedDeadLetter
    from readstate.profiles.service import Readstate

app = Commands(
    LOOK_AFTER, "dlt", "Dead letters: events that failed three times and could not be repaired (cluster profile)."
)

PAGE = 100
"""Dead letters in one query: the database cannot return more large ones at once."""
T = TypeVar("T")
Ids = Annotated[list[int] | None, typer.Argument(help="Ids from the list.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All listed ones.")]


class NotReplayed(Struct, frozen=True):
    id: int
    reason: str


class Replayed(Struct):
    replayed: list[int]
    refused: list[NotReplayed]


# ---------------------------------------------------------------- list


@app.with_examples("readstate dlt list", "readstate dlt list --json", name="list")
def list_(
    after: Annotated[int, typer.Option(min=0, help="Only those after this id.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most rows to list.")] = 100,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """List them: topic, offset, time and reason. With --json also the events, which may hold texts of messages."""
    settings.require_cluster()
    found = _with_store(settings, lambda store: store.list_dead_letters(after, limit + 1))
    page = found[:limit]
    rows = table("#id", "topic", "partition/offset", "failed at", "#tries", "reason")
    for one in page:
        offset = one.place.rpartition("/")[0]
        rows.add_row(str(one.id), plain(one.topic), offset, utc(one.failed_at), str(one.tries), plain(one.error))
    more = ["", f"there are more: readstate dlt list --after {page[-1].id}"] if len(found) > limit else []
    present([asdict(one) for one in page], as_json, *([rows, *more] if page else ["no dead letters"]))


# ---------------------------------------------------------------- replay


@app.with_examples("readstate dlt replay 3 4", "readstate dlt replay --all")
def replay(ids: Ids = None, everything: All = False, as_json: Json = False, *, settings: Settings) -> None:
    """Put events back on their topics, after the reason of their failure is gone. Exit code 1 if one is refused.

    Reads merge, so they can always be replayed. A change of a channel is applied as if it came now: look at the event
    first (readstate dlt list --json).
    """
    _check_choice(ids, everything)
    settings.require_cluster()
    found = asyncio.run(_replay(settings, ids))
    present(found, as_json, f"replayed {len(found.replayed):,}")
    if found.refused and not as_json:
        for one in found.refused:
            note(f"dead letter {one.id} cannot be replayed: {plain(one.reason)}")
        note("readstate dlt drop removes them from the list")
    raise typer.Exit(1 if found.refused else 0)


async def _replay(settings: Settings, ids: Sequence[int] | None) -> Replayed:
    from readstate.profiles.service import Readstate

    report = Replayed([], [])
    async with Readstate.open(settings=settings) as service:
        async for page in _chosen(service.durable, ids):
            await _replay_page(service, page, report)
    return report


async def _replay_page(service: "Readstate", page: "Sequence[ListedDeadLetter]", report: Replayed) -> None:
    """First to its topic, then off the list: after a crash between the two it is replayed twice, which is harmless."""
    sender = service.cluster.sender
    by_topic: dict[str, list[ListedDeadLetter]] = {}
    for letter in page:
        try:
            sender.check_again(letter.topic, letter.event.encode())
        except ValueError as error:
            report.refused.append(NotReplayed(letter.id, str(error)))
        else:
            by_topic.setdefault(letter.topic, []).append(letter)
    for topic, letters in by_topic.items():
        try:
            await _put_back(service, topic, letters, report)
        except TooLarge:  # one of them: send each on its own
            for letter in letters:
                try:
                    await _put_back(service, topic, [letter], report)
                except TooLarge as error:
                    report.refused.append(NotReplayed(letter.id, error.explained))


async def _put_back(service: "Readstate", topic: str, letters: "Sequence[ListedDeadLetter]", report: Replayed) -> None:
    await service.cluster.sender.again(topic, [letter.event.encode() for letter in letters])
    done = [letter.id for letter in letters]
    await service.durable.drop_dead_letters(done)
    report.replayed += done


# ---------------------------------------------------------------- drop


@app.with_examples("readstate dlt drop 3", "readstate dlt drop --all --yes")
def drop(
    ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Remove events from the list for good."""
    _check_choice(ids, everything)
    settings.require_cluster()
    if not yes:
        what = "all dead letters" if everything else f"dead letters {', '.join(map(str, ids or ()))}"
        typer.confirm(f"Remove {what}? Their events are lost.", abort=True, err=True)

    async def work(store: "DurableDeadLetters") -> int:
        dropped = 0
        async for page in _chosen(store, ids):
            dropped += await store.drop_dead_letters([one.id for one in page])
        return dropped

    dropped = _with_store(settings, work)
    present({"dropped": dropped}, as_json, f"removed {dropped:,}")


# ---------------------------------------------------------------- helpers


def _check_choice(ids: Sequence[int] | None, everything: bool) -> None:
    if bool(ids) == everything:
        raise typer.BadParameter("give the ids of dead letters, or --all", param_hint="IDS")


async def _chosen(store: "DurableDeadLetters", ids: Sequence[int] | None) -> "AsyncIterator[list[ListedDeadLetter]]":
    """The named ones, if all of them exist; without ids, all."""
    if ids:
        found = await store.find_dead_letters(ids)
        if missing := sorted(set(ids) - {one.id for one in found}):
            raise NotFound(f"there is no dead letter {', '.join(map(str, missing))}; nothing was done")
        yield found
        return
    after = 0
    while page := await store.list_dead_letters(after, PAGE):
        yield page
        after = page[-1].id


def _with_store(settings: Settings, work: Callable[["DurableDeadLetters"], Awaitable[T]]) -> T:
    """Opens the database alone, so that the list can be read while every other server is down."""
    from readstate.profiles.service import open_dead_letters

    return within(open_dead_letters(settings), work)
