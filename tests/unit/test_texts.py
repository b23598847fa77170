"""Texts from outside that no store could keep, or not whole, are refused before they get there."""

import pytest

from readstate.domain.errors import Invalid, InvalidId, TooLarge
from readstate.domain.rules import check_id, check_text


@pytest.mark.parametrize("field", ["text", "preview", "name", "avatar"])
@pytest.mark.parametrize("text", ["\0", "before\0after", "at the end\0"])
def test_a_nul_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(Invalid, match=f"{field} must not hold a NUL character") as refused:
        check_text(text, field, 100)
    assert refused.value.field == field


def test_no_id_holds_a_nul() -> None:
    with pytest.raises(InvalidId):
        check_id("a\0b")


def test_every_other_character_is_welcome() -> None:
    check_text("\x01\t\n\x7f\ufffd\U0010ffff é 😀", "text", 100)
    check_text("", "text", 0)
    check_text(None, "text", 0)


def test_the_limit_counts_bytes() -> None:
    check_text("é" * 50, "text", 100)
    with pytest.raises(TooLarge):
        check_text("é" * 51, "text", 100)
