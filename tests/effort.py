"""How hard tests try. `make test` tries shortly; `make test-long` runs what is marked long, and looks for longer."""

import os
from collections.abc import Iterable

import pytest

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
LONGER = 20
"""So many times more examples in a long run."""


def long(values: Iterable[object]) -> list[object]:
    """Parameters that only a long run tries: others have shown the same with another seed or size."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def examples(shortly: int) -> int:
    """How many examples Hypothesis tries, or how many rounds dice play."""
    return shortly * LONGER if LONG else shortly
