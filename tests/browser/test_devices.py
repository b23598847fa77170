"""Two people with two devices each: what one device does is seen on the others."""

import pytest
from playwright.async_api import expect

from tests.browser.driving import Demo

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_read_on_one_device_clears_the_other(demo: Demo) -> None:
    await demo.alice_phone.shows("Weekend trip", "3")
    await demo.alice_laptop.shows("Weekend trip", "3")
    before = await demo.alice_laptop.total()

    await demo.alice_phone.open("Weekend trip")

    await demo.alice_laptop.shows_nothing_in("Weekend trip")
    await demo.alice_laptop.shows_total(str(before - 3))
    await demo.bob_phone.shows("Weekend trip", "2")


async def test_a_message_counts_on_every_device_of_everyone_else(demo: Demo) -> None:
    await demo.somebody_writes("Carol", "General", mention="Bob")

    for device in demo.devices:
        await device.shows("General", "4")
    for device in (demo.bob_phone, demo.bob_laptop):
        await expect(device.chat("General").locator(".mention")).to_be_visible()


async def test_what_arrives_in_an_open_channel_is_unread_nowhere(demo: Demo) -> None:
    await demo.alice_phone.open("General")
    await demo.alice_laptop.shows_nothing_in("General")

    await demo.somebody_writes("Erin", "General", "Look here, Alice.", mention="Alice")

    await expect(demo.alice_phone.message("Look here, Alice.")).to_be_visible()
    await demo.bob_phone.shows("General", "4")
    await demo.alice_laptop.shows_nothing_in("General")
    await demo.alice_phone.back()
    await demo.alice_phone.shows_nothing_in("General")


async def test_a_dark_screen_reads_nothing(demo: Demo) -> None:
    await demo.bob_laptop.open("General")
    await demo.bob_phone.shows_nothing_in("General")
    await demo.bob_laptop.turn("Screen", False)

    await demo.somebody_writes("Erin", "General", "Nobody is looking.", times=1)
    await demo.bob_phone.shows("General", "1")

    await demo.bob_laptop.turn("Screen", True)
    await demo.bob_phone.shows_nothing_in("General")
    await expect(demo.bob_laptop.line).to_be_visible()
    assert await demo.bob_laptop.after_the_line() == ["Nobody is looking."]


async def test_a_device_that_was_away_catches_up(demo: Demo) -> None:
    phone, laptop = demo.alice_phone, demo.alice_laptop
    await phone.open("Carol")
    await phone.go_offline()

    await demo.somebody_writes("Carol", "Carol and Alice", "Are you there?")
    await demo.somebody_writes("Dave", "Weekend trip", times=10)
    await laptop.shows("Weekend trip", "13")
    await laptop.shows("Carol", "1")
    await expect(phone.message("Are you there?")).to_have_count(0)
    await phone.back()
    await phone.shows("Weekend trip", "3")

    await phone.come_back()
    await phone.shows("Weekend trip", "13")
    await phone.open("Carol")
    await expect(phone.message("Are you there?")).to_be_visible()
    await laptop.shows_nothing_in("Carol")


async def test_the_list_is_in_the_order_of_the_inbox(demo: Demo) -> None:
    assert await demo.bob_phone.titles() == ["General", "Weekend trip", "Dave", "Builds", "Alice"]

    await demo.somebody_writes("Dave", "Dave and Bob")
    await expect(demo.bob_phone.side.locator(".chat .name").first).to_have_text("Dave")

    # Alice has pinned General: it stays first, whoever writes.
    assert (await demo.alice_phone.titles())[0] == "General"
    await demo.somebody_writes("Carol", "Carol and Alice")
    await expect(demo.alice_phone.side.locator(".chat .name").nth(1)).to_have_text("Carol")
    assert (await demo.alice_phone.titles())[0] == "General"


async def test_whoever_wrote_sees_who_has_seen_it(demo: Demo) -> None:
    await demo.alice_phone.open("Bob")
    await demo.alice_phone.say("Shall we ship it?")
    await expect(demo.alice_phone.pane.locator(".seen")).to_have_text("Not seen yet")

    await demo.bob_laptop.open("Alice")

    await expect(demo.alice_phone.pane.locator(".seen")).to_have_text("Seen by Bob")


async def test_a_deleted_message_counts_nowhere(demo: Demo) -> None:
    await demo.alice_laptop.open("Bob")
    await demo.alice_laptop.say("This was meant for somebody else.")
    await demo.bob_phone.shows("Alice", "1")

    await demo.alice_laptop.choose("This was meant for somebody else.", "Delete")

    await demo.bob_phone.shows_nothing_in("Alice")
    await demo.bob_phone.open("Alice")
    await expect(demo.bob_phone.pane.locator(".message").last).to_contain_text("deleted")


async def test_a_silent_message_counts_for_nobody(demo: Demo) -> None:
    await demo.bob_laptop.open("Dave")
    await demo.bob_laptop.open("Alice")

    await demo.somebody_writes("Dave", "Dave and Bob", "No need to look.", silent=True)

    await expect(demo.bob_laptop.side.locator(".chat .name").first).to_have_text("Dave")
    await demo.bob_laptop.shows_nothing_in("Dave")


async def test_more_than_a_badge_can_hold_shows_a_plus(demo: Demo) -> None:
    await demo.somebody_writes("Erin", "General", times=120)

    for device in demo.devices:
        await device.shows("General", "99+")
        await device.shows_total("99+")
    await demo.bob_phone.open("General")
    await demo.bob_laptop.shows_nothing_in("General")
    await demo.alice_laptop.shows("General", "99+")


async def test_the_three_things_to_try_first(demo: Demo) -> None:
    guide = demo.page.get_by_role("region", name="What to try first")

    await guide.get_by_role("button", name="Send as Carol").click()
    await demo.alice_laptop.shows("General", "4")

    await guide.get_by_role("button", name="Open on the phone").click()
    await expect(demo.alice_phone.line).to_be_visible()
    await demo.alice_laptop.shows_nothing_in("General")

    await guide.get_by_role("button", name="Take Bob offline").click()
    await expect(demo.page.locator("#said")).to_contain_text("3 messages, 2 people")
    await demo.bob_phone.shows("Weekend trip", "2")
    await guide.get_by_role("button", name="Bring Bob back").click()
    for device in (demo.bob_phone, demo.bob_laptop):
        await device.is_live()
        await device.shows("Weekend trip", "4")
