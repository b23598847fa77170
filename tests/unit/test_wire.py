"""Names on the wire and in stores keep their meaning, whatever the code calls them."""

import json

from tests.unit.wire import GOLDEN, STORED, document, fields, lost


def test_no_name_on_the_wire_is_gone() -> None:
    assert lost(json.loads(GOLDEN.read_text()), document()) == []


def test_arrays_keep_the_order_of_their_fields() -> None:
    golden = json.loads(GOLDEN.read_text())["stored"]

    for name, struct in STORED.items():
        before, now = golden[name]["fields"], fields(struct)["fields"]
        assert now[: len(before)] == before


def test_a_name_that_goes_or_changes_is_noticed() -> None:
    before = {"api": {"Unread": {"array": False, "fields": ["label", "unread"]}}}

    assert lost(before, before) == []
    assert lost(before, {"api": {}}) == [".api.Unread is gone"]
    assert lost(before, {"api": {"Unread": {"array": False, "fields": ["unread", "more"]}}}) == [
        ".api.Unread.fields: 'label' is gone"
    ]
    assert lost(before, {"api": {"Unread": {"array": True, "fields": ["label", "unread"]}}}) == [
        ".api.Unread.array: False became True"
    ]
