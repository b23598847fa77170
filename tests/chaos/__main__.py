"""Storms by hand: `python -m tests.chaos --seeds 1 2 3`. The exit code is the number of those that failed."""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .run import storm
from .schedule import STORM_SECONDS


def main() -> int:
    """Run the seeds, one after the other."""
    arguments = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each makes up a storm")
    arguments.add_argument("--seconds", type=float, default=STORM_SECONDS, help="how long a storm lasts")
    arguments.add_argument("--quiet", action="store_true", help="tell only how each has ended")
    given = arguments.parse_args()
    failed: list[int] = []
    for number, seed in enumerate(given.seeds, 1):
        started = time.monotonic()
        print(f"seed {seed} ({number} of {len(given.seeds)})", flush=True)
        if not _passes(seed, given.seconds, given.quiet):
            failed.append(seed)
        print(f"seed {seed}: {'FAILED' if seed in failed else 'ok'} in {time.monotonic() - started:.1f} s", flush=True)
    print(f"{len(given.seeds) - len(failed)} of {len(given.seeds)} storms survived; failed: {failed or 'none'}")
    return len(failed)


def _passes(seed: int, seconds: float, quiet: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="readstate-chaos-", ignore_cleanup_errors=True) as directory:
        try:
            asyncio.run(storm(seed, Path(directory), (lambda _: None) if quiet else _tell, seconds))
        except AssertionError as error:
            print(error)
            return False
        except Exception:
            traceback.print_exc()
            return False
    return True


def _tell(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
