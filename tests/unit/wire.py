"""The names that clients, other versions and stored data rely on, as one JSON document.

`python -m tests.unit.wire` writes it anew. A name that changes or goes breaks a client, a running upgrade or a store:
do that only with a new version of the format. New names are fine.
"""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from readstate import api, settings, telemetry
from readstate.adapters.kafka.topics import Topics
from readstate.adapters.sql import files as sql
from readstate.adapters.valkey.bus import wire
from readstate.adapters.valkey.user_rooms import FAMILIES
from readstate.api import frames
from readstate.domain import announcements, errors, events, model
from readstate.gateway.http.routes import routes
from readstate.transfer import records as transfer_records

GOLDEN = Path(__file__).with_name("wire.json")

EVENTS: dict[str, type[Struct]] = {
    "read-receipts": events.ReadEvent,
    "ON_MSG_UNSENT": events.UnsentEvent,
    "dlt": events.DeadLetter,
}
BUS: dict[str, type[Struct]] = {"batch": wire.Batch, "read-pointer:changes": wire.PointerChange}
STORED: dict[str, type[Struct]] = {
    "read state": model.ReadState,
    "pointer": model.Pointer,
    "preferences": model.Preferences,
    "channel": model.Channel,
    "message": model.Message,
    "undelivered": model.Undelivered,
}


def fields(struct: type[Struct]) -> dict[str, Any]:
    """The encoded form of a struct: whether it is an array, its tag, its fields in order."""
    config = struct.__struct_config__
    names = [field.encode_name for field in structs.fields(struct)]
    return {"array": config.array_like, "tag": config.tag, "fields": names if config.array_like else sorted(names)}


def tagged(union: Any) -> dict[str, Any]:
    """The members of a union by their tags."""
    return {str(shape["tag"]): shape for shape in map(fields, union.__args__)}


def structs_in(module: Any) -> dict[str, Any]:
    """Every struct that a module, or a module of a package, defines and exports, by name."""
    found = {name: one for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, Struct)}
    return {name: fields(one) for name, one in found.items() if f"{one.__module__}.".startswith(f"{module.__name__}.")}


def columns() -> dict[str, list[str]]:
    """The tables of SQLite with their columns; PostgreSQL's are compared with these elsewhere."""
    with sqlite3.connect(":memory:") as database:
        database.executescript(sql.schema("sqlite"))
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: [row[1] for row in database.execute(f"PRAGMA table_info('{table}')")] for table in tables}


def postgres_tables() -> list[str]:
    return sorted(set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", sql.schema("postgres"))))


def document() -> dict[str, Any]:
    topics = Topics()
    groups = [topics.persister, topics.writer, topics.status_update, topics.dead_letters]
    served = [family.name for family in telemetry.REGISTRY.collect() if family.name.startswith("readstate_")]
    return {
        "routes": sorted(f"{route.method} {route.pattern} {sorted(route.query)}" for route in routes()),
        "api": structs_in(api),
        "frames": structs_in(frames),
        "export": tagged(transfer_records.Header | transfer_records.Record),
        "log": {name: fields(one) for name, one in EVENTS.items()} | tagged(events.AnyChannelEvent),
        "bus": {name: fields(one) for name, one in BUS.items()} | tagged(announcements.Announcement),
        "stored": {name: fields(one) for name, one in STORED.items()},
        "sqlite": columns(),
        "postgres": postgres_tables(),
        "keys of a user": list(FAMILIES),
        "topics": [*topics.all],
        "groups": groups,
        "settings": [row.variable for row in settings.describe()],
        "errors": {error.code: error.status for error in errors.by_code().values()},
        "metrics": sorted(served),
    }


def lost(before: Any, now: Any, where: str = "") -> list[str]:
    """What was there before and is not there now, or is something else."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            fault
            for name, value in before.items()
            for fault in (lost(value, now[name], f"{where}.{name}") if name in now else [f"{where}.{name} is gone"])
        ]
    if isinstance(before, list) and isinstance(now, list):
        return [f"{where}: {one!r} is gone" for one in before if one not in now]
    return [] if before == now else [f"{where}: {before!r} became {now!r}"]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")
