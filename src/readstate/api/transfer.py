"""What an import and an erasure did."""

from typing import Annotated

from msgspec import Struct

from .fields import about


class Refused(Struct, frozen=True, gc=False):
    """A line that was not taken, and why."""

    line: Annotated[int, about("The number of the line.", 3)]
    reason: Annotated[str, about("Why it was not taken.", "there is no channel 'general'")]


class ImportReport(Struct, frozen=True, gc=False):
    """What became of the lines that were given."""

    accepted: Annotated[int, about("Records taken, also those that were there already.", 2)]
    refused: Annotated[list[Refused], about("The lines that were not taken.")]
    next_line: Annotated[int, about("Where to go on: after the last line, or at the refused one where it stopped.", 4)]


class Erased(Struct, frozen=True, gc=False):
    """How much of a user there was."""

    channels: Annotated[int, about("Memberships, also past ones.", 2)]
    threads: Annotated[int, about("Threads followed, now or once.", 1)]
    receipts: Annotated[int, about("Read pointers, in channels and threads.", 3)]
    badge: Annotated[int, about("Notes for the offline badge, as receiver and as sender.", 4)]
