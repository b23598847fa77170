"""Channels in Valkey: the latest of all channels in a few hashes, and a timeline for each big one.

What was loaded from the durable store is taken only if the hash that it goes into is still the one that was there
before the load was looked at again (its witness): a store that is emptied at any moment loses what it had, and never
ends up with something older than what it had. A timeline is taken only if its channel is there and not newer, so the
same holds for it.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import batched, count, groupby
from struct import Struct as Packing
from typing import Any, NamedTuple, get_args
from zlib import crc32

import msgspec
from msgspec import Struct

from ..model import Channel, Latest, Mode, Position, RoomType
from ..ports import Clock, Count, CountQuery, TimelineLoad
from ..steps import ChannelStep
from ..valkey import Call, Fleet, Generation, Script, slot_of
from .valkey_groups import groups
