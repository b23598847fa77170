"""`readstate doctor`: checks whether the service can run well, and says what to do."""

import typer
from rich.text import Text

from .commands import RUN, Commands
from .output import plain, present, table
from .target import Json, Target

app = Commands(RUN)

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.with_examples("readstate doctor", "readstate doctor --json")
def doctor(as_json: Json = False, *, target: Target) -> None:
    """Check settings, data directory, secrets, every server and the service; exit code 1 if a check fails."""
    from .doctor_checks import examine

    findings = list(examine(target))
    failed = any(found.state == "fail" for found in findings)
    rows = table("", "check", "finding", "what to do")
    for found in findings:
        detail = "\n".join(map(plain, found.detail.splitlines()))
        rows.add_row(Text(found.state, STYLES[found.state]), found.check, detail, found.advice)
    present({"findings": findings, "ok": not failed}, as_json, rows)
    raise typer.Exit(failed)
