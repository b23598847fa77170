"""What befalls the cluster, and when: made up from a seed, so that a storm can be had again."""

import random
from dataclasses import dataclass

STORM_SECONDS = 10.0
FAULTS = (6, 10)
TRIES = 10
"""For each of them: what is already hit can't be hit again."""
SESSION_MS = 2_000
"""So long a worker may be silent before others take over."""
THROUGH_A_REBALANCE = (SESSION_MS + 1_000, SESSION_MS + 2_000)

SERVES, WORKERS = 2, 2


@dataclass(frozen=True, order=True)
class Fault:
    """Something that begins at a time, and is over after another."""

    at: float
    what: str
    """`kill`, `stop`, `pause`, `cut`, `stall`, `delay` or `flush`."""
    whom: str
    """A process (`serve-0`, `worker-1`, `valkey`, `kafka`, `postgres`), or for the network where a way leads to."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:4.1f} s  {self.what} {self.whom} for {self.seconds:.1f} s"


def schedule(seed: int, seconds: float = STORM_SECONDS) -> list[Fault]:
    """The faults of a storm, by the time at which they begin. Nobody is hit by two at the same time."""
    dice = random.Random(f"storm {seed}")
    faults: list[Fault] = []
    number = dice.randint(*FAULTS)
    for _ in range(TRIES * number):
        fault = _fault(dice, seconds)
        if len(faults) < number and not any(_collide(fault, other) for other in faults):
            faults.append(fault)
    return sorted(faults)


def _fault(dice: random.Random, seconds: float) -> Fault:
    at = round(dice.uniform(0.2, seconds - 1), 2)
    what, whom, low, high = dice.choices([row[:4] for row in KINDS], [row[4] for row in KINDS])[0]
    if whom in {"serve", "worker"}:
        whom = f"{whom}-{dice.randrange(SERVES if whom == 'serve' else WORKERS)}"
    elif whom == "network":
        whom = dice.choice(["hot", "log", "database"])
    return Fault(at, what, whom, round(dice.uniform(low, high), 2))


KINDS: list[tuple[str, str, float, float, int]] = [
    # what, whom, shortest, longest, how often in comparison
    ("kill", "serve", 0.1, 1.0, 10),
    ("kill", "worker", 0.1, 1.0, 14),
    ("kill", "valkey", 0.1, 0.6, 7),
    ("kill", "postgres", 0.1, 0.6, 7),
    ("kill", "kafka", 0.1, 0.6, 7),
    ("stop", "serve", 0.1, 0.5, 4),
    ("stop", "worker", 0.1, 0.5, 4),
    ("pause", "serve", 0.3, 3.0, 8),
    ("pause", "worker", THROUGH_A_REBALANCE[0] / 1000, THROUGH_A_REBALANCE[1] / 1000, 12),
    ("pause", "valkey", 0.2, 2.0, 6),
    ("pause", "postgres", 0.2, 2.5, 6),
    ("pause", "kafka", 0.2, 2.5, 6),
    ("flush", "valkey", 0.0, 0.0, 10),
    ("cut", "network", 0.2, 2.5, 16),
    ("stall", "network", 0.2, 2.5, 10),
    ("delay", "network", 0.5, 2.0, 5),
]
STARTS_SECONDS = {"kafka": 5.0, "postgres": 1.0}
"""What was killed is down for so much longer."""


def _collide(one: Fault, other: Fault) -> bool:
    return one.whom == other.whom and one.at <= _over(other) and other.at <= _over(one)


def _over(fault: Fault) -> float:
    """When whom it hit can be hit again."""
    down = STARTS_SECONDS.get(fault.whom, 0.0) if fault.what == "kill" else 0.0
    return fault.at + fault.seconds + down + 0.5
