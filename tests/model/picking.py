"""Making real users, channels, messages and reads of the small numbers that strategies give."""

from readstate.api import NewMessage

from .comparing import CHANNELS, USERS, SideBySide
from .strategies import Fields
from .values import Sent


class Picking(SideBySide):
    """Picks what a rule is about, and sends messages to both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def user_room(self, n: int) -> tuple[str, str]:
        """A user and a channel that the user is in."""
        taken = [(u, c.id) for c in self.naive.channels.values() for u in USERS if u in c.members]
        return taken[n % len(taken)] if taken and n < 40 else (USERS[n % 5], CHANNELS[n % 3])

    def room(self, n: int) -> str:
        """A channel."""
        open_ones = [c.id for c in self.naive.channels.values() if c.exists]
        return open_ones[n % len(open_ones)] if open_ones and n < 15 else CHANNELS[n % 3]

    def pick(self, channel: str, back: int) -> str:
        """The id of a message of the channel."""
        known = self.naive.channels.get(channel)
        if known is None or not known.messages or back == 9:
            return "never sent"
        return known.messages[-1 - back % len(known.messages)].id

    def aim(self, channel: str, target: Fields) -> Fields:
        """A target with real ids, seqs and times."""
        form, backs, shift = target["form"], target["backs"], target["shift"]
        known = self.naive.channels.get(channel)
        match form:
            case "up_to":
                return {"up_to": self.pick(channel, backs[0])}
            case "messages":
                return {"messages": tuple(self.pick(channel, back) for back in backs)}
            case "up_to_seq":
                return {"up_to_seq": max(0, (known.last_seq if known else 0) + shift - backs[0])}
            case "up_to_time":
                times = [m.at for m in known.placed()] if known else []
                return {"up_to_time": (times or [self.clock()])[-1 - backs[0] % (len(times) or 1)] + shift}
        return {}

    def root(self, channel: str, back: int) -> str:
        """The root of the thread that a message is in, or the message itself."""
        known = self.naive.channels.get(channel)
        message = known.find(self.pick(channel, back)) if known else None
        return message.thread_id or message.id if message else "never sent"

    def _send(self, batch: list[Fields]) -> None:
        self.sound = False
        ready = [self._complete(draft) for draft in batch]
        results = self.run(self.service.messages.send([NewMessage(**draft) for draft in ready]))
        for draft, result in zip(ready, results, strict=True):
            expected = self._send_naively(draft)
            assert (result.status, result.id, result.code) == (expected.status, expected.id, expected.code)
            assert (result.seq, result.thread_seq) == (expected.seq, expected.thread_seq)

    def _complete(self, draft: Fields) -> Fields:
        """A draft with its sender, channel and id, its time, and the thread that it belongs to."""
        sender, channel = self.user_room(draft.get("user_room", 0))
        ready = {"sender_id": sender, "channel_id": channel, **draft}
        ready = {k: v for k, v in ready.items() if k not in {"user_room", "reply_to"}}
        self.sent += 1
        ready["id"] = draft.get("id") or f"msg {self.sent}"
        if "at" in draft:
            ready["at"] = self.clock() + draft["at"]
        if "reply_to" in draft:
            ready["thread_id"] = self.pick(ready["channel_id"], draft["reply_to"])
        return ready

    def _send_naively(self, draft: Fields) -> Sent:
        rest = {k: v for k, v in draft.items() if k not in {"channel_id", "sender_id", "id"}}
        return self.naive.send(draft["channel_id"], draft["sender_id"], draft["id"], **rest)
