"""The OpenAPI document and the page that shows it: complete, sound, and true of what the service answers."""

import base64
import hashlib
import html.parser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from readstate.domain.errors import by_code
from readstate.gateway.http.calls import JSON, LINES
from readstate.gateway.http.problems import all_codes
from readstate.gateway.http.routes import GROUPS, routes
from readstate.gateway.openapi.document import document
from readstate.settings import Settings
from tests.conftest import Chat, in_process, segment

Json = dict[str, Any]
SETTINGS = Settings(max_page=500, max_batch=50, max_text=8192, max_mentions=20)


@pytest.fixture(scope="module")
def api() -> Json:
    return document(GROUPS, SETTINGS)


def operations(api: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def everything_in(value: Any) -> Iterator[Any]:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everything_in(item)


def resolved(api: Json, value: Json) -> Json:
    while "$ref" in value:
        place: Any = api
        for name in value["$ref"].removeprefix("#/").split("/"):
            place = place[name]
        value = place
    return value


# ---------------------------------------------------------------- fitting a schema


class Misfit(AssertionError):
    """A value that its schema does not allow."""


KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def fit(api: Json, schema: Json, value: Any, place: str = "$") -> None:
    """The value is as the schema says, and an object has no field that its schema does not name."""
    schema = {**resolved(api, schema), **{key: item for key, item in schema.items() if key != "$ref"}}
    if "anyOf" in schema:
        fit_any(api, schema["anyOf"], value, place)
    for part in schema.get("allOf", ()):
        fit(api, part, value, place)
    kind = schema.get("type")
    if kind and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind in {"integer", "number"})):
        raise Misfit(f"{place}: {value!r} is no {kind}")
    if "enum" in schema and value not in schema["enum"]:
        raise Misfit(f"{place}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, list):
        for number, item in enumerate(value):
            fit(api, schema.get("items", {}), item, f"{place}[{number}]")
    if isinstance(value, dict) and kind == "object":
        fit_object(api, schema, value, place)


def fit_any(api: Json, choices: list[Json], value: Any, place: str) -> None:
    faults = []
    for choice in choices:
        try:
            return fit(api, choice, value, place)
        except Misfit as fault:
            faults.append(str(fault))
    raise Misfit("; ".join(faults))


def fit_object(api: Json, schema: Json, value: Json, place: str) -> None:
    if missing := set(schema.get("required", ())) - set(value):
        raise Misfit(f"{place}: without {missing}")
    others = schema.get("additionalProperties")
    for name, item in value.items():
        inner = schema.get("properties", {}).get(name, others if isinstance(others, dict) else None)
        if inner is None:
            raise Misfit(f"{place}.{name} is not in the schema")
        fit(api, inner, item, f"{place}.{name}")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"status": 5, "dependencies": {}},
        {"status": "bad", "dependencies": {}},
        {"status": "ok", "dependencies": {"database": 1}},
        {"status": "ok", "dependencies": {}, "more": 1},
    ],
)
def test_what_does_not_fit_is_found(api: Json, wrong: Any) -> None:
    with pytest.raises(Misfit):
        fit(api, {"$ref": "#/components/schemas/Readiness"}, wrong)


# ---------------------------------------------------------------- the document in itself


def test_every_route_is_in_the_document(api: Json) -> None:
    served = {(route.pattern, route.method.lower()) for route in routes() if route.method != "HEAD"}

    assert {(path, method) for path, method, _ in operations(api)} == served


def test_every_reference_leads_somewhere(api: Json) -> None:
    references = [value for value in everything_in(api) if isinstance(value, dict) and "$ref" in value]

    assert references
    for reference in references:
        assert resolved(api, reference)


def test_every_shared_part_is_used(api: Json) -> None:
    used = {value["$ref"] for value in everything_in(api) if isinstance(value, dict) and "$ref" in value}
    parts = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in api["components"][kind]}

    assert parts <= used


def test_operations_have_names_of_their_own(api: Json) -> None:
    names = [operation["operationId"] for _, _, operation in operations(api)]

    assert len(names) == len(set(names))


def test_every_operation_tells_what_it_does_takes_and_answers(api: Json) -> None:
    tags = {tag["name"] for tag in api["tags"]}
    schemes = set(api["components"]["securitySchemes"])
    for path, method, operation in operations(api):
        assert operation["summary"], path
        assert set(operation["tags"]) <= tags
        assert {name for scheme in operation["security"] for name in scheme} <= schemes
        assert any(status.startswith("2") for status in operation["responses"])
        assert method != "get" or "requestBody" not in operation
        declared = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert declared == re.findall("{(.*?)}", path)
        for parameter in operation["parameters"]:
            assert parameter["description"]
            assert parameter["schema"]["type"]
            assert parameter.get("required") is True or parameter["in"] == "query"


def test_who_needs_a_key_may_be_refused_for_it(api: Json) -> None:
    for path, _, operation in operations(api):
        refusals = {"401", "403", "429", "503"} & set(operation["responses"])
        assert refusals == ({"401", "403", "429", "503"} if path.startswith("/v1/") else refusals - {"401"})
        assert bool(operation["security"]) == path.startswith("/v1/")


def test_errors_are_those_of_the_tree(api: Json) -> None:
    told = set(api["components"]["schemas"]["Problem"]["properties"]["code"]["enum"])

    assert told == set(all_codes()) == set(by_code()) - {"configuration"}
    assert set(api["components"]["examples"]) <= told
    # A wrong method has no operation, a fault of ours is in none, and the general ones have special ones. What a
    # connection is refused for is told before there is an operation.
    assert told - set(api["components"]["examples"]) == {
        "method_not_allowed",
        "internal",
        "not_found",
        "conflict",
        "unknown_frame",
        "too_many_devices",
        "headers_too_large",
        "request_timeout",
        "too_many_connections",
    }


def test_every_field_is_explained(api: Json) -> None:
    for name, schema in api["components"]["schemas"].items():
        assert schema["description"], name
        for field, told in schema.get("properties", {}).items():
            assert told.get("description"), f"{name}.{field}"


def test_every_example_fits_its_schema(api: Json) -> None:
    for name, schema in api["components"]["schemas"].items():
        assert schema["examples"], name
        for example in schema["examples"]:
            fit(api, {"$ref": f"#/components/schemas/{name}"}, example, name)
    for part in everything_in(api):
        if isinstance(part, dict) and "schema" in part:
            for example in part.get("examples", {}).values():
                fit(api, part["schema"], resolved(api, example)["value"])


def test_limits_are_those_of_the_settings(api: Json) -> None:
    inbox = api["paths"]["/v1/users/{user}/inbox"]["get"]["parameters"]
    [limit] = [parameter["schema"] for parameter in inbox if parameter["name"] == "limit"]
    requests = api["components"]["schemas"]

    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 500, 20)
    assert requests["Reads"]["properties"]["reads"]["maxItems"] == 50
    assert requests["NewMessage"]["properties"]["text"]["maxLength"] == 8192
    assert requests["NewMessage"]["properties"]["mentions"]["maxItems"] == 20
    assert "maxItems" not in requests["UnreadMessages"]["properties"]["messages"]


def test_a_mounted_api_says_where(api: Json) -> None:
    assert api["servers"] == [{"url": "/"}]
    assert document(GROUPS, SETTINGS, "/chat room/")["servers"] == [{"url": "/chat%20room"}]


# ---------------------------------------------------------------- the document and the service

GENERAL = {"channel": "general"}
BOB = {"user": "bob"}
THERE = BOB | GENERAL
FIRST = GENERAL | {"message": "m1"}
ALICE_SAYS: Json = {"channel_id": "general", "sender_id": "alice"}

STORY: list[tuple[str, Json, Any]] = [
    ("put_channel", GENERAL, {"type": "group", "name": "General", "members": ["alice", "bob"]}),
    ("get_channel", GENERAL, None),
    ("change_members", GENERAL, {"add": ["carol"], "history": 5}),
    ("get_members", GENERAL | {"limit": 1}, None),
    ("post_messages", {}, ALICE_SAYS | {"id": "m1", "text": "hello", "mentions": ["bob"]}),
    ("post_messages", {}, {"messages": [ALICE_SAYS | {"id": "m2"}, ALICE_SAYS | {"id": "r1", "thread_id": "m1"}]}),
    ("post_messages", {}, {"messages": [ALICE_SAYS | {"id": "m2"}, ALICE_SAYS | {"sender_id": "nobody"}]}),
    ("post_messages", {}, {"messages": [{"id": "m3"}]}),
    ("patch_message", FIRST, {"text": "hello, all"}),
    ("sync", BOB | {"limit": 1}, None),
    ("get_unread", THERE, None),
    ("unread_messages", BOB, None),
    ("totals", {}, {"users": ["alice", "bob", "nobody"]}),
    ("inbox", BOB | {"order": "unread_first"}, None),
    ("get_badge", BOB, None),
    ("tap_badge", BOB, {}),
    ("follow_thread", THERE | {"thread": "m1"}, None),
    ("threads", BOB | {"filter": "all", "channel": "general"}, None),
    ("read_thread", THERE | {"thread": "m1"}, {}),
    ("unfollow_thread", THERE | {"thread": "m1"}, None),
    ("read_thread", THERE | {"thread": "m1"}, {}),
    ("mark_read", THERE, {"up_to": "m1"}),
    ("seen", FIRST, None),
    ("receipts", GENERAL, None),
    ("mark_unread", THERE, {"from": "m1"}),
    ("mark_many", {}, {"reads": [{"user_id": "bob", "channel_id": "general"}, {"user_id": "bob", "channel_id": "no"}]}),
    ("mark_all", BOB, {"all": True}),
    ("undo", BOB, {"undo": "no such token"}),
    ("explain", THERE, None),
    ("recount", THERE, {}),
    ("put_presence", BOB, {"device": "phone", "online": True}),
    ("get_presence", BOB, None),
    ("put_user_preferences", BOB, {"receipts": "private"}),
    ("get_user_preferences", BOB, None),
    ("put_preferences", THERE, {"muted": "2100-01-01T00:00:00Z", "pinned": True, "archived": True}),
    ("get_preferences", THERE, None),
    ("inbox", BOB | {"filter": "surprise"}, None),
    ("inbox", BOB | {"filter": "archived"}, None),
    ("delete_message", FIRST, None),
    ("patch_message", FIRST, {"text": "too late"}),
    ("export", {}, None),
    ("import_lines", {"first_line": 1}, b'{"type": "readstate", "version": 1}\nnonsense\n'),
    ("erase_user", {"user": "carol"}, None),
    ("delete_channel", GENERAL, None),
    ("get_channel", GENERAL, None),
    ("healthz", {}, None),
    ("readyz", {}, None),
    ("metrics", {}, None),
    ("openapi_json", {}, None),
    ("docs", {}, None),
]


def located(path: str, values: Json) -> tuple[str, Json]:
    """A path with its values in it, and the values that are left for the query."""
    names = re.findall("{(.*?)}", path)
    for name in names:
        path = path.replace(f"{{{name}}}", segment(values[name]))
    return path, {name: value for name, value in values.items() if name not in names}


def check_documented(api: Json, operation: Json, answer: httpx.Response) -> None:
    """The status is one of the operation's, and the body is what it says of it."""
    where = f"{operation['operationId']} {answer.status_code}"
    assert str(answer.status_code) in operation["responses"], f"{where}: {answer.text[:300]}"
    content = resolved(api, operation["responses"][str(answer.status_code)])["content"]
    media = answer.headers["content-type"].partition(";")[0]
    assert set(content) == {media}, where
    if media in {JSON, "application/problem+json"} and operation["operationId"] != "openapi_json":
        fit(api, content[media]["schema"], answer.json(), where)


async def test_every_answer_of_a_whole_story_is_as_documented(tmp_path: Path) -> None:
    async with in_process(tmp_path) as chat:
        api = await chat.ask("GET", "/openapi.json")
        known = {operation["operationId"]: (path, method, operation) for path, method, operation in operations(api)}
        for name, values, body in STORY:
            path, method, operation = known[name]
            place, query = located(path, values)
            sent = {"content": body, "headers": {"content-type": LINES}} if isinstance(body, bytes) else {"json": body}
            answer = await chat.call(method, place, params=query, **(sent if body is not None else {}))
            check_documented(api, operation, answer)

    assert {name for name, _, _ in STORY} == set(known)


async def test_the_example_of_an_import_can_be_imported(api: Json, tmp_path: Path) -> None:
    example = api["paths"]["/v1/import"]["post"]["requestBody"]["content"][LINES]["example"]
    async with in_process(tmp_path) as chat:
        report = await chat.ask("POST", "/v1/import", content=example, headers={"content-type": LINES})

        assert report == {"accepted": 8, "refused": [], "next_line": 10}
        assert await chat.count("bob") == 1


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_the_documentation_needs_no_key(tmp_path: Path, path: str) -> None:
    async with in_process(tmp_path) as chat:
        answer = await Chat(chat.http, token=None).call("GET", path)

        assert answer.status_code == 200


# ---------------------------------------------------------------- the page


class Elements(html.parser.HTMLParser):
    """The elements of a page, with their attributes, and what stands in styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in {"style", "script"} and data.strip():
            self.inline.setdefault(self.found[-1][0], data)


@pytest.fixture
async def page(tmp_path: Path) -> httpx.Response:
    async with in_process(tmp_path) as chat:
        return await chat.call("GET", "/docs")


async def test_the_page_runs_its_own_style_and_script_and_nothing_else(page: httpx.Response) -> None:
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    inline = Elements(page.text).inline

    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(inline[kind].encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"


async def test_the_page_is_whole_in_itself(page: httpx.Response) -> None:
    for tag, attributes in Elements(page.text).found:
        assert "src" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert tag != "link" or attributes["href"] == "data:,"
    assert not re.search(r"https?://|@import|\burl\(|innerHTML|\beval\b|localStorage|sessionStorage|cookie", page.text)


async def test_the_page_can_be_used_without_seeing_it(page: httpx.Response) -> None:
    found = Elements(page.text).found
    labelled = {attributes.get("for") for tag, attributes in found if tag == "label"}

    assert ("html", {"lang": "en"}) in found
    assert {"header", "nav", "main", "h1"} <= {tag for tag, _ in found}
    assert all(attributes["id"] in labelled for tag, attributes in found if tag == "input")
