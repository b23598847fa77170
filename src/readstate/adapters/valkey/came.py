"""New messages of a room that go to the same users: one hot update, which reads and writes each user room once.

Between two of these messages, updates of other rooms may have come, and own reads of the same room. The messages go
after them. That changes nothing in the end: rooms do not depend on each other, and a ledger has what lies after the
pointer, whichever of the two came first.
"""

from collections.abc import Sequence

from readstate.domain.hot_updates import FanOut, OwnRead, UserHotUpdate

MOST = 100
"""Messages in one update: ZADD takes them all at once."""
MESSAGES_PER_ITEM = 10
"""This many more messages weigh as much as a hot update."""

Special = tuple[list[int], list[int]]
"""Which messages are the user's own, and which mention the user; counted from 1."""


class Came:
    """Messages in their order."""

    def __init__(self, first: FanOut) -> None:
        self.channel_id = first.channel_id
        self.users = first.users
        self._messages = [first]

    def takes(self, update: FanOut) -> bool:
        if len(self._messages) >= MOST or update.change <= self._messages[-1].change:  # passed: it is a replay
            return False
        return update.users is self.users or update.users == self.users

    def add(self, update: FanOut) -> None:
        self._messages.append(update)

    @property
    def packed(self) -> tuple[object, ...]:
        """As `lua/user_apply.lua` takes them."""
        last = self._messages[-1]
        flat: list[object] = []
        for one in self._messages:
            assert one.put is not None
            flat += (one.change, one.put.seq, one.put.at, one.put.id)
        return last.latest_at, last.archived, flat

    @property
    def special(self) -> dict[str, Special]:
        """Users for whom the messages are not just unread."""
        found: dict[str, Special] = {}
        for index, one in enumerate(self._messages, 1):
            if one.sender is not None:
                found.setdefault(one.sender, ([], []))[0].append(index)
            for user in self.users if one.named is None else one.named:
                found.setdefault(user, ([], []))[1].append(index)
        return found

    @property
    def weight(self) -> int:
        return 1 + len(self._messages) // MESSAGES_PER_ITEM


def weight_of(update: UserHotUpdate | Came) -> int:
    return update.weight if isinstance(update, Came) else 1


def together(updates: Sequence[UserHotUpdate]) -> list[UserHotUpdate | Came]:
    """Combine the new messages of each room, up to the next update that changes the room otherwise."""
    parts: list[UserHotUpdate | Came] = []
    begun: dict[str, Came] = {}
    for update in updates:
        room = update.channel_id
        if isinstance(update, FanOut) and update.put is not None and update.remove is None and not update.edit:
            came = begun.get(room)
            if came is not None and came.takes(update):
                came.add(update)
                continue
            if came is not None:
                parts.append(came)
            begun[room] = Came(update)
        else:
            if not isinstance(update, OwnRead) and room in begun:
                parts.append(begun.pop(room))
            parts.append(update)
    return [*parts, *begun.values()]
