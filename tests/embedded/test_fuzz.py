"""Requests made up from the OpenAPI document: never a 5xx, and every answer is one that the document knows."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.effort import examples
from tests.servers import Server

EXAMPLES = os.environ.get("FUZZ_EXAMPLES", str(examples(1)))
SECONDS = os.environ.get("FUZZ_SECONDS", str(examples(12)))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def furnish(server: Server) -> None:
    """Something for the examples of the document to find."""
    headers = {"Authorization": f"Bearer {server.service_key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as http:
        members = {"type": "group", "members": ["alice", "bob", "carol"]}
        http.put("/v1/channels/general", json=members).raise_for_status()
        messages = [{"id": f"m{n}", "channel_id": "general", "sender_id": "alice", "text": "hey"} for n in range(1, 6)]
        reply = {"id": "r1", "channel_id": "general", "sender_id": "bob", "thread_id": "m1", "text": "yes"}
        http.post("/v1/messages", json={"messages": [*messages, reply]}).raise_for_status()


@pytest.mark.timeout(float(SECONDS) + 240)
def test_no_request_breaks_the_service_or_its_document(tmp_path: Path) -> None:
    server = Server(tmp_path / "data").start()
    try:
        furnish(server)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {server.service_key}"),
            *("--checks", CHECKS, "--max-examples", EXAMPLES, "--max-time", SECONDS, "--workers", "1"),
            *("--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color", "--warnings", "off"),
            *("--exclude-path", "/v1/import", "--generation-database", "none"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=float(SECONDS) + 120, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "Test cases:" in done.stdout
    finally:
        server.stop()
