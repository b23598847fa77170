"""Names of the topics and consumer groups, and librdkafka's connection options from the settings."""

from msgspec import Struct

from readstate.settings import Settings

from .producer import Options

READS, MESSAGES, UNSENT = "read-receipts", "messages", "ON_MSG_UNSENT"
DEAD = "-dlt"


class Topics(Struct, frozen=True):
    """Names with `topic_prefix`, for brokers that several deployments share."""

    prefix: str = ""

    @property
    def reads(self) -> str:
        """Read states. Key: user and channel."""
        return self.prefix + READS

    @property
    def messages(self) -> str:
        """Everything that changes a channel. Key: the channel."""
        return self.prefix + MESSAGES

    @property
    def unsent(self) -> str:
        """Messages whose receiver was away. Key: the receiver."""
        return self.prefix + UNSENT

    def dead(self, topic: str) -> str:
        return topic + DEAD

    @property
    def all(self) -> tuple[str, ...]:
        """All topics that must exist."""
        return self.reads, self.messages, self.unsent, self.dead(self.reads), self.dead(self.messages)

    @property
    def persister(self) -> str:
        return self.prefix + "read-receipt-persister"

    @property
    def writer(self) -> str:
        return self.prefix + "message-writer"

    @property
    def status_update(self) -> str:
        return self.prefix + "status-update"

    @property
    def dead_letters(self) -> str:
        return self.prefix + "dead-letters"


def kafka_options(settings: Settings) -> Options:
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": ",".join(settings.kafka_bootstrap),
        "security.protocol": settings.kafka_security,
        "client.id": "readstate",
    }
    files = {
        "ssl.ca.location": settings.kafka_ca,
        "ssl.certificate.location": settings.kafka_certificate,
        "ssl.key.location": settings.kafka_key,
    }
    if settings.kafka_security.endswith("ssl"):
        options |= {name: path for name, path in files.items() if path}
    if settings.kafka_security.startswith("sasl"):
        options |= {
            "sasl.mechanisms": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_username,
            "sasl.password": settings.kafka_password,
        }
    return options
