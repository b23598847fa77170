"""Where the services of tests keep everything: in files and memory of their own, or on real servers.

`TEST_STORES=servers` puts every service of the run on servers; some tests ask for both kinds in any run.
"""

import asyncio
import os
import secrets
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

EMBEDDED, SERVERS = "embedded", "servers"
chosen = os.environ.get("TEST_STORES", EMBEDDED)
"""What services use that are not told otherwise."""
assert chosen in {EMBEDDED, SERVERS}, f"TEST_STORES is {EMBEDDED} or {SERVERS}"
ALL = [SERVERS] if chosen == SERVERS else [EMBEDDED, SERVERS]

EMPTY = """
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        IF name NOT IN ('schema_migrations', 'meta', 'lease') THEN
            EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
    UPDATE meta SET value = CASE key WHEN 'generation' THEN 0 ELSE (random() * 9007199254740991)::bigint END;
    UPDATE lease SET owner = '', token = 0, expires_at = 0;
END
$$
"""
"""A database as it was made. Emptying one takes a twentieth of the time that another one takes."""

_used: dict[Path, dict[str, Any]] = {}
_emptied: list[str] = []


def settings_of(data_dir: Path) -> dict[str, Any]:
    """The settings of a service with this data directory; one that starts there again finds what it had."""
    if chosen == EMBEDDED:
        return {}
    if data_dir not in _used:
        from tests.contract import postgres, valkey

        url = _emptied.pop() if _emptied else _wait_for(postgres.fresh_database())
        prefix = f"{secrets.token_hex(6)}:"  # what others have left under theirs is in nobody's way
        _used[data_dir] = {"database_url": url, "hot_url": valkey.single().url, "key_prefix": prefix}
    return _used[data_dir]


def give_back(below: Path) -> None:
    """The services whose data lie below a directory are over; others may have their databases."""
    for data_dir in [used for used in _used if used.is_relative_to(below)]:
        from tests.contract import postgres

        url = _used.pop(data_dir)["database_url"]
        _wait_for(postgres.command(EMPTY, url))
        _emptied.append(url)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The answer, whether this thread has a loop or not."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
