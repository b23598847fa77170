"""What differs between a process that has its stores to itself and one of many that share them.

Each method is one decision, named for its effect. Services call it and know no profile.
"""

from typing import Protocol


class Consistency(Protocol):
    """Chosen by the profile: see `profiles/consistency.py`."""

    def delays_live_cursors(self) -> bool:
        """Live events carry a cursor from before every announcement that may be in flight.

        Announcements of other processes take time to arrive. A cursor beyond them would hide what they announce from a
        device that resumes.
        """

    def recounts_announced_messages(self) -> bool:
        """Counts are rendered again when a message arrives that counts sent before may include.

        The hot store shows messages of other processes before their announcements arrive, so a device would count them
        twice.
        """

    def looks_up_late_receipts(self) -> bool:
        """Receipts are looked up again some seconds after a device caught up.

        Where a persister stores reads after they are acknowledged, the first lookup may not find all of them.
        """
