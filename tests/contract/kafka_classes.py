"""The classes of Kafka as Java keeps them once they are loaded: with them a broker of a test starts with half the work.

`python -m tests.contract.kafka_classes` makes them, beside the jars. Without them, or with those of another Java,
everything works as well.
"""

import os
import tempfile
from pathlib import Path

from readstate.stack import Kafka
from readstate.stack.kafka import QUICK, VERSION
from readstate.stack.maven import cache_directory

ARCHIVE = cache_directory() / f"kafka-{VERSION}-tests.jsa"


def options() -> tuple[str, ...]:
    """For the Java of a broker that tests start."""
    return (*QUICK, f"-XX:SharedArchiveFile={ARCHIVE}") if ARCHIVE.exists() else QUICK


def make() -> None:
    """A broker writes them down when it ends."""
    partial = ARCHIVE.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as home:
        broker = Kafka(Path(home, "kafka"), options=(*QUICK, f"-XX:ArchiveClassesAtExit={partial}"))
        try:
            broker.start()
        finally:
            broker.stop()
    if partial.exists():
        partial.replace(ARCHIVE)


if __name__ == "__main__" and not ARCHIVE.exists():
    try:
        make()
    except Exception as error:  # everything works without them as well
        print(f"the classes of Kafka are not kept: {error}")
