"""JSON Schemas of structs, as OpenAPI shows them: with examples, and with ids and times by name."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, structs
from msgspec import inspect as kinds

from readstate.gateway.http.problems import Problem, all_codes

from . import examples
from .texts import ID, TIME

Json = dict[str, Any]

LIMITS = frozenset({"maximum", "maxItems", "maxLength"})
"""Where a schema may name a setting instead of a number."""


def complete(types: Sequence[type[Struct]], components: Json) -> Json:
    """The components of these types, with what msgspec leaves out."""
    for type_ in structs_in(types):
        component = components[type_.__name__]
        component["properties"] = {name: _named(schema) for name, schema in component.get("properties", {}).items()}
        if (tag := type_.__struct_config__.tag_field) is not None:
            component["properties"][tag]["description"] = "The kind of record."
        component["examples"] = [examples.of(type_)]
    components[Problem.__name__]["properties"]["code"]["enum"] = all_codes()
    return components | {"Id": ID, "Time": TIME}


def required(type_: type[Struct]) -> bool:
    """Whether any field must be given."""
    return any(field.required for field in structs.fields(type_))


def _named(schema: Json) -> Json:
    """The same with ids and times as references. Examples are shown with the struct."""
    schema = {key: value for key, value in schema.items() if key != "examples"}
    if (name := schema.pop("title", None)) in {"Id", "Time"}:
        del schema["anyOf"]
        schema["$ref"] = f"#/components/schemas/{name}"
    if isinstance(schema.get("items"), dict):
        schema["items"] = _named(schema["items"])
    if "anyOf" in schema:
        schema["anyOf"] = [_named(choice) for choice in schema["anyOf"]]
    return schema


def structs_in(types: Iterable[type[Struct]]) -> set[type[Struct]]:
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
            case kinds.Metadata(type=inner):
                waiting.append(inner)
            case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item) | kinds.DictType(value_type=item):
                waiting.append(item)
    return found
