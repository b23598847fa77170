"""`python -m bench [names] [--quick] [--out FILE]`: measure, show, and write the results."""

import argparse
import importlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import report
from .cases import Setting
from .load import BenchmarkError

NAMES = (
    "reads_batch",
    "reads_single",
    "reads_ws",
    "bulk_sync",
    "big_channel",
    "inbox",
    "badge",
    "threads",
    "live",
    "import_rows",
    "memory",
    "parts",
    "valkey_sync",
    "valkey_memory",
    "valkey_reads",
    "valkey_messages",
    "postgres",
    "embedded_postgres",
    "badge_replica",
    "badge_counting",
    "cluster_reads",
    "cluster_messages",
    "groups",
    "cluster_scale",
    "lost_master",
)
RESULTS = Path(__file__).parent / "RESULTS.md"


def parse(arguments: list[str]) -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast Readstate is.")
    known = ", ".join(NAMES)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {known}, or how some begin; all if none is given")
    parser.add_argument("--quick", action="store_true", help="only see that everything works; writes no results")
    parser.add_argument("--out", type=Path, help="where the results go (bench/RESULTS.md)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if not chosen([name])]:
        parser.error(f"unknown: {', '.join(unknown)}")
    return options


def chosen(names: list[str]) -> list[str]:
    """The benchmarks of these names, or of these beginnings of names: `valkey` is all that begin with `valkey_`."""
    if not names:
        return list(NAMES)
    return [name for name in NAMES if any(name == one or name.startswith(f"{one}_") for one in names)]


def run(name: str, quick: bool, console: Console) -> report.Result:
    """Run one benchmark in a directory of its own."""
    case = importlib.import_module(f"bench.cases.{name}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="readstate-bench-") as directory, console.status(name) as status:
        setting = Setting(Path(directory), quick, lambda text: status.update(f"{name}: {text}"))
        result: report.Result = case.run(setting)
    _show(console, name, result, time.monotonic() - begin)
    return result


def _show(console: Console, name: str, result: report.Result, seconds: float) -> None:
    table = Table(*report.COLUMNS, title=f"{name} ({seconds:.0f} s)", title_justify="left")
    for row in result.rows:
        style = {None: "", True: "green", False: "red"}[row.met]
        table.add_row(*(cell.replace("*", "") for cell in row.cells), style=style)
    console.print(table)


def main() -> int:
    """Exit code 1 if an answer was wrong; a target that is not met is only told."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = parse(sys.argv[1:])
    console = Console()
    out = options.out or (None if options.quick else RESULTS)
    command = " ".join(["python -m bench", *options.names, *(["--quick"] if options.quick else [])])
    results: dict[str, report.Result] = {}
    try:
        for name in chosen(options.names):
            results[name] = run(name, options.quick, console)
            if out is not None:  # after each one: a later one may fail
                report.write(out, results, NAMES, command)
    except BenchmarkError as error:
        console.print(f"[red]error:[/] {error}", highlight=False)
        return 1
    if out is not None:
        console.print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
