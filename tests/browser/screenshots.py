"""The pictures of the README: the same scene, played on a real service, wide in light and dark, and on a phone.

python -m tests.browser.screenshots [docs/images]
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, expect

from tests.browser.driving import Demo, chromium
from tests.servers import Server, serving

DEFAULT = Path("docs/images")
WIDE = (1440, 900)
PHONE = (390, 844)


async def play(demo: Demo) -> None:
    """A moment that shows much at once."""
    await demo.somebody_writes("Carol", "General", "the printer wants to see you.", mention="Alice")
    await demo.alice_phone.open("General")
    await expect(demo.alice_phone.line).to_be_visible()
    await demo.alice_laptop.shows_nothing_in("General")
    await demo.alice_laptop.open("Bob")
    await demo.bob_laptop.open("General")
    await demo.bob_laptop.choose("Cake in the kitchen.", "Mark unread from here")
    await demo.bob_phone.shows("General", "3")
    await demo.bob_laptop.pane.get_by_role("button", name="Why this number?").click()
    await expect(demo.bob_laptop.root.get_by_role("dialog")).to_contain_text("The database counts the same: 3.")
    await expect(demo.alice_laptop.pane.locator(".seen")).to_have_text("Seen by Bob")
    await expect(demo.alice_laptop.chat("General").locator(".when")).to_have_text("now")
    await demo.counts_are_true()


async def play_on_a_phone(demo: Demo) -> None:
    """One device at a time, and the totals of all."""
    await demo.alice_phone.open("Weekend trip")
    await expect(demo.alice_phone.line).to_be_visible()
    await demo.page.locator(".tabs").evaluate("tabs => tabs.scrollIntoView()")


async def settle(demo: Demo) -> None:
    """What comes in no fixed order is left out of the picture."""
    await demo.page.evaluate("document.activeElement.blur()")
    await demo.page.locator("#wire .last").evaluate("last => last.textContent = ''")


async def take(
    browser: Browser, server: Server, path: Path, size: tuple[int, int], scheme: Literal["light", "dark"]
) -> None:
    """One picture."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce",
        device_scale_factor=2,
    )
    demo = Demo(await context.new_page(), server)
    await demo.open()
    await (play_on_a_phone if size == PHONE else play)(demo)
    await settle(demo)
    await demo.page.screenshot(path=path, animations="disabled")
    demo.nothing_went_wrong()
    await context.close()
    print(path)


async def main(directory: Path) -> None:
    """All of them."""
    with tempfile.TemporaryDirectory() as data, serving(Path(data) / "data", demo="true") as server:
        async with chromium() as browser:
            await take(browser, server, directory / "demo.png", WIDE, "light")
            await take(browser, server, directory / "demo-dark.png", WIDE, "dark")
            await take(browser, server, directory / "demo-phone.png", PHONE, "light")


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    chosen.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(chosen))
