"""A real browser on the real service. When a test fails, a picture of its page is kept in tests/artifacts."""

import os
import re
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ViewportSize

from tests.browser.driving import Demo, chromium, chromium_path
from tests.servers import Server, serving

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets fixtures know how the test went."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("demo") / "data", demo="true", rate_limit=50, max_devices=32) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if chromium_path() is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium on this machine, and CI needs one")
        pytest.skip("there is no chromium on this machine")
    async with chromium() as browser:
        yield browser


@pytest.fixture
def viewport() -> ViewportSize:
    """The size of the window; tests of narrow ones replace it."""
    return {"width": 1440, "height": 1000}


@pytest_asyncio.fixture(loop_scope="session")
async def demo(
    browser: Browser, server: Server, viewport: ViewportSize, request: pytest.FixtureRequest
) -> AsyncIterator[Demo]:
    """The page, open and live. Whatever a test does, in the end all counts are true and nothing has failed."""
    context = await browser.new_context(viewport=viewport, reduced_motion="reduce")
    demo = Demo(await context.new_page(), server)
    good = False
    try:
        await demo.open()
        yield demo
        if request.node.stash.get(PASSED, False):
            await demo.counts_are_true()
            demo.nothing_went_wrong()
            good = True
    finally:
        if not good:
            ARTIFACTS.mkdir(exist_ok=True)
            name = re.sub(r"\W+", "-", request.node.name).strip("-")
            await demo.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)
        await context.close()
