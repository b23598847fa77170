"""What differs between a process that has its stores to itself and one of many that share them.

Each method is one decision, named for its effect. Services call it and know no profile.
"""

from typing import Protocol


class Consistency(Protocol):
    """Chosen by the profile: see `profiles/consistency.py`."""
