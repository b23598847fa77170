"""The page by keyboard, on a narrow screen, for those who can't see it, and under a strict policy."""

import pytest
from playwright.async_api import ViewportSize, expect

from tests.browser.driving import Demo

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_everything_can_be_done_by_keyboard(demo: Demo) -> None:
    keyboard, phone = demo.page.keyboard, demo.alice_phone
    await phone.chat("General").focus()

    await keyboard.press("ArrowDown")
    await expect(phone.chat("Carol")).to_be_focused()
    await keyboard.press("ArrowDown")
    await keyboard.press("Enter")
    await expect(phone.pane.get_by_role("heading", name="Weekend trip")).to_be_focused()
    await demo.alice_laptop.shows_nothing_in("Weekend trip")

    await phone.message("Booked!").locator(".more").focus()
    await keyboard.press("ArrowUp")
    await expect(phone.message("The 9:12").locator(".more")).to_be_focused()
    await keyboard.press("Enter")
    await expect(phone.pane.get_by_role("menuitem", name="Mark unread from here")).to_be_focused()
    await keyboard.press("Escape")
    await expect(phone.message("The 9:12").locator(".more")).to_be_focused()
    await keyboard.press("Enter")
    await expect(phone.pane.get_by_role("menuitem", name="Mark unread from here")).to_be_focused()
    await keyboard.press("Enter")
    await demo.alice_laptop.shows("Weekend trip", "2")

    await phone.pane.get_by_role("button", name="Why this number?").focus()
    await keyboard.press("Enter")
    await expect(phone.root.get_by_role("dialog")).to_be_focused()
    await keyboard.press("Escape")
    await expect(phone.pane.get_by_role("button", name="Why this number?")).to_be_focused()
    await keyboard.press("Escape")
    await expect(phone.chat("Weekend trip")).to_be_focused()


async def test_tab_reaches_every_part_and_no_message_is_a_stop_of_its_own(demo: Demo) -> None:
    await demo.alice_laptop.open("Builds")
    await demo.alice_laptop.pane.get_by_role("button", name="Mute").focus()
    stops: list[str] = []
    while not stops or stops[-1] != "Send":
        await demo.page.keyboard.press("Tab")
        stops.append(await demo.page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.className"))
        assert len(stops) < 10, stops

    assert [stop for stop in stops if stop.startswith("Message of")] == ["Message of Frank: what to do with it"]


async def test_every_control_has_a_name_and_every_device_is_a_landmark(demo: Demo) -> None:
    await demo.bob_laptop.open("General")
    for name in ("Alice’s phone", "Alice’s laptop", "Bob’s phone", "Bob’s laptop"):
        await expect(demo.page.get_by_role("region", name=name)).to_be_visible()
    for role in ("button", "combobox", "textbox", "checkbox", "switch"):
        everything = await demo.page.get_by_role(role).count()
        nameless = await demo.page.get_by_role(role, name="", exact=True).count()
        assert (role, nameless, everything > 0) == (role, 0, True)


async def test_counts_are_told_and_not_only_shown(demo: Demo) -> None:
    status = demo.alice_phone.root.get_by_role("status")
    await expect(status).to_have_text("Alice’s phone: 7 unread in 3 channels, 1 mention")

    await demo.alice_laptop.open("General")

    await expect(status).to_have_text("Alice’s phone: 4 unread in 2 channels")
    await expect(demo.alice_phone.chat("General")).to_have_accessible_name("General, nothing unread, pinned")
    await expect(demo.alice_phone.chat("Builds")).to_have_accessible_name("Builds, 99+ unread, muted")


class TestNarrow:
    """A window of 360 pixels."""

    @pytest.fixture
    def viewport(self) -> ViewportSize:
        return {"width": 360, "height": 760}

    async def test_nothing_reaches_beyond_the_edge(self, demo: Demo) -> None:
        await demo.page.locator("#wire summary").click()
        assert await demo.overflow() == []
        for name, device in zip(("Alice phone", "Bob laptop"), (demo.alice_phone, demo.bob_laptop), strict=True):
            await demo.page.get_by_role("button", name=name).click()
            await expect(device.root).to_be_visible()
            await device.open("General")
            await device.message("Cake in the kitchen.").locator(".more").click()
            assert await demo.overflow() == []
            await device.pane.get_by_role("button", name="Why this number?").click()
            await expect(device.root.get_by_role("dialog")).to_be_visible()
            assert await demo.overflow() == []
            await device.root.get_by_role("dialog").get_by_role("button", name="Close").click()

    async def test_one_device_is_shown_and_all_totals_are(self, demo: Demo) -> None:
        tabs = demo.page.get_by_role("navigation", name="Which device to show")
        await expect(demo.alice_phone.root).to_be_visible()
        await expect(demo.alice_laptop.root).to_be_hidden()
        await expect(tabs.locator(".pill")).to_have_text(["7", "7", "6", "6"])

        await demo.alice_phone.open("General")

        await expect(tabs.locator(".pill")).to_have_text(["4", "4", "6", "6"])
