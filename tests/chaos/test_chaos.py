"""A cluster in a storm loses nothing that it has acknowledged. `make chaos SEEDS="1 2 3"` runs as many as one wants."""

from pathlib import Path

import pytest

from tests.effort import long

from .run import storm


@pytest.mark.parametrize("seed", [1, *long([2, 3])])
async def test_a_storm_takes_nothing_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    await storm(seed, tmp_path)
