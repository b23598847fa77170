"""The tests of the JavaScript client, run by Node against real services."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import LONG, examples

CLIENT = Path(__file__).parents[2] / "clients" / "js"
DEADLINE = 3000 if LONG else 540
EFFORT = {"STEPS": str(examples(150)), "ROUNDS": str(examples(6))}
"""Of the random tests."""


@pytest.mark.timeout(DEADLINE + 60)
def test_the_javascript_client() -> None:
    node = shutil.which("node")
    if node is None and not os.environ.get("CI"):
        pytest.skip("node is not installed")
    assert node is not None, "node is not installed"
    files = sorted(str(file.relative_to(CLIENT)) for file in CLIENT.glob("test/*.test.js"))
    assert files

    tests = subprocess.Popen(
        [node, "--experimental-websocket", "--test", "--test-reporter=spec", *files],
        cwd=CLIENT,
        env=os.environ | {"READSTATE_PYTHON": sys.executable, "NODE_NO_WARNINGS": "1"} | EFFORT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = tests.communicate(timeout=DEADLINE)
    except BaseException as error:
        os.killpg(tests.pid, signal.SIGKILL)  # the services that it started, too
        output, _ = tests.communicate()
        error.add_note(output)  # how far it came
        raise

    assert tests.returncode == 0, output
