"""Which JSON schemas a grammar can hold the output to.

A schema with a keyword that xgrammar leaves out would give output that is not valid, without a word. Such schemas are
refused here, by keyword and place; this was found out by trying each keyword against texts that violate it (xgrammar
0.2.9). Knows JSON schema; knows no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: keywords that are left out wherever they stand (``contains`` is taken for something else)
_IGNORED = [
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
]

#: keywords that only act on values of one type, and are left out where that type is not said
_OF_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("minItems", "maxItems", "prefixItems", "items"),
    "object": ("required", "minProperties", "maxProperties", "properties", "patternProperties", "propertyNames",
               "additionalProperties"),
}  # fmt: skip
#: these say the type by themselves
_IMPLIES = {"array": ("items", "prefixItems"), "object": ("properties",)}

#: the first of these decides alone; what stands beside it is left out
_DECIDES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_ASSERTIONS = frozenset(("type", *_DECIDES, *(word for words in _OF_TYPE.values() for word in words)))

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def refuse_unenforceable(schema: Any) -> None:
    """Raises ValueError for the first keyword that would be left out, with its place and what to do.

    Args:
        schema: as ``json.loads`` gives it.
    """
    for place, node in _nodes(schema, "#"):
        if place.endswith("/propertyNames"):
            node = {"type": "string", **node}  # names are strings
        for check in (_ignored, _beside, _types, _pairs, _patterns):
            fault = check(node)
            if fault is not None:
                raise ValueError(f"the JSON schema cannot be enforced at {place}: {fault}")


def _nodes(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside ``schema``, itself included, with its JSON pointer. Property names are not keywords."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        inner = schema.get(keyword)
        for name, child in inner.items() if isinstance(inner, dict) else ():
            yield from _nodes(child, f"{place}/{keyword}/{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        branches = schema.get(keyword)
        for index, child in enumerate(branches if isinstance(branches, list) else ()):
            yield from _nodes(child, f"{place}/{keyword}/{index}")
    for keyword in ("items", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"):
        yield from _nodes(schema.get(keyword), f"{place}/{keyword}")


def _ignored(node: dict[str, Any]) -> str | None:
    for keyword in _IGNORED:
        if keyword in node and node[keyword] is not False:
            return f"{keyword!r} is not supported; leave it out and check the output yourself"
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        return f"'$ref' to {reference!r} leaves the schema; put the definition under '$defs'"
    return None


def _beside(node: dict[str, Any]) -> str | None:
    """What stands beside a keyword that decides alone."""
    decider = next((keyword for keyword in _DECIDES if keyword in node), None)
    if decider is None:
        return None
    others = sorted(
        _ASSERTIONS.intersection(node) - {decider} - ({"type"} if _type_is_implied(node, decider) else set())
    )
    if others:
        return f"{decider!r} decides alone, {others} beside it would be left out; move them into it"
    if decider == "allOf" and len(node["allOf"]) > 1:
        return "'allOf' of several schemas is not supported; merge them into one"
    return None


def _type_is_implied(node: dict[str, Any], decider: str) -> bool:
    """Whether leaving out ``type`` changes nothing, because everything the decider allows has that type."""
    types = _types_of(node)
    if decider in ("const", "enum"):
        values = node["enum"] if decider == "enum" else [node["const"]]
        return all(any(_is_a(value, kind) for kind in types) for value in values)
    if decider in ("anyOf", "oneOf", "allOf"):
        return all(
            isinstance(branch, dict) and set(_types_of(branch) or [""]) <= set(types) for branch in node[decider]
        )
    return False


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":  # a bool is an int to Python only
        return False
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _types_of(node: dict[str, Any]) -> list[str]:
    types = node.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _types(node: dict[str, Any]) -> str | None:
    """Keywords without the type they act on."""
    if any(keyword in node for keyword in _DECIDES):
        return None
    types = set(_types_of(node))
    if "integer" in types:
        types.add("number")
    for kind, keywords in _OF_TYPE.items():
        implied = not types and any(keyword in node for keyword in _IMPLIES.get(kind, ()))
        found = [keyword for keyword in keywords if keyword in node]
        if found and kind not in types and not implied:
            return f'{found[0]!r} has no effect without "type": {kind!r}; add the type'
    return None


def _pairs(node: dict[str, Any]) -> str | None:
    """Keywords that do not work together."""
    lengths = [keyword for keyword in ("minLength", "maxLength") if keyword in node]
    shapes = [keyword for keyword in ("pattern", "format") if keyword in node]
    if lengths and shapes:
        return f"{lengths[0]!r} beside {shapes[0]!r} would be left out; write the length into a pattern"
    if len(shapes) == 2:
        return "'pattern' beside 'format' would be left out; keep one of them"
    if "multipleOf" in node and _types_of(node) != ["integer"]:
        return "'multipleOf' works for \"type\": 'integer' only"
    unknown = sorted(set(node.get("required", ())) - set(node.get("properties", ())))
    if unknown:
        return f"'required' names {unknown}, which 'properties' does not describe; add them there"
    return None


#: a character that JSON writes with a backslash, itself or as an escape
_ESCAPED_IN_JSON = re.compile(r"""[\x00-\x1f"]|\\\\|\\x(22|5c|[01].)|\\u00(22|5c|[01].)""", re.IGNORECASE)


def _patterns(node: dict[str, Any]) -> str | None:
    """Patterns are matched against the JSON text, where some characters look different."""
    patterns = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    for pattern in (*patterns, *node.get("patternProperties", ())):
        if _ESCAPED_IN_JSON.search(pattern):
            return (
                f"pattern {pattern!r} names a character that JSON escapes (a quote, a backslash, a control character)"
            )
    return None
