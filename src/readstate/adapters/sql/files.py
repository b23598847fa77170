"""SQL in files: statements by name, and migrations by number."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from readstate.domain.errors import ConfigurationError

from .preferences import expand

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW = re.compile(r"\(\?(?:, (?:\?|'[^']*'))*\)")
_VALUE = re.compile(r"(?<![:\w]):([a-z_]+)")
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


def queries(dialect: str, file: str = "queries.sql") -> dict[str, str]:
    """The statements of a file, by the names in its `-- name:` lines."""
    text = _read(dialect, file)
    parts = _NAME.split(text)[1:]
    return {name: expand(body.strip(), dialect) for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def migrations(dialect: str) -> dict[int, str]:
    names = sorted(entry.name for entry in (files(__package__) / dialect).iterdir())
    found = ((match, name) for name in names if (match := _MIGRATION.fullmatch(name)))
    return {int(match[1]): _read(dialect, name) for match, name in found}


def check_version(version: int, newest: int) -> tuple[int, int]:
    """(current, wanted) schema version; equal when nothing is missing."""
    if version > newest:
        raise ConfigurationError(
            f"the database has schema {version}, made by a newer Readstate; this one knows up to {newest}"
        )
    return version, newest


@cache
def schema(dialect: str) -> str:
    return _read(dialect, "schema.sql")


def _read(dialect: str, name: str) -> str:
    return (files(__package__) / dialect / name).read_text("utf8")


def for_rows(statement: str, sizes: Sequence[int]) -> dict[int, str]:
    """An `INSERT … VALUES (?, …)` for many rows at once, in a few sizes, so that each size is prepared once."""
    row = _ROW.findall(statement)[0]
    return {size: statement.replace(row, ", ".join([row] * size)) for size in sizes}


def numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """A statement with numbered ($1, $2, …) instead of named (:user, …) parameters, and the names in order."""
    names = tuple(dict.fromkeys(_VALUE.findall(statement)))
    places = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _VALUE.sub(lambda match: places[match[1]], statement), names
