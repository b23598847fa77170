"""What the topics and consumer groups are called, and how Kafka is reached."""

from msgspec import Struct

from readstate.settings import Settings

from .producer import Options

READS, MESSAGES, UNSENT = "read-receipts", "messages", "ON_MSG_UNSENT"
DEAD = "-dlt"


class Topics(Struct, frozen=True):
    """Names with the prefix of brokers that are shared."""

    prefix: str = ""

    @property
    def reads(self) -> str:
        """States after reads; key: user and channel."""
        return self.prefix + READS

    @property
    def messages(self) -> str:
        """Everything that changes channels; key: the channel."""
        return self.prefix + MESSAGES

    @property
    def unsent(self) -> str:
        """Messages to those who were away; key: the receiver."""
        return self.prefix + UNSENT

    def dead(self, topic: str) -> str:
        """Where the events of a topic go that fail again and again."""
        return topic + DEAD

    @property
    def all(self) -> tuple[str, ...]:
        """All that must be there."""
        return self.reads, self.messages, self.unsent, self.dead(self.reads), self.dead(self.messages)

    @property
    def persister(self) -> str:
        """The group that writes reads."""
        return self.prefix + "read-receipt-persister"

    @property
    def writer(self) -> str:
        """The group that writes messages."""
        return self.prefix + "message-writer"

    @property
    def status_update(self) -> str:
        """The group that keeps badges."""
        return self.prefix + "status-update"

    @property
    def dead_letters(self) -> str:
        """The group that repairs what failed."""
        return self.prefix + "dead-letters"


def kafka_options(settings: Settings) -> Options:
    """Where the brokers are and who we are to them, in librdkafka's words."""
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
