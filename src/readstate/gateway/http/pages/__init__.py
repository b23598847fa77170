"""Pages for people, and the strict policy for browsers under which they run."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from readstate.gateway.asgi import Answer, Header, content_type


@cache
def docs_page() -> Answer:
    """The API to read and to try. It reads `./openapi.json`, so it works wherever it is mounted."""
    style, script = _text("docs.css"), _text("docs.js")
    page = _text("docs.html").replace("/* docs.css */", style).replace("/* docs.js */", script)
    policy = page_headers(f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'", "img-src data:")
    return Answer(200, [content_type("text/html; charset=utf-8"), *policy], page.encode())


def page_headers(*allowed: str) -> list[Header]:
    """The page loads and runs only what is allowed here, and connects only to the server that it came from."""
    rules = (
        "default-src 'none'",
        *allowed,
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return [
        (b"content-security-policy", "; ".join(rules).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ]


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
