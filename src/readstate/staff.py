"""The workers of a process in the cluster profile: each role with its consumer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .app import Readstate
from .events import DeadLetter, Delivery, UnsentEvent
from .log.kafka import Consumed, KafkaConsumer
from .log.wire import decode_channel_event, decode_letter, decode_read, decode_unsent
from .model import Undelivered
from .telemetry import UNSENT
from .workers import (
    AUDITOR,
    DEAD_LETTERS,
    MESSAGE_WRITER,
    RECEIPT_PERSISTER,
    RECONCILER,
    STATUS_UPDATE,
)
from .workers.message_writer import MessageWriter
from .workers.receipt_persister import ReceiptPersister, SharedPersister
from .workers.runner import Runner

MAX_UNSENT = 5_000
MAX_LETTERS = 100
GATHER_SECONDS = 1.0
"""So long reads and badges are gathered; less, if a batch is full."""
WRITE_SECONDS = 0.01
"""So long messages are: somebody waits for them."""
