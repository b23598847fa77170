"""Preferences in SQL. The columns of `members` follow the struct, so a new preference needs no new statement.

Statements leave the columns to `expand`:

{preferences}           their names
{preferences given}     pinned = :pinned, …
{preferences excluded}  pinned = excluded.pinned, …
{preferences default}   pinned = 0, …
{preferences of m}      coalesce(m.pinned, 0), …: the elements of the struct's array, with its change number
{preferences of p}      taken from the struct's array
"""

from typing import Any

from msgspec import structs

from readstate.domain.model import Preferences

_FIELDS = structs.fields(Preferences)
_COLUMNS = {field.name: field.default for field in _FIELDS if field.name != "change"}
_TYPES: dict[type, str] = {bool: "boolean", int: "bigint", str: "text"}


def expand(statement: str, dialect: str) -> str:
    if "{preferences" not in statement:
        return statement
    defaults = {name: _literal(default, dialect) for name, default in _COLUMNS.items()}
    stored = {field.name: field.name if field.name in _COLUMNS else "user_change" for field in _FIELDS}
    for token, columns in {
        "{preferences}": _COLUMNS,
        "{preferences given}": (f"{name} = :{name}" for name in _COLUMNS),
        "{preferences excluded}": (f"{name} = excluded.{name}" for name in _COLUMNS),
        "{preferences default}": (f"{name} = {default}" for name, default in defaults.items()),
        "{preferences of m}": (f"coalesce(m.{column}, {defaults.get(name, 0)})" for name, column in stored.items()),
        "{preferences of p}": (
            f"p ->> {place}" if dialect == "sqlite" else f"(p ->> {place})::{_TYPES[type(field.default)]}"
            for place, field in enumerate(_FIELDS)
            if field.name in _COLUMNS
        ),
    }.items():
        statement = statement.replace(token, ", ".join(columns))
    return statement


def _literal(default: Any, dialect: str) -> str:
    if isinstance(default, bool):
        return str(int(default)) if dialect == "sqlite" else str(default).lower()
    return repr(default)
