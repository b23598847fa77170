"""What a benchmark found, as text for people: in the terminal and in RESULTS.md."""

import os
import platform
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

TITLE = """# Results

Made by `make bench` (`python -m bench`), which replaces the section of each benchmark that it runs and
keeps the notes. Servers that are compared were measured in the same run, in alternating rounds, and their
figures are medians of the rounds; cold starts, memory and parts are measured once. Any answer that is an
error or not as expected fails the run.
"""
COLUMNS = ("what", "Readstate", "compared with", "ratio", "target", "")


@dataclass(frozen=True)
class Row:
    """One figure, what it is compared with, and whether it is good enough (None: nothing is asked)."""

    what: str
    figure: str
    other: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """One for each column."""
        verdict = {None: "", True: "met", False: "**not met**"}[self.met]
        return (self.what, self.figure, self.other, self.ratio, self.target, verdict)


@dataclass
class Result:
    """All that one benchmark found."""

    about: str
    rows: list[Row] = field(default_factory=list)

    def add(
        self, what: str, figure: str, other: str = "", ratio: str = "", target: str = "", met: bool | None = None
    ) -> None:
        """Add a row."""
        self.rows.append(Row(what, figure, other, ratio, target, met))


def write(path: Path, results: dict[str, Result], names: Sequence[str], command: str) -> None:
    """Replace the sections of these results; other sections and all notes stay."""
    old = path.read_text() if path.exists() else ""
    sections = []
    for name in names:
        if name in results:
            sections.append(_section(name, results[name], command, _notes(old, name)))
        elif kept := re.search(rf"^## {name}\n.*?<!-- /notes -->\n", old, re.DOTALL | re.MULTILINE):
            sections.append(kept[0])
    path.write_text("\n".join([TITLE, *sections]))


def _section(name: str, result: Result, command: str, notes: str) -> str:
    table = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells for row in result.rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    when = f"{datetime.now(UTC):%Y-%m-%d}, `{command}`, on {machine()}."
    return "\n".join(
        [f"## {name}", "", result.about, "", *lines, "", when, "", f"<!-- notes:{name} -->{notes}<!-- /notes -->", ""]
    )


def _notes(text: str, name: str) -> str:
    found = re.search(rf"<!-- notes:{name} -->(.*?)<!-- /notes -->", text, re.DOTALL)
    return found[1] if found else "\n"


def machine() -> str:
    """What this runs on, without names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({platform.machine()}), Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"


def number(value: float) -> str:
    """A number with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×" if value >= 2 else f"{value:.2f}×"
