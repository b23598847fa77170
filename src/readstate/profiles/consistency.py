"""The two answers to who else writes to the stores.

`Exclusive`: only this process. Its hot state can be dropped and reloaded at any time, because the log is applied before
a call returns. `Shared`: other processes write too. The hot store may have reads that only the log has so far, so a
reload of one user could lose them for a while.
"""


class Exclusive:
    """This process has the stores to itself."""

    def delays_live_cursors(self) -> bool:
        return False

    def recounts_announced_messages(self) -> bool:
        return False

    def looks_up_late_receipts(self) -> bool:
        return False


class Shared:
    """Other processes use the same stores."""

    def delays_live_cursors(self) -> bool:
        return True

    def recounts_announced_messages(self) -> bool:
        return True

    def looks_up_late_receipts(self) -> bool:
        return True
