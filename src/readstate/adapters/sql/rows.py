"""Decoders of what statements return as JSON. SQLite has 0 and 1 for false and true, hence `strict=False`."""

from msgspec.json import Decoder

from readstate.domain.model import Channel, Member, Message, Pointer

anything = Decoder()
names = Decoder(list[str])
channels = Decoder(list[Channel], strict=False)
messages = Decoder(list[Message], strict=False)
members = Decoder(list[Member], strict=False)
pointers = Decoder(list[tuple[str, str, Pointer]])
positions = Decoder(list[tuple[str, int, str, int]])
"""(room, seq, id, at)"""
