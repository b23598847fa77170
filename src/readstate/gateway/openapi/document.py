"""The OpenAPI 3.1 document of the API.

Made of what the gateway runs on: the table of routes, the structs that decode requests and encode
answers (with what stands beside their fields), and the tree of errors.
"""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, get_type_hints
from urllib.parse import quote

import msgspec
from msgspec import Struct, json

from readstate.domain import errors
from readstate.gateway.http.calls import JSON, JSON_LINES, LINES, Body, For, Group, Handler, Route
from readstate.gateway.http.problems import PROBLEM, BadIdInUrl, Problem, problem
from readstate.gateway.http.queries import ID, Parameter
from readstate.settings import Settings

from . import examples, schemas
from .texts import ABOUT, PATH

Json = dict[str, Any]

ErrorType = type[errors.ReadstateError]

PROBLEM_JSON = PROBLEM[1].decode()
REF = "#/components/schemas/"

_ALWAYS = (
    errors.BadRequest,
    errors.Unauthenticated,
    errors.InvalidToken,
    errors.TokenExpired,
    errors.Forbidden,
    errors.Invalid,
    errors.RateLimited,
    errors.Unavailable,
    errors.StorageUnavailable,
    errors.HotStoreUnavailable,
    errors.LogUnavailable,
    errors.Stopping,
)
_SECURITY: Mapping[For, list[Json]] = {
    For.ANYONE: [],
    For.SERVICE: [{"serviceKey": []}],
    For.USER: [{"serviceKey": []}, {"userToken": []}],
}
_SCHEMES = {
    "serviceKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A service key, for the backend of a chat product. It may do everything.",
    },
    "userToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A token of one user, for its devices. It acts as that user, in channels it is a member of.",
    },
}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait before trying again.", "schema": {"type": "integer", "minimum": 1}}
}
_CHALLENGE = {"WWW-Authenticate": {"description": "How to authenticate.", "schema": {"const": "Bearer"}}}


@lru_cache(maxsize=8)
def encoded(groups: tuple[Group, ...], settings: Settings, root: str) -> bytes:
    """The document as JSON, for a gateway that is mounted at `root`."""
    return json.encode(document(groups, settings, root))


def document(groups: Sequence[Group], settings: Settings, root: str = "") -> Json:
    """The whole document."""
    routes = [route for group in groups for route in group.routes]
    paths: dict[str, Json] = {}
    for group in groups:
        for route in group.routes:
            paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, group.name)
    made: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Readstate",
            "version": version("readstate"),
            "summary": "The read-state service for chat.",
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": quote(root.rstrip("/")) or "/"}],
        "tags": [{"name": group.name, "description": group.about} for group in groups],
        "paths": paths,
        "components": {
            "schemas": _schemas(routes),
            "responses": _shared_failures(routes),
            "examples": {
                error.code: _shown(error) for error in _sorted(error for route in routes for error in errors_of(route))
            },
            "securitySchemes": _SCHEMES,
        },
    }
    filled: Json = _with_limits(made, settings)
    return filled


def _with_limits(value: Any, settings: Settings) -> Any:
    """The same with the values of settings where limits name them."""
    if isinstance(value, dict):
        return {
            key: getattr(settings, item)
            if key in schemas.LIMITS and isinstance(item, str)
            else _with_limits(item, settings)
            for key, item in value.items()
        }
    return [_with_limits(item, settings) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- operations


def _operation(route: Route, group: str) -> Json:
    summary, _, rest = (inspect.getdoc(route.handler) or "").partition("\n")
    operation: Json = {
        "operationId": route.handler.__name__,
        "tags": [group],
        "summary": summary.rstrip("."),
        "description": _description(rest, route.open_to),
        "security": _SECURITY[route.open_to],
        "parameters": [*_in_path(route.pattern), *(_in_query(*item) for item in route.query.items())],
        "responses": {str(route.status): _success(route), **_failures(route)},
    }
    if route.body is not None:
        operation["requestBody"] = _request(route.body)
    return operation


def _description(rest: str, open_to: For) -> str:
    prose = [" ".join(part.split("\n")) for part in rest.strip().split("\n\n") if part]
    if open_to is For.SERVICE:
        prose.append("Service keys only.")
    return "\n\n".join(prose)


def _in_path(pattern: str) -> Iterable[Json]:
    for name in re.findall("{(.*?)}", pattern):
        about, example = PATH[name]
        yield {"name": name, "in": "path", "required": True, "description": about, "schema": ID, "example": example}


def _in_query(name: str, parameter: Parameter) -> Json:
    shown: Json = {"name": name, "in": "query", "description": parameter.about, "schema": dict(parameter.schema)}
    if parameter.schema.get("type") == "array":
        shown |= {"style": "form", "explode": False}
    return shown


def _request(body: Body) -> Json:
    if body.media == LINES:
        return {"required": True, "content": {LINES: _lines()}}
    shown = {"schema": _any_of(body.types), "examples": examples.of_types(body.types)}
    return {"required": any(schemas.required(type_) for type_ in body.types), "content": {body.media: shown}}


def _any_of(types: Sequence[type[Struct]]) -> Json:
    refs = [{"$ref": REF + type_.__name__} for type_ in types]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def _lines() -> Json:
    """JSON Lines. OpenAPI 3.1 has no word for what a line is, so this one is our own."""
    return {"schema": {"type": "string", "x-line": _any_of(JSON_LINES.types)}, "example": examples.lines()}


def _success(route: Route) -> Json:
    description = "Done."
    if route.media == LINES:
        content = _lines()
    elif (answer := answer_of(route.handler)) is not None:
        content = {"schema": _any_of((answer,)), "examples": examples.of_types((answer,))}
        description = (inspect.getdoc(answer) or "").partition("\n")[0]
    else:
        content = {"schema": {"type": "object"} if route.media == JSON else {"type": "string"}}
    return {"description": description, "content": {route.media: content}}


def answer_of(handler: Handler) -> type[Struct] | None:
    """The struct that a handler answers with; None if it makes the bytes itself."""
    made = get_type_hints(handler)["return"]
    return made if isinstance(made, type) and issubclass(made, Struct) else None


# ---------------------------------------------------------------- errors


def errors_of(route: Route) -> list[ErrorType]:
    """Everything that a route may be refused with."""
    found = [*route.errors]
    if route.open_to is not For.ANYONE:
        found += _ALWAYS
        if "{" in route.pattern:
            found += (errors.BadPath, BadIdInUrl)
        if {"cursor", "since"} & set(route.query):
            found.append(errors.InvalidCursor)
        if route.body is not None:
            found += (errors.WrongContentType, errors.TooLarge)
            found += (errors.BrokenJson, errors.InvalidId) if route.body.media == JSON else ()
    return _sorted(found)


def _sorted(found: Iterable[ErrorType]) -> list[ErrorType]:
    return sorted(set(found), key=lambda error: (error.status, error.code))


def _failures(route: Route) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{_name(refused)}"}
        for status, refused in _by_status(errors_of(route)).items()
    }


def _shared_failures(routes: Sequence[Route]) -> Json:
    """The same few sets of errors come back in many routes, so each set is described once."""
    return {
        _name(refused): _failure(status, refused)
        for route in routes
        for status, refused in _by_status(errors_of(route)).items()
    }


def _failure(status: int, refused: Sequence[ErrorType]) -> Json:
    codes = [error.code for error in refused]
    schema = {"allOf": [{"$ref": REF + Problem.__name__}], "properties": {"code": {"enum": codes}}}
    shown = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
    failure: Json = {
        "description": HTTPStatus(status).phrase,
        "content": {PROBLEM_JSON: {"schema": schema, "examples": shown}},
    }
    if status in {429, 503}:
        failure["headers"] = _RETRY_AFTER
    if status == 401:
        failure["headers"] = _CHALLENGE
    return failure


def _shown(error: ErrorType) -> Json:
    return {"summary": error().detail, "value": json.decode(problem(error()).body)}


def _name(refused: Sequence[ErrorType]) -> str:
    return "-".join([str(refused[0].status), *(error.code for error in refused)])


def _by_status(refused: Iterable[ErrorType]) -> dict[int, list[ErrorType]]:
    found: dict[int, list[ErrorType]] = {}
    for error in refused:
        found.setdefault(error.status, []).append(error)
    return found


# ---------------------------------------------------------------- schemas


def _schemas(routes: Sequence[Route]) -> Json:
    types: list[type[Struct]] = [Problem]
    for route in routes:
        types += route.body.types if route.body else ()
        if (answer := answer_of(route.handler)) is not None:
            types.append(answer)
    unique = list(dict.fromkeys(types))
    _, components = msgspec.json.schema_components(unique, ref_template=REF + "{name}")
    return schemas.complete(unique, components)
