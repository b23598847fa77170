"""The demo page in the product's words: devices that people hold, and everybody else who writes."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Response, async_playwright, expect

from tests.conftest import eventually
from tests.servers import Server

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEVICES = ("alice-phone", "alice-laptop", "bob-phone", "bob-laptop")

DEADLINE = 60.0

expect.set_options(timeout=DEADLINE * 1000)


def is_session(response: Response) -> bool:
    """Whether it brings the sandbox of the page; the service may have asked to wait before."""
    return response.url.endswith("/demo/session") and response.ok


def chromium_path() -> str | None:
    """The browser of this machine, if it has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with a profile of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium_path(), headless=True, args=FLAGS, timeout=2 * DEADLINE * 1000
        )
        yield browser
        await browser.close()


class Device:
    """A device on the page, as its holder sees it."""

    def __init__(self, demo: "Demo", name: str) -> None:
        self.demo = demo
        self.name = name
        self.root = demo.page.locator(f'[data-device="{name}"]')
        self.side = self.root.locator(".side")
        self.pane = self.root.locator(".pane")
        self.line = self.pane.get_by_role("separator", name="New messages")

    # ------------------------------------------------------------ what it shows

    def chat(self, title: str) -> Locator:
        """A row of the list of conversations."""
        return self.side.locator(".chat", has=self.demo.page.get_by_text(title, exact=True))

    def message(self, text: str) -> Locator:
        return self.pane.locator(".message", has_text=text)

    async def shows(self, title: str, label: str) -> None:
        """The conversation has this label; none at all when it is empty."""
        marks = self.chat(title).locator(".marks")
        await expect(marks.locator(".pill")).to_have_text([label] if label else [])

    async def shows_nothing_in(self, title: str) -> None:
        """Neither a count nor a dot."""
        await self.shows(title, "")
        await expect(self.chat(title).locator(".dot, .mention")).to_have_count(0)

    async def shows_total(self, label: str) -> None:
        total = self.root.locator(".total")
        if label:
            await expect(total).to_have_text(label)
        await expect(total).to_be_visible(visible=bool(label))

    async def total(self) -> int:
        return int(await self.root.locator(".total").get_attribute("data-total") or 0)

    async def counts(self) -> dict[str, int]:
        """What every row of the list counts, by channel."""
        counts = {}
        for row in await self.side.locator(".chat").all():
            channel = await row.get_attribute("data-channel")
            counts[str(channel)] = int(await row.get_attribute("data-unread") or 0)
        return counts

    async def titles(self) -> list[str]:
        """The conversations in the order of the list."""
        return await self.side.locator(".chat .name").all_inner_texts()

    async def after_the_line(self) -> list[str]:
        """The texts below the red line."""
        return await self.pane.locator(".line ~ .message .bubble p").all_inner_texts()

    # ------------------------------------------------------------ what one does with it

    async def open(self, title: str) -> None:
        await self.chat(title).click()
        await expect(self.pane.get_by_role("heading", name=title)).to_be_visible()

    async def back(self) -> None:
        await self.pane.get_by_role("button", name="Back to chats").click()

    async def say(self, text: str) -> None:
        await self.pane.locator(".composer input").fill(text)
        await self.pane.get_by_role("button", name="Send").click()
        await expect(self.message(text)).to_be_visible()

    async def choose(self, text: str, action: str) -> None:
        """An item from the menu of a message."""
        await self.message(text).locator(".more").click()
        await self.message(text).get_by_role("menuitem", name=action).click()

    async def turn(self, switch: str, on: bool) -> None:
        toggle = self.root.get_by_role("switch", name=switch)
        await expect(toggle).to_have_attribute("aria-checked", str(not on).lower())
        await toggle.click()

    async def go_offline(self) -> None:
        await self.turn("Online", False)
        await expect(self.root.locator(".state")).to_have_text("offline")
        await self.demo.lets_go(self)

    async def come_back(self) -> None:
        await self.turn("Online", True)
        await self.is_live()

    async def is_online(self) -> bool:
        """Also of a device that is not shown."""
        return await self.root.locator(".switch", has_text="Online").get_attribute("aria-checked") == "true"

    async def is_live(self) -> None:
        await expect(self.root.locator(".state")).to_have_text("live")


class Demo:
    """The page in one browser window, with what went wrong on it and what the service says beside it."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        self.session: dict[str, Any] = {}
        self.alice_phone, self.alice_laptop, self.bob_phone, self.bob_laptop = (Device(self, name) for name in DEVICES)
        self.devices = (self.alice_phone, self.alice_laptop, self.bob_phone, self.bob_laptop)
        page.set_default_timeout(DEADLINE * 1000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        # A browser says so when somebody opened the page a moment before; the page waits and asks again.
        if message.type in {"error", "warning"} and "429" not in message.text:
            self.complaints.append(message.text)

    async def open(self) -> None:
        """Open the page and wait until all devices are live."""
        async with self.page.expect_response(is_session) as made:
            await self.page.goto(f"{self.server.url}/demo")
        self.session = await (await made.value).json()
        await expect(self.page.locator("body[data-ready]")).to_be_attached()
        for device in self.devices:
            await expect(device.side.locator(".chat")).to_have_count(5)

    async def somebody_writes(
        self,
        who: str,
        where: str,
        text: str = "",
        *,
        times: int = 1,
        mention: str = "",
        under: str = "",
        silent: bool = False,
    ) -> None:
        form = self.page.get_by_role("form", name="Somebody writes")
        await form.get_by_label("Who").select_option(label=who)
        await form.get_by_label("writes in").select_option(label=where)
        await form.get_by_label("how").focus()
        under_option = form.get_by_label("how").locator("option", has_text=under or "as a new message")
        await form.get_by_label("how").select_option(value=await under_option.first.get_attribute("value"))
        await form.get_by_label("mentions").select_option(label=mention or "nobody")
        await form.get_by_label("what").fill(text)
        await form.get_by_label("silent").set_checked(silent)
        name = "Send" if times == 1 else f"Send {times} messages"
        await form.get_by_role("button", name=name, exact=True).click()
        what = "a message" if times == 1 else f"{times} messages"
        await expect(self.page.locator("#said")).to_have_text(f"{who} wrote {what} in {where}.")
        await self.page.locator("#said").evaluate("said => said.textContent = ''")

    # ------------------------------------------------------------ what must hold in the end

    async def counts_are_true(self) -> None:
        """Every device that is online counts what the service counts."""
        async with self._backend() as http:
            for device in self.devices:
                if await device.is_online():
                    agrees = partial(self._agrees, http, device)
                    await eventually(agrees, f"{device.name} counts as the service does", DEADLINE)

    async def lets_go(self, device: Device) -> None:
        """The service knows that a device is gone: whoever writes from now on writes while it is away."""
        kind = device.name.partition("-")[2]

        async def gone(http: httpx.AsyncClient) -> bool:
            presence = (await http.get(f"/v1/users/{self._holder(device)}/presence")).json()
            return kind not in presence["devices"]

        async with self._backend() as http:
            await eventually(partial(gone, http), f"{device.name} is gone", DEADLINE)

    def _backend(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.server.service_key}"}
        return httpx.AsyncClient(base_url=self.server.url, headers=headers, timeout=DEADLINE)

    def _holder(self, device: Device) -> str:
        """Who holds a device."""
        name = device.name.partition("-")[0].capitalize()
        return str(next(person["id"] for person in self.session["people"] if person["name"] == name))

    async def _agrees(self, http: httpx.AsyncClient, device: Device) -> bool:
        sync = (await http.get(f"/v1/users/{self._holder(device)}/unread?only_unread=false")).json()
        shown = await device.counts()
        told = {row["channel_id"]: row["unread"] for row in sync["channels"]}
        threads = await device.side.locator(".to-threads").get_attribute("data-unread")
        return (
            all(told.get(channel) == count for channel, count in shown.items())
            and set(told) == set(shown)
            and await device.total() == sync["totals"]["unread"]
            and int(threads or 0) == sync["threads"]["unread"]
        )

    def nothing_went_wrong(self) -> None:
        """No script failed, nothing was refused by the policy, nothing could not be loaded."""
        assert self.complaints == []

    async def overflow(self) -> list[str]:
        """What reaches beyond the right edge of the window."""
        found: list[str] = await self.page.evaluate(
            """() => [...document.querySelectorAll("body *")]
                .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(".spoken, .skip"))
                .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
                .map((e) => `${e.tagName}.${e.getAttribute("class")}`)"""
        )
        wide = await self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return [*found, *(["the page scrolls sideways"] if wide else [])]
