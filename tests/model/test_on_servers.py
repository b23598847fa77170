"""The same machines over Valkey and PostgreSQL: after every step the service says what the naive chat says."""

import secrets
from typing import Any

from hypothesis import settings

from readstate.adapters.valkey.hot import ExclusiveHot
from tests.contract import postgres, valkey

from .comparing import SideBySide
from .conftest import stateful_settings
from .test_people import PeopleBesideANaiveChat
from .test_stateful import ReadstateBesideANaiveChat


class OnServers(SideBySide):
    """A database and keys of its own for every run."""

    async def stores(self) -> dict[str, Any]:
        self.database = await postgres.fresh_database()
        return {"database_url": self.database, "hot_url": self.hot_url(), "key_prefix": f"{secrets.token_hex(6)}:"}

    def hot_url(self) -> str:
        return valkey.single().url

    async def leave_stores(self) -> None:
        await postgres.drop_database(self.database)

    def start(self) -> None:
        super().start()
        hot = self.service.hot
        assert isinstance(hot, ExclusiveHot)
        self.conductor.watch(hot._client, "run")
        self.conductor.watch(hot._generation, "check")


class ReadstateOnServers(OnServers, ReadstateBesideANaiveChat):
    """Everything that can happen to a chat."""


class PeopleOnACluster(OnServers, PeopleBesideANaiveChat):
    """Threads, badges, receipts and inboxes, with the hot state in a Cluster."""

    def hot_url(self) -> str:
        return valkey.cluster().url


def fewer(profile: settings) -> settings:
    """A step over servers takes longer than one in memory."""
    return settings(profile, max_examples=max(1, profile.max_examples // 6))


TestReadstateOnServers = ReadstateOnServers.TestCase
TestReadstateOnServers.settings = fewer(stateful_settings())
TestPeopleOnACluster = PeopleOnACluster.TestCase
TestPeopleOnACluster.settings = fewer(stateful_settings())
