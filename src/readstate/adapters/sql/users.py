"""Activity and preferences of users in SQL."""

from msgspec.structs import asdict

from readstate.domain.model import Preferences, ReceiptsPreference
from readstate.ports import Activity

from .erased import hash_of
from .session import SqlTopic


class SqlUsers(SqlTopic):
    async def activity(self, user: str) -> Activity:
        row = await self._database.read(lambda session: session.row("activity", user=user))
        return Activity(*row) if row else Activity()

    async def save_seen(self, user: str, at: int) -> None:
        await self._run("save_seen", user=user, at=at)

    async def save_receipts(self, user: str, receipts: ReceiptsPreference, change: int) -> None:
        await self._run("save_receipts", user, user=user, receipts=receipts, change=change)

    async def save_preferences(self, user: str, channel: str, preferences: Preferences, change: int) -> None:
        values = asdict(preferences) | {"change": change}
        await self._run("put_preferences", user, user=user, channel=channel, **values)

    async def erased_until(self, user: str) -> int:
        return await self._number("erased_until", hash=hash_of(user))
