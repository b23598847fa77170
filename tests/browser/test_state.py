"""Marking, muting, threads, the badge, and why a number is what it is."""

import pytest
from playwright.async_api import expect

from tests.browser.driving import Demo

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_red_line_stands_where_the_unread_began(demo: Demo) -> None:
    await demo.alice_phone.open("Weekend trip")

    await expect(demo.alice_phone.line).to_be_visible()
    assert await demo.alice_phone.after_the_line() == [
        "Train. I would rather read than drive.",
        "The 9:12 has seats left for four.",
        "Booked! I will bring the tickets.",
    ]


async def test_marking_unread_moves_the_line_and_shows_on_both_devices(demo: Demo) -> None:
    await demo.alice_phone.open("Weekend trip")
    await demo.alice_laptop.shows_nothing_in("Weekend trip")

    await demo.alice_phone.choose("The 9:12 has seats left for four.", "Mark unread from here")

    await demo.alice_laptop.shows("Weekend trip", "2")
    await expect(demo.alice_phone.pane.locator(".left")).to_contain_text("2 left unread")
    assert (await demo.alice_phone.after_the_line())[0] == "The 9:12 has seats left for four."
    await demo.alice_phone.back()
    await demo.alice_phone.shows("Weekend trip", "2")

    await demo.alice_laptop.open("Weekend trip")
    await demo.alice_phone.shows_nothing_in("Weekend trip")
    await expect(demo.alice_laptop.line).to_be_visible()


async def test_what_was_marked_unread_stays_so_when_the_device_comes_back(demo: Demo) -> None:
    await demo.bob_phone.open("General")
    await demo.bob_phone.choose("Cake in the kitchen.", "Mark unread from here")
    await demo.bob_laptop.shows("General", "2")

    await demo.bob_phone.go_offline()
    await demo.bob_phone.come_back()

    await demo.bob_phone.back()
    await demo.bob_phone.shows("General", "2")
    await demo.bob_laptop.shows("General", "2")


async def test_a_muted_channel_keeps_its_count_and_leaves_the_total(demo: Demo) -> None:
    await demo.somebody_writes("Carol", "Weekend trip")
    await demo.bob_phone.shows("Weekend trip", "3")
    before = await demo.bob_phone.total()
    await demo.bob_laptop.open("Weekend trip")
    await demo.bob_laptop.choose("The 9:12 has seats left for four.", "Mark unread from here")

    await demo.bob_laptop.pane.get_by_role("button", name="Mute").click()

    for device in (demo.bob_phone, demo.bob_laptop):
        await device.shows("Weekend trip", "3")
        await expect(device.chat("Weekend trip").locator(".icon-muted")).to_be_visible()
        await device.shows_total(str(before - 3))

    await demo.bob_laptop.pane.get_by_role("button", name="Mute").click()
    await demo.bob_phone.shows_total(str(before))


async def test_a_channel_may_count_mentions_only(demo: Demo) -> None:
    await demo.alice_laptop.open("Weekend trip")
    await demo.alice_laptop.pane.get_by_label("What counts as unread").select_option("mentions")
    await demo.alice_laptop.open("Bob")

    await demo.somebody_writes("Dave", "Weekend trip")
    for device in (demo.alice_phone, demo.alice_laptop):
        await expect(device.chat("Weekend trip").locator(".dot")).to_be_visible()

    await demo.somebody_writes("Dave", "Weekend trip", mention="Alice")
    for device in (demo.alice_phone, demo.alice_laptop):
        await device.shows("Weekend trip", "1")


async def test_the_badge_counts_people_and_a_tap_lists_what_they_wrote(demo: Demo) -> None:
    phone, laptop = demo.bob_phone, demo.bob_laptop
    await phone.side.locator(".badge").click()
    await expect(laptop.side.locator(".badge")).to_have_count(0)
    await phone.back()
    for device in (phone, laptop):
        await device.go_offline()

    for _ in range(2):
        await demo.somebody_writes("Dave", "Dave and Bob", "Are you coming?")
        await demo.somebody_writes("Carol", "Weekend trip", "Who has the map?")
    for device in (phone, laptop):
        await device.come_back()

    for device in (phone, laptop):
        await expect(device.side.locator(".badge")).to_contain_text("2")
        await expect(device.side.locator(".badge")).to_contain_text("people wrote while you were away")
    await laptop.side.locator(".badge").click()
    cards = laptop.pane.locator(".card")
    await expect(cards).to_have_count(2)
    for name, text in (("Dave", "Are you coming?"), ("Carol", "Who has the map?")):
        await expect(cards.filter(has_text=name).locator(".said", has_text=text)).to_have_count(2)
    await expect(phone.side.locator(".badge")).to_have_count(0)
    await phone.shows("Dave", "3")  # a tap reads nothing


async def test_a_thread_counts_apart_from_its_channel(demo: Demo) -> None:
    phone, laptop = demo.alice_phone, demo.alice_laptop
    await expect(phone.side.locator(".to-threads .pill")).to_have_text("3")

    await demo.somebody_writes("Dave", "General", "I read them too.", under="Who can look over")

    for device in (phone, laptop):
        await expect(device.side.locator(".to-threads .pill")).to_have_text("4")
        await device.shows("General", "3")
    await phone.side.locator(".to-threads").click()
    await phone.pane.get_by_role("button", name="Mark thread read").click()
    for device in (phone, laptop):
        await expect(device.side.locator(".to-threads .pill")).to_have_count(0)
    await laptop.shows("General", "3")

    await phone.pane.get_by_role("button", name="Open").click()
    await expect(phone.message("I read them too.")).to_be_visible()


async def test_a_reply_starts_a_thread_that_its_root_follows(demo: Demo) -> None:
    await demo.bob_laptop.open("Alice")
    await demo.bob_laptop.choose("Then let us build it like that.", "Reply in thread")
    await demo.bob_laptop.say("On Monday?")

    await expect(demo.alice_phone.side.locator(".to-threads .pill")).to_have_text("4")
    await demo.alice_phone.shows_nothing_in("Bob")
    await demo.alice_phone.open("Bob")
    await demo.alice_phone.pane.get_by_role("button", name="1 reply").click()
    await expect(demo.alice_phone.message("On Monday?")).to_be_visible()
    await expect(demo.alice_laptop.side.locator(".to-threads .pill")).to_have_text("3")


async def test_every_number_can_be_explained(demo: Demo) -> None:
    await demo.alice_phone.open("General")
    await demo.alice_phone.choose("Good morning!", "Mark unread from here")
    await demo.alice_phone.pane.get_by_role("button", name="Why this number?").click()

    sheet = demo.alice_phone.root.get_by_role("dialog", name="Why this number")
    await expect(sheet.locator(".term")).to_have_count(6)
    terms = {
        await term.locator("dt").inner_text(): await term.locator("dd").inner_text()
        for term in await sheet.locator(".term").all()
    }
    assert {name: int(value.strip("−= \n")) for name, value in terms.items()} == {
        "messages after it": 8,
        "your own": 1,
        "deleted": 0,
        "silent": 1,
        "read one by one": 0,
        "unread": 6,
    }
    await expect(sheet).to_contain_text("The database counts the same: 6.")
    await demo.alice_laptop.shows("General", "6")
    await sheet.get_by_role("button", name="Close").click()
    await expect(sheet).to_have_count(0)


async def test_what_goes_over_the_wire_can_be_watched(demo: Demo) -> None:
    wire = demo.page.locator("#wire")
    await wire.locator("summary").click()
    await demo.alice_phone.open("Weekend trip")
    frames = wire.locator("li:visible")
    await expect(frames.filter(has_text="read_pointer.updated").filter(has_text="Alice’s laptop")).not_to_have_count(0)

    await wire.get_by_label("Frames of which device").select_option(label="Bob’s phone")

    await expect(frames.filter(has_text="Alice’s")).to_have_count(0)
    await expect(frames.filter(has_text="Bob’s phone")).not_to_have_count(0)
    shown = await wire.inner_text()
    assert not [person["name"] for person in demo.session["people"] if person["token"] in shown]
