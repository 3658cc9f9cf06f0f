"""What is said of values that do not fit a JSON schema."""

from __future__ import annotations

from typing import Any

import pytest

from diarist.json_schema import JsonSchema

TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("value", "schema", "wrong"),
    [
        (1, {"type": "integer"}, None),
        (1.0, {"type": "integer"}, None),
        (1.5, {"type": "integer"}, "1.5 is not of type 'integer'"),
        (True, {"type": "integer"}, "True is not of type 'integer'"),
        (1, {"type": ["string", "null"]}, "1 is not of type 'string', 'null'"),
        (None, {"type": ["string", "null"]}, None),
        ("red", {"enum": ["red", "blue"]}, None),
        ("pink", {"enum": ["red", "blue"]}, "'pink' is not one of ['red', 'blue']"),
        ("b", {"const": "a"}, "'a' was expected"),
        (3, {"minimum": 4}, "3 is less than the minimum of 4"),
        (4, {"exclusiveMaximum": 4}, "4 is greater than or equal to the maximum of 4"),
        ("ab", {"minLength": 3}, "'ab' is too short"),
        ([1, 2], {"maxItems": 1}, "[1, 2] is too long"),
        ("x1", {"pattern": "^[a-z]+$"}, "'x1' does not match '^[a-z]+$'"),
        (
            {"a": {"b": 1}},
            {"properties": {"a": {"properties": {"b": {"type": "string"}}}}},
            "a.b: 1 is not of type 'string'",
        ),
        ({}, {"required": ["a"]}, None),
        ({"x": 1}, {"properties": {"a": {}}, "additionalProperties": False}, "'x' was unexpected"),
        ({"x": 1}, {"additionalProperties": {"type": "string"}}, "x: 1 is not of type 'string'"),
        ([1, "b"], {"items": {"type": "integer"}}, "1: 'b' is not of type 'integer'"),
        (
            "a",
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "'a' is not of type 'integer' or 'a' is not of type 'null'",
        ),
        (None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "is valid under each of"),
        (1, {"allOf": [{"type": "integer"}, {"minimum": 2}]}, "less than the minimum of 2"),
        ({"children": [{"name": 5}]}, TREE, "children.0.name: 5 is not of type 'string'"),
        ({"children": [{"name": "a"}]}, TREE, None),
    ],
)
def test_json_schemas(value: Any, schema: dict[str, Any], wrong: str | None) -> None:
    found = JsonSchema(schema, partial=True).problems(value)
    if wrong is None:
        assert found == []
    else:
        assert wrong in "; ".join(found)


def test_missing_required_fields_are_errors_unless_partial() -> None:
    schema = {"type": "object", "properties": {"required": {"required": ["a"]}}, "required": ["b"]}
    assert JsonSchema(schema).problems({"required": {}}) == [
        "required: 'a' is a required property",
        "'b' is a required property",
    ]
    assert JsonSchema(schema, partial=True).problems({"required": {}}) == []
