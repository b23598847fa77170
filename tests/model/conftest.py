"""How hard the model tests try: `make test-long` tries forty times as hard."""

import os

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile("model", max_examples=12, stateful_step_count=30)
settings.register_profile("long", max_examples=200, stateful_step_count=80)


def stateful_settings() -> settings:
    """The chosen profile, without limits on time: every step writes to a disk."""
    chosen = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "model"))
    return settings(chosen, deadline=None, suppress_health_check=SLOW_IS_FINE, print_blob=True)
