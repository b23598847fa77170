"""What users want of one channel, and of all of them."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from readstate.domain.model import CountPreference, ReceiptsPreference

from .fields import NOW, Muted, Request, Time, about

Count = Annotated[CountPreference, about("What is counted as unread: everything, only mentions, or nothing.")]
ReceiptsShown = Annotated[ReceiptsPreference, about("Whether others see what the user has read.")]
Pinned = Annotated[bool, about("First in every order of the inbox.")]
_Archived = Annotated[bool, about("Left out of the inbox until somebody else writes.")]


class PutPreferences(Request, frozen=True, kw_only=True):
    """What a user wants of one channel; what is left out stays."""

    muted: Annotated[
        bool | Time | UnsetType,
        about("Whether it leaves the totals; a time is when the mute ends.", "2026-01-31T10:30:00Z"),
    ] = UNSET
    count: Count | UnsetType = UNSET
    receipts: ReceiptsShown | UnsetType = UNSET
    pinned: Annotated[Pinned | UnsetType, Meta(examples=[True])] = UNSET
    archived: _Archived | UnsetType = UNSET


class PreferencesView(Struct, frozen=True, gc=False):
    """What a user wants of one channel."""

    muted: Annotated[Muted, Meta(examples=[True])]
    muted_until: Annotated[
        int | None, about("The end of the mute in ms; null when it has none or there is no mute.", NOW + 3_600_000)
    ]
    count: Count
    receipts: Annotated[ReceiptsShown, Meta(examples=["public"])]
    pinned: Pinned
    archived: _Archived


class PutUserPreferences(Request, frozen=True, kw_only=True):
    """What a user wants of all channels; what is left out stays."""

    receipts: Annotated[ReceiptsShown | UnsetType, Meta(examples=["private"])] = UNSET


class UserPreferencesView(Struct, frozen=True, gc=False):
    """What a user wants of all channels."""

    receipts: Annotated[ReceiptsShown, Meta(examples=["private"])]
