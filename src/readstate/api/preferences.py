"""What users want of one channel, and of all of them.

A preference that is stored as it is given has the same name in `domain.model.Preferences` and in the structs here;
`plain` copies it. `muted` and `archived` are stored as a time and a seq.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from readstate.domain.model import FOREVER, CountPreference, Preferences, ReceiptsPreference

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


class PreferencesLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, frozen=True, gc=False):
    """What a member wants of a channel."""

    muted: Annotated[bool | Time, about("Whether it leaves the totals; a time is when the mute ends.")] = False
    count: Count = "all"
    receipts: ReceiptsShown = "public"
    pinned: Pinned = False
    archived: Annotated[
        bool | Annotated[int, Meta(ge=0)],
        about("Left out of the inbox until somebody else writes; a number: until that happens after this seq."),
    ] = False


def preferences_line(preferences: Preferences) -> PreferencesLine:
    """Preferences as an export writes them."""
    until, seq = preferences.muted_until, preferences.archived_seq
    return PreferencesLine(
        muted=until == FOREVER or until or False,
        archived=False if seq < 0 else seq,
        **plain(preferences, PreferencesLine),
    )


def plain(source: PutPreferences | PreferencesLine | Preferences, target: type[Struct]) -> dict[str, Any]:
    """The preferences of `source` that `target` has under the same name: they are stored as they are given."""
    names = (name for name in source.__struct_fields__ if name in target.__struct_fields__)
    return {name: value for name in names if (value := getattr(source, name)) is not UNSET}


class PutUserPreferences(Request, frozen=True, kw_only=True):
    """What a user wants of all channels; what is left out stays."""

    receipts: Annotated[ReceiptsShown | UnsetType, Meta(examples=["private"])] = UNSET


class UserPreferencesView(Struct, frozen=True, gc=False):
    """What a user wants of all channels."""

    receipts: Annotated[ReceiptsShown, Meta(examples=["private"])]
