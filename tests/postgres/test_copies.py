"""Several processes of one command: what no new start can set right ends all of them, with the reason."""

import asyncio
from pathlib import Path

import pytest

from tests.contract import postgres
from tests.servers import Child

NOWHERE = "no_such_database"


@pytest.mark.parametrize(
    ("command", "flags"), [("serve", ["--workers", "2"]), ("worker", ["--processes", "2"])], ids=["serve", "worker"]
)
async def test_settings_that_are_refused_again_and_again_end_all_processes(
    command: str, flags: list[str], tmp_path: Path
) -> None:
    server = await asyncio.to_thread(postgres.server)
    child = Child(
        tmp_path,
        command,
        *flags,
        profile="cluster",
        database_url=f"{server.url.rpartition('/')[0]}/{NOWHERE}",
        hot_url="redis://127.0.0.1:1",
        kafka_bootstrap="127.0.0.1:1",
    )
    child.launch()
    try:
        assert await asyncio.to_thread(child.wait_for_exit) == 1
        assert "has ended 3 times because its settings are refused" in "".join(child.log[-2:]), "".join(child.log)
        assert NOWHERE in "".join(child.log[-2:])
        assert not any("Traceback" in line for line in child.log), "".join(child.log)
    finally:
        child.close()
