"""JSON Schemas of structs, with what the structs alone don't say: what fields mean, and their limits."""

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from msgspec import NODEFAULT, Struct, structs
from msgspec import inspect as kinds

from readstate.api import Request
from readstate.gateway.http.problems import Problem, all_codes

from . import examples
from .texts import FIELDS, ID, TIME, TIMES, Word

Json = dict[str, Any]

LIMITS = frozenset({"maximum", "maxItems", "maxLength"})
"""Where a schema may name a setting instead of a number."""

_TEXT_OR_NUMBER = [{"type": "string"}, {"type": "integer"}]


def told(types: Sequence[type[Struct]], components: Json) -> Json:
    """The components of these types, explained."""
    for type_ in _structs(types):
        component = components[type_.__name__]
        docs = _docs_of_fields(type_)
        for name, schema in component.get("properties", {}).items():
            word = word_of(type_, name)
            about = docs.get(name) or word.about
            plain = _limited(_with_ids(name, schema), word.most if issubclass(type_, Request) else None)
            component["properties"][name] = plain | ({"description": about} if about else {})
        component["examples"] = [examples.of(type_)]
    components[Problem.__name__]["properties"]["code"]["enum"] = all_codes()
    return components | {"Id": ID, "Time": TIME}


def word_of(type_: type[Struct], field: str) -> Word:
    """What is said of a field: in this struct, or everywhere."""
    names = [f"{base.__name__}.{field}" for base in type_.__mro__]
    return next((FIELDS[name] for name in [*names, field] if name in FIELDS), Word(""))


def required(type_: type[Struct]) -> bool:
    """Whether any field must be given."""
    fields = structs.fields(type_)
    return any(field.default is NODEFAULT and field.default_factory is NODEFAULT for field in fields)


def _limited(schema: Json, most: str | None) -> Json:
    kinds_ = set(_kinds_of(schema)) if most else set()
    limits = {limit: most for kind, limit in (("string", "maxLength"), ("array", "maxItems")) if kind in kinds_}
    return schema | limits


def _kinds_of(schema: Json) -> Iterable[str]:
    if "type" in schema:
        yield schema["type"]
    for choice in schema.get("anyOf", ()):
        yield from _kinds_of(choice)


def _with_ids(name: str, schema: Json) -> Json:
    """The same with ids and times of requests, which are text or a number, as `Id` and `Time`."""
    if isinstance(schema.get("items"), dict):
        return schema | {"items": _with_ids(name, schema["items"])}
    choices = schema.get("anyOf", [])
    if [choice for choice in choices if choice in _TEXT_OR_NUMBER] != _TEXT_OR_NUMBER:
        return schema
    named = {"$ref": f"#/components/schemas/{'Time' if name in TIMES else 'Id'}"}
    others = [choice for choice in choices if choice not in _TEXT_OR_NUMBER]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return rest | ({"anyOf": [*others, named]} if others else named)


def _structs(types: Iterable[type[Struct]]) -> set[type[Struct]]:
    """These structs, and all that they are made of."""
    found: set[type[Struct]] = set()
    waiting: list[kinds.Type] = [kinds.type_info(type_) for type_ in types]
    while waiting:
        match waiting.pop():
            case kinds.StructType(cls=cls, fields=fields) if cls not in found:
                found.add(cls)
                waiting += [field.type for field in fields]
            case kinds.UnionType(types=choices):
                waiting += choices
            case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item) | kinds.DictType(value_type=item):
                waiting.append(item)
    return found


def _docs_of_fields(type_: type[Struct]) -> dict[str, str]:
    """The docstrings that stand below fields, also those of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(type_.__mro__):
        if issubclass(base, Struct) and base is not Struct:
            docs |= _docs_in(base.__module__).get(base.__name__, {})
    return docs


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    """Of each class of a module, the docstrings below its fields. Only the source has them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: _docs_below(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_below(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs
