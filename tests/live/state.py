"""What a client holds: a bulk sync, and every event applied to it by the rules of the protocol.

After any sequence of events it must equal a sync made anew. That is what `Follower.agrees` asks for.
"""

from typing import Any

from tests.conftest import Chat, eventually

from .device import DEADLINE, Device, Frame

FIGURES = ("unread", "label", "has_unread", "exact", "mentions", "first_unread")


class State:
    """A user's channels, threads and badge, as one device knows them."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.channels: dict[str, Frame] = {}
        self.rows: dict[str, Frame] = {}
        """What the inbox shows of a channel besides its counts."""
        self.threads: dict[tuple[str, str], Frame] = {}
        self.badge: Frame = {}
        self.cap = 99
        self.must_sync = False

    def view(self) -> dict[str, Any]:
        """All of it, with the totals that follow from it."""
        counted = [one for one in self.channels.values() if not one["muted"] and not one.get("archived")]
        unread = [one["unread"] for one in self.threads.values() if one["unread"]]
        return {
            "channels": self.channels,
            "rows": self.rows,
            "threads": self.threads,
            "badge": self.badge,
            "totals": {
                "unread": sum(one["unread"] for one in counted),
                "mentions": sum(one["mentions"] for one in counted),
                "channels": sum(one["has_unread"] for one in counted),
            },
            "thread totals": {"unread": sum(unread), "threads": len(unread)},
        }

    def label(self, count: int) -> str:
        return "" if not count else str(count) if count <= self.cap else f"{self.cap}+"

    # ------------------------------------------------------------ events

    def apply(self, frame: Frame) -> None:
        """Takes a frame of the service; kinds that it doesn't know change nothing."""
        if not self.must_sync:  # what comes after that builds on what is not known
            kind = frame["type"].replace(".", "_")
            getattr(self, f"_on_{kind}", lambda _: None)(frame)

    def _on_ready(self, frame: Frame) -> None:
        self.cap = frame["display_cap"]

    def _on_sync_required(self, _: Frame) -> None:
        self.must_sync = True

    def _on_message_new(self, frame: Frame) -> None:
        channel = self.channels.get(frame["channel_id"])
        if channel is None or frame["seq"] is None:
            return
        row = self.rows[frame["channel_id"]]
        if frame["sender_id"] != self.user:
            row["archived"] = False  # somebody else wrote: it is back in the inbox
        if frame["seq"] <= channel["newest"]:  # a repeat
            return
        place = {"id": frame["message_id"], "seq": frame["seq"], "at": frame["at"]}
        channel["newest"] = frame["seq"]
        channel["latest"] = place | {"sender_id": frame["sender_id"], "preview": frame["preview"]}
        row["last_message"] = channel["latest"]
        if frame["counts"]:
            channel["unread"] += 1
            channel["label"] = self.label(channel["unread"])
            channel["has_unread"] = True
            channel["mentions"] += frame["mentions_me"]
            channel["first_unread"] = channel["first_unread"] or place

    def _on_unread_updated(self, frame: Frame) -> None:
        figures = {name: value for name, value in frame.items() if name not in {"type", "resume"}}
        known = self.channels.get(frame["channel_id"], {"newest": 0})
        latest = frame["latest"]["seq"] if frame["latest"] else 0
        self.channels[frame["channel_id"]] = figures | {"newest": max(known["newest"], latest)}
        row = self.rows.setdefault(frame["channel_id"], {})
        row |= {"last_message": frame["latest"], "muted": frame["muted"]}

    def _on_read_pointer_updated(self, frame: Frame) -> None:
        channel = self.channels.get(frame["channel_id"])
        if channel is None:  # it is about to be told of
            return
        _take_figures(channel, frame)
        channel["last_read"] = {
            "id": frame["last_read_id"],
            "seq": frame["last_read_seq"],
            "at": frame["last_read_at"],
            "epoch": frame["epoch"],
        }

    def _on_channel_updated(self, frame: Frame) -> None:
        given = frame["conversation"]
        self.rows[frame["channel_id"]] = _row(given) | {"archived": frame["preferences"]["archived"]}
        if (channel := self.channels.get(frame["channel_id"])) is not None:
            channel |= {name: given[name] for name in ("unread", "label", "has_unread", "mentions", "muted")}
            channel["latest"] = given["last_message"]

    def _on_channel_removed(self, frame: Frame) -> None:
        self.channels.pop(frame["channel_id"], None)
        self.rows.pop(frame["channel_id"], None)
        self.threads = {key: one for key, one in self.threads.items() if key[0] != frame["channel_id"]}

    def _on_thread_updated(self, frame: Frame) -> None:
        key = frame["channel_id"], frame["thread_id"]
        if frame.get("followed", True):
            self.threads[key] = {n: frame[n] for n in ("unread", "label", "latest", "last_read")}
        else:
            self.threads.pop(key, None)

    def _on_badge_updated(self, frame: Frame) -> None:
        self.badge = {"senders": frame["senders"], "label": frame["label"]}

    def _on_ack(self, frame: Frame) -> None:
        """The device that reads is answered with the figures; others hear of them."""
        asked = frame.get("answers", {})
        if asked.get("type") in {"mark_read", "mark_unread"} and "thread_id" not in asked:
            self._take_read(asked["channel_id"], frame)
        elif asked.get("type") == "channel.focus":
            self._take_read(asked["channel_id"], frame["after"])

    def _take_read(self, channel_id: str, answer: Frame) -> None:
        channel = self.channels.get(channel_id)
        if channel is None:  # it is about to be told of
            return
        _take_figures(channel, answer)
        channel["last_read"] = answer["last_read"]


def _take_figures(channel: Frame, given: Frame) -> None:
    channel |= {name: given[name] for name in FIGURES}
    channel.pop("reason", None)
    if "reason" in given:
        channel["reason"] = given["reason"]


def _row(conversation: Frame) -> Frame:
    names = ("type", "name", "avatar", "peer_id", "last_message", "muted", "pinned")
    return {name: conversation[name] for name in names}


async def fetch(chat: Chat, user: str) -> tuple[State, dict[str, Any], str]:
    """A user's state made anew over HTTP, the totals that the service gives, and the cursor to go on from."""
    state = State(user)
    sync = page = await chat.sync(user, only_unread="false")
    while True:
        for one in page["channels"]:
            state.channels[one["channel_id"]] = one | {"newest": one["latest"]["seq"] if one["latest"] else 0}
        if page["cursor"] is None:
            break
        page = await chat.sync(user, only_unread="false", cursor=page["cursor"])
    for chosen in ("all", "archived"):
        for row in (await chat.inbox(user, filter=chosen, limit=1000))["conversations"]:
            state.rows[row["channel_id"]] = _row(row) | {"archived": chosen == "archived"}
    for one in (await chat.threads(user, limit=1000))["threads"]:
        key = one["channel_id"], one["thread_id"]
        state.threads[key] = {n: one[n] for n in ("unread", "label", "latest", "last_read")}
    badge = await chat.ask("GET", f"/v1/users/{user}/badge")
    state.badge = {"senders": badge["senders"], "label": badge["label"]}
    return state, {"totals": sync["totals"], "thread totals": sync["threads"]}, sync["sync"]


class Follower:
    """A device that keeps state as a client does: a sync first, then only events, over cuts and comings-back."""

    def __init__(self, service: Any, user: str, name: str) -> None:
        self.service = service
        self.user = user
        self.name = name
        self.state = State(user)
        self.device: Device
        self.messages: list[Frame] = []
        """Every `message.new` that came, over all connections."""

    async def start(self) -> "Follower":
        """Syncs, and goes on from there."""
        self.state, _, cursor = await fetch(self.service.chat, self.user)
        await self.connect(cursor)
        return self

    async def connect(self, cursor: str | None) -> None:
        self.device = await self.service.device(self.user, self.name, resume=cursor, on_frame=self._take)

    def _take(self, frame: Frame) -> None:
        self.state.apply(frame)
        if frame["type"] == "message.new":
            self.messages.append(frame)

    async def drop(self, *, politely: bool = False) -> None:
        """Loses its connection."""
        await (self.device.close() if politely else self.device.cut())

    async def come_back(self) -> None:
        """Connects again with the newest cursor that was seen."""
        await self.connect(self.device.resume)

    async def agrees(self) -> None:
        """What was heard adds up to what a sync made anew says."""
        self.check(await self.differences())

    async def comes_to_agree(self) -> None:
        """The same, once reads by focus are written; they may be gathered for a while."""
        wrong: list[str] = ["not looked yet"]

        async def agreed() -> bool:
            wrong[:] = await self.differences()
            return not wrong

        try:
            await eventually(agreed, "it adds up", DEADLINE)
        finally:
            self.check(wrong)

    def check(self, wrong: list[str]) -> None:
        assert not wrong, f"{self.device}: {wrong}; heard {self.device.frames[-12:]}"
        self.device.frames.clear()

    async def differences(self) -> list[str]:
        await self.device.quiet()
        if self.state.must_sync:
            await self.device.close()
            await self.start()
            await self.device.quiet()
        truth, totals, _ = await fetch(self.service.chat, self.user)
        return differences(comparable(self.state.view()), comparable(truth.view() | totals))


def comparable(view: dict[str, Any]) -> dict[str, Any]:
    """Without what only serves to skip repeats."""
    channels = {name: {k: v for k, v in one.items() if k != "newest"} for name, one in view["channels"].items()}
    return view | {"channels": channels}


def differences(mine: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two states differ: path, what the device has, what the service says."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = sorted({*mine, *theirs}, key=str)
        return [d for key in keys for d in differences(mine.get(key), theirs.get(key), f"{path}/{key}")]
    return [] if mine == theirs else [f"{path}: has {mine!r}, should be {theirs!r}"]
