"""Background work: consumers of the log (in the loop of `runner.py`), and the periodic jobs that compare and repair the
stores (in the loop of `periodic.py`).
"""

from typing import Final

MESSAGE_WRITER: Final = "message-writer"
RECEIPT_PERSISTER: Final = "read-receipt-persister"
STATUS_UPDATE: Final = "status-update"
DEAD_LETTERS: Final = "dead-letters"
RECONCILER: Final = "reconciler"
AUDITOR: Final = "auditor"

ROLES: Final = (MESSAGE_WRITER, RECEIPT_PERSISTER, STATUS_UPDATE, DEAD_LETTERS, RECONCILER, AUDITOR)
"""Every role of a worker process; by default it has all of them."""
