"""`readstate serve` with short waits in the gateway, as a script: hasty.py serve --port PORT --data-dir DIR."""

import os
import sys

from readstate.cli.serve import run
from readstate.settings import load_settings
from readstate.timings import HttpTimings, Timings

if __name__ == "__main__":
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    settings = load_settings({"port": int(flags["--port"]), "data_dir": flags["--data-dir"]}, os.environ, None)
    run(settings, Timings(http=HttpTimings(sweep=0.05, linger=0.2, accept_pause=0.05)))
