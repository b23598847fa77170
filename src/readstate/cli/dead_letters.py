"""`readstate dlt`: events that failed again and again and could not be repaired."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer
from msgspec import Struct
from msgspec.structs import asdict

from readstate.domain.errors import NotFound, TooLarge
from readstate.ports import DurableDeadLetters, ListedDeadLetter
from readstate.profiles.service import Readstate, open_dead_letters, require_cluster
from readstate.settings import Settings

from .help import examples
from .output import console, moment, plain, show, show_json, table
from .place import Config, DataDir, Json, Place
from .repair import PANEL

app = typer.Typer()
dlt = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: events that failed again and again and could not be repaired (cluster profile).",
)
app.add_typer(dlt, name="dlt", rich_help_panel=PANEL)

PAGE = 100
"""Of large ones the database can't put more into one answer."""
T = TypeVar("T")
Ids = Annotated[list[int] | None, typer.Argument(help="Numbers from the list.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All that are listed.")]

REPLAY = (
    "Put events back on their topics, once what they failed of is mended. Exit code 1 if one can't be.\n\n"
    "Reads merge, so they may always be played again. What changes a channel is applied as if it had come only now: "
    "look at the event first (readstate dlt list --json)."
)


class NotReplayed(Struct, frozen=True):
    """A letter that can't be played again."""

    id: int
    reason: str


class Replayed(Struct):
    """What became of letters."""

    replayed: list[int]
    refused: list[NotReplayed]


# ---------------------------------------------------------------- list


@dlt.command("list", rich_help_panel=PANEL, epilog=examples("readstate dlt list", "readstate dlt list --json"))
def list_(
    after: Annotated[int, typer.Option(min=0, help="Only those after this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
    as_json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List them: reason, topic, place and time. With --json also the events, which may hold texts of messages."""
    settings = _settings(data_dir, config)
    found = _with_store(settings, lambda store: store.list_dead_letters(after, limit + 1))
    page = found[:limit]
    if as_json:
        show_json([asdict(one) for one in page])
        return
    if not page:
        show("no dead letters")
        return
    rows = table("#id", "topic", "place", "failed at", "#tries", "reason")
    for one in page:
        place = one.place.rpartition("/")[0]
        rows.add_row(str(one.id), plain(one.topic), place, moment(one.failed_at), str(one.tries), plain(one.error))
    show(rows)
    if len(found) > limit:
        show("", f"there are more: readstate dlt list --after {page[-1].id}")


# ---------------------------------------------------------------- replay


@dlt.command(
    rich_help_panel=PANEL, help=REPLAY, epilog=examples("readstate dlt replay 3 4", "readstate dlt replay --all")
)
def replay(
    ids: Ids = None, everything: All = False, as_json: Json = False, data_dir: DataDir = None, config: Config = None
) -> None:
    """Put events back on their topics."""
    _check_choice(ids, everything)
    settings = _settings(data_dir, config)
    found = asyncio.run(_replay(settings, ids))
    if as_json:
        show_json(found)
    else:
        show(f"played {len(found.replayed):,} again")
        for one in found.refused:
            console(stderr=True).print(f"letter {one.id} can't be played again: {plain(one.reason)}")
        if found.refused:
            console(stderr=True).print("readstate dlt drop removes them from the list")
    raise typer.Exit(1 if found.refused else 0)


async def _replay(settings: Settings, ids: Sequence[int] | None) -> Replayed:
    report = Replayed([], [])
    async with Readstate.open(settings=settings) as service:
        async for page in _chosen(service.durable, ids):
            await _replay_page(service, page, report)
    return report


async def _replay_page(service: Readstate, page: Sequence[ListedDeadLetter], report: Replayed) -> None:
    """First onto its topic, then off the list: after a crash between the two it comes twice, which is harmless."""
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
            await _play(service, topic, letters, report)
        except TooLarge:  # one of them: the others shall not wait for it
            for letter in letters:
                try:
                    await _play(service, topic, [letter], report)
                except TooLarge as error:
                    report.refused.append(NotReplayed(letter.id, error.explained))


async def _play(service: Readstate, topic: str, letters: Sequence[ListedDeadLetter], report: Replayed) -> None:
    await service.cluster.sender.again(topic, [letter.event.encode() for letter in letters])
    done = [letter.id for letter in letters]
    await service.durable.drop_dead_letters(done)
    report.replayed += done


# ---------------------------------------------------------------- drop


@dlt.command(rich_help_panel=PANEL, epilog=examples("readstate dlt drop 3", "readstate dlt drop --all --yes"))
def drop(
    ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Remove events from the list for good."""
    _check_choice(ids, everything)
    settings = _settings(data_dir, config)
    if not yes:
        what = "all dead letters" if everything else f"dead letters {', '.join(map(str, ids or ()))}"
        typer.confirm(f"Remove {what}? What they hold is lost.", abort=True, err=True)

    async def work(store: DurableDeadLetters) -> int:
        dropped = 0
        async for page in _chosen(store, ids):
            dropped += await store.drop_dead_letters([one.id for one in page])
        return dropped

    dropped = _with_store(settings, work)
    if as_json:
        show_json({"dropped": dropped})
    else:
        show(f"removed {dropped:,}")


# ---------------------------------------------------------------- which, and where


def _check_choice(ids: Sequence[int] | None, everything: bool) -> None:
    if bool(ids) == everything:
        raise typer.BadParameter("name dead letters by their numbers, or all of them with --all", param_hint="IDS")


async def _chosen(store: DurableDeadLetters, ids: Sequence[int] | None) -> AsyncIterator[list[ListedDeadLetter]]:
    """Those named, if all of them are there; or all."""
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


def _settings(data_dir: DataDir, config: Config) -> Settings:
    settings = Place(data_dir=data_dir, config=config).settings()
    require_cluster(settings)
    return settings


def _with_store(settings: Settings, work: Callable[[DurableDeadLetters], Awaitable[T]]) -> T:
    """The database alone: the list can be looked at while everything else is down."""

    async def run() -> T:
        async with open_dead_letters(settings) as store:
            return await work(store)

    return asyncio.run(run())
