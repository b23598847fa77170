from readstate.gateway.ratelimit import BURST, RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_four_seconds_worth_may_come_at_once_and_no_more() -> None:
    limiter = RateLimiter(50, Clock())

    waits = [limiter.take("bob") for _ in range(201)]

    assert waits[:200] == [0] * 200
    assert 0 < waits[200] <= 0.02


def test_after_the_wait_that_was_told_the_next_one_passes() -> None:
    clock = Clock()
    limiter = RateLimiter(3, clock)
    while not (wait := limiter.take("bob")):
        pass

    clock.now += wait

    assert limiter.take("bob") == 0
    assert limiter.take("bob") > 0


def test_a_refused_request_costs_nothing() -> None:
    clock = Clock()
    limiter = RateLimiter(1, clock)
    for _ in range(BURST):
        limiter.take("bob")
    for _ in range(100):
        assert limiter.take("bob") > 0

    clock.now += 1

    assert limiter.take("bob") == 0


def test_on_average_the_rate_is_kept() -> None:
    clock = Clock()
    limiter = RateLimiter(7, clock)
    passed = 0
    for _ in range(1_000):
        passed += limiter.take("bob") == 0
        clock.now += 0.01

    assert passed in range(7 * (10 + BURST - 1), 7 * (10 + BURST) + 1)


def test_resting_does_not_save_up_more_than_the_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(2, clock)
    clock.now += 3_600

    assert [limiter.take("bob") == 0 for _ in range(9)] == [*[True] * 8, False]


def test_one_principal_does_not_slow_another() -> None:
    limiter = RateLimiter(1, Clock())
    for _ in range(BURST):
        limiter.take("bob")

    assert limiter.take("bob") > 0
    assert limiter.take("carol") == 0


def test_principals_that_rest_are_forgotten() -> None:
    clock = Clock()
    limiter = RateLimiter(5, clock)
    for number in range(50_000):
        limiter.take(f"user-{number}")
        clock.now += 0.001

    assert len(limiter) < 3_000


def test_forgetting_gives_nobody_a_fresh_start() -> None:
    clock = Clock()
    limiter = RateLimiter(1, clock)
    for _ in range(BURST):
        limiter.take("bob")
    for number in range(5_000):
        limiter.take(f"user-{number}")

    assert limiter.take("bob") > 0
