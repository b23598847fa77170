"""Examples of every request and answer, made of those that stand beside their fields."""

from collections.abc import Iterator
from typing import Any

from msgspec import NODEFAULT, UNSET, Struct, json, to_builtins
from msgspec import inspect as kinds

from readstate.api.fields import EARLIER, NOW
from readstate.api.preferences import PreferencesLine
from readstate.transfer import records

_RECORDS: tuple[Struct, ...] = (
    records.Header(version=1),
    records.ChannelLine(
        channel_id="general", kind="group", name="General", last_seq=41, last_id="msg_41", last_at=EARLIER
    ),
    records.ThreadLine(channel_id="general", thread_id="msg_42"),
    records.MessageLine(channel_id="general", id="msg_42", seq=42, at=NOW, sender_id="alice", text="Lunch at one?"),
    records.MessageLine(channel_id="general", id="msg_43", at=NOW + 1000, sender_id="carol", thread_id="msg_42"),
    records.MemberLine(
        channel_id="general",
        user_id="bob",
        preferences=PreferencesLine(pinned=True),
        last_read=records.LastReadLine(seq=41),
    ),
    records.FollowLine(channel_id="general", thread_id="msg_42", user_id="bob"),
    records.PointerLine(channel_id="general", user_id="weather-bot", last_read=records.LastReadLine(seq=40)),
    records.UserLine(user_id="bob", receipts="private"),
)
"""A file that can be imported."""


def _inside(value: Any) -> Iterator[Struct]:
    """A struct, and those that it is made of."""
    if isinstance(value, Struct):
        yield value
        for name in value.__struct_fields__:
            yield from _inside(getattr(value, name))


_OF_RECORDS: dict[type[Struct], Struct] = {
    type(part): part
    for record in (*_RECORDS, records.LatestLine(id="msg_41", at=EARLIER, sender_id="carol", preview="Good morning"))
    for part in _inside(record)
}


def lines() -> str:
    """The examples of records as a file that can be imported."""
    return b"".join(json.encode(record) + b"\n" for record in _RECORDS).decode()


def of_types(types: tuple[type[Struct], ...]) -> dict[str, Any]:
    """The examples of these structs as OpenAPI names them."""
    return {type_.__name__: {"value": of(type_)} for type_ in types}


def of(type_: type[Struct]) -> Any:
    """The example of a struct as plain JSON."""
    return to_builtins(_OF_RECORDS[type_]) if type_ in _OF_RECORDS else _example(kinds.type_info(type_))


def _example(kind: kinds.Type) -> Any:
    match kind:
        case kinds.Metadata(extra_json_schema={"examples": [example, *_]}):
            return to_builtins(example)
        case kinds.Metadata(type=inner):
            return _example(inner)
        case kinds.StructType(cls=cls, fields=fields):
            values = {field.encode_name: _value(cls, field) for field in fields}
            return {name: value for name, value in values.items() if value is not UNSET}
        case kinds.UnionType(types=choices):
            shown = [choice for choice in choices if isinstance(choice, kinds.StructType | kinds.ListType)]
            return _example(shown[0]) if shown else None
        case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item):
            return [_example(item)]
        case kinds.DictType(value_type=item):
            return {"bob": _example(item)}
        case kinds.LiteralType(values=[first, *_]):
            return first
        case kinds.BoolType():
            return False
    raise TypeError(f"give an example of {kind} beside its field")


def _value(cls: type[Struct], field: kinds.Field) -> Any:
    """An example, or the default. What a request need not say and has no example is left out."""
    match field.type:
        case kinds.Metadata(extra_json_schema={"examples": _}):
            return _example(field.type)
    if field.required:
        return _example(field.type)
    config = cls.__struct_config__
    if config.omit_defaults or config.forbid_unknown_fields or field.default is NODEFAULT:
        return UNSET
    return field.default
