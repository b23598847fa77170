"""One rate for all that a user does: requests, frames and new connections, in each process; and a bound on devices."""

import contextlib
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.conftest import GENERAL, SERVICE_KEY, check_problem, eventually, of, token_for

from .conftest import LiveService, live_service
from .device import Device, open_socket

SLOW = 1
"""A rate at which a bucket that is empty stays so for a few answers."""


async def use_up(service: LiveService, user: str) -> None:
    """Ask over HTTP until the user is over the rate."""
    asked = service.chat.as_user(user)
    for _ in range(1000):
        answer = await asked.call("GET", "/v1/users/me/unread")
        if answer.status_code == 429:
            check_problem(answer, 429, "rate_limited")
            return
    raise AssertionError("a thousand requests were answered at once")


async def refused(device: Device, kind: str = "ping", **fields: Any) -> dict[str, Any]:
    """The first answer that is an error, to frames that are sent one after the other."""
    for _ in range(1000):
        answer = await device.do(kind, **fields)
        if answer["type"] == "error":
            return answer
    raise AssertionError("a thousand frames were answered at once")


async def test_requests_use_up_what_frames_may_take(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        await service.chat.open_channel("alice", "bob")
        await service.chat.send("alice", "m1")
        bob, alice = await service.device("bob"), await service.device("alice")
        await use_up(service, "bob")

        answer = await refused(bob, "mark_read", channel_id=GENERAL)

        assert (answer["code"], answer["retry"]) == ("rate_limited", True)
        assert answer["detail"]
        assert await service.chat.count("bob") in {0, 1}
        await alice.quiet()


async def test_a_frame_over_the_rate_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        await service.chat.open_channel("alice", "bob")
        bob = await service.device("bob")
        await refused(bob)
        await service.chat.send("alice", "m1")

        answers = [await bob.do("mark_unread", **{"channel_id": GENERAL, "from": "nothing"}) for _ in range(5)]

        assert "rate_limited" in {answer["code"] for answer in answers}
        assert await service.chat.count("bob") == 1


async def test_frames_use_up_what_requests_may_take(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        await service.chat.open_channel("alice", "bob")
        bob = await service.device("bob")
        await refused(bob)

        answers = [await service.chat.as_user("bob").call("GET", f"{of('bob')}/unread") for _ in range(5)]

        assert 429 in {answer.status_code for answer in answers}
        assert (await service.chat.as_user("alice").call("GET", f"{of('alice')}/unread")).status_code == 200


async def test_the_devices_of_a_user_share_its_rate(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        phone, laptop = await service.device("bob"), await service.device("bob", "laptop")
        await refused(phone)

        assert (await refused(laptop))["code"] == "rate_limited"


async def test_whoever_slows_down_is_served_again_over_the_same_connection(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        await service.chat.open_channel("alice", "bob")
        await service.chat.send("alice", "m1")
        bob = await service.device("bob")
        await refused(bob)

        async def is_read() -> bool:
            return "changed" in await bob.do("mark_read", channel_id=GENERAL)

        await eventually(is_read, "the frame is done")
        assert await service.chat.count("bob") == 0


async def test_frames_that_go_on_end_the_connection(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=10) as service:
        await service.chat.open_channel("alice", "bob")
        await service.chat.send("alice", "m1")
        flooder, other = await service.device("bob"), await service.fresh("alice")

        with contextlib.suppress(ConnectionClosed):
            for _ in range(10_000):
                await flooder.say("ping")

        assert await flooder.ended() == 4429
        assert "rate_limited" in {one.get("code") for one in flooder.frames}
        assert await service.chat.count("bob") == 1
        await other.quiet()


async def test_a_new_connection_takes_of_the_rate_too(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        await use_up(service, "bob")

        bob = await service.device("bob", hello=False)

        assert await bob.ended() == 4429
        [error] = bob.frames
        assert (error["type"], error["code"], error["retry"]) == ("error", "rate_limited", True)
        await service.device("alice")


async def test_a_service_that_watches_is_limited_as_a_service(tmp_path: Path) -> None:
    async with live_service(tmp_path, rate_limit=SLOW) as service:
        watcher = await service.device("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")

        for _ in range(50):
            await watcher.quiet()


# ---------------------------------------------------------------- devices


async def test_a_device_over_the_bound_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    async with live_service(tmp_path, max_devices=2) as service:
        phone, laptop = await service.device("bob", "phone"), await service.device("bob", "laptop")

        tablet = await service.device("bob", "tablet", hello=False)

        assert await tablet.ended() == 4409
        [error] = tablet.frames
        assert (error["type"], error["code"], error["retry"]) == ("error", "too_many_devices", True)
        assert error["detail"]
        for device in (phone, laptop, await service.device("alice")):
            await device.quiet()
        await service.device("bob", token=SERVICE_KEY, path="/v1/ws?user=bob")


async def test_a_device_that_leaves_makes_room(tmp_path: Path) -> None:
    async with live_service(tmp_path, max_devices=1) as service:
        for end in ("close", "cut"):
            await getattr(await service.device("bob"), end)()

            async def is_let_in() -> bool:
                bob = await service.device("bob", hello=False)
                try:
                    await bob.hello()
                except AssertionError:
                    assert await bob.ended() == 4409
                    return False
                await bob.close()
                return True

            await eventually(is_let_in, f"there is room after a {end}")


async def test_a_token_in_hello_counts_as_one_in_the_header(tmp_path: Path) -> None:
    async with live_service(tmp_path, max_devices=1) as service:
        await service.device("bob")
        late = Device(await open_socket(service.url), "bob", "tablet")
        service.devices.append(late)

        await late.say("hello", device="tablet", token=token_for("bob"))

        assert await late.ended() == 4409


async def test_a_connection_that_changes_its_user_counts_for_the_new_one(tmp_path: Path) -> None:
    """The token of the header is alice's, that of hello is bob's."""
    async with live_service(tmp_path, max_devices=1) as service:
        first = await service.device("alice", hello=False)
        await first.hello(token=token_for("bob"))

        await service.device("alice", "laptop")
        again = await service.device("bob", "laptop", hello=False)

        assert await again.ended() == 4409
