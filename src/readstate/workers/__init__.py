"""What runs in the background: consumers of the log, and those that look after the stores."""

from typing import Final

MESSAGE_WRITER: Final = "message-writer"
RECEIPT_PERSISTER: Final = "read-receipt-persister"
STATUS_UPDATE: Final = "status-update"
DEAD_LETTERS: Final = "dead-letters"
RECONCILER: Final = "reconciler"
AUDITOR: Final = "auditor"

ROLES: Final = (MESSAGE_WRITER, RECEIPT_PERSISTER, STATUS_UPDATE, DEAD_LETTERS, RECONCILER, AUDITOR)
"""Every role that a worker process can have; without a choice it has them all."""
