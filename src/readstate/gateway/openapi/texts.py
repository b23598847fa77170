"""What the documentation says of the API as a whole, of paths, and of ids and times."""

from typing import Any

from readstate.domain.model import MAX_NUMBER

ABOUT = """Readstate answers, exactly and at once: what is unread, for whom, where, since when, who has seen what, \
and in which order the inbox stands.

**Who may call.** Send `Authorization: Bearer …` with a service key (a chat backend; it may do everything) or \
with a user token (a JWT; it acts as its own user, in channels that user is a member of). In a path, `me` is the \
user of the token. Of channels it is not in, a user token learns nothing: it gets 403 `forbidden` whether they exist \
or not, where a service key gets 404 `channel_not_found` or `not_a_member`.

**Ids and times.** Ids are 1 to 128 bytes of printable UTF-8; percent-encode them in paths. Times in answers are \
milliseconds since 1970. Order follows `seq`, never ids.

**Lists** are paged: give `cursor` of one page to get the next; a `cursor` of null is the end.

**Errors** are `application/problem+json`. `code` is for programs, `detail` for people, `field` names what is \
wrong, and `retry` says whether the same request may succeed later; 429 and 503 say when in `Retry-After`. A request \
that is refused has changed nothing. Unknown fields and parameters are refused."""

PATH = {
    "user": ("The id of a user, or `me` for the user of the token.", "bob"),
    "channel": ("The id of a channel.", "general"),
    "message": ("The id of a message.", "msg_42"),
    "thread": ("The id of a thread's root message.", "msg_42"),
}
"""What stands in paths: what it means, and an example."""

ID: dict[str, Any] = {
    "title": "Id",
    "description": "1 to 128 bytes of printable UTF-8. An integer stands for its decimal string.",
    "anyOf": [{"type": "string", "minLength": 1, "maxLength": 128}, {"type": "integer"}],
    "examples": ["general"],
}
TIME: dict[str, Any] = {
    "title": "Time",
    "description": "Milliseconds since 1970, or RFC 3339 with a zone.",
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    ],
    "examples": ["2026-01-31T09:30:00Z", 1769851800000],
}
