"""Schemas that a user gives: what could not be used is refused up front, and no answer breaks the check."""

from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")

from trimtab.runtime.json_schemas import fits_schema, schema_fault
from trimtab.runtime.speculate_record import fits


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strng"}, "strng"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "'/$defs/none' leads nowhere"),
        ({"$ref": "https://example.org/other.json"}, "leads nowhere"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/b"}}}, "leads nowhere"),
        ({"$ref": "#"}, "without end"),
    ],
)
def test_schema_that_cannot_be_used_says_why(schema: dict[str, Any], said: str) -> None:
    """No schema, references that lead nowhere wherever they stand, one that never ends."""
    assert said in (schema_fault(schema) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object"}}},
        {"$id": "https://example.org/a", "properties": {"next": {"$ref": "https://example.org/a"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"const": {"$ref": "#/nowhere"}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    ],
)
def test_schema_whose_references_are_there_is_taken(schema: dict[str, Any]) -> None:
    """Also one of an older draft, one that refers to itself for parts, and what only looks like a reference."""
    assert schema_fault(schema) is None


def test_value_is_held_against_what_is_referred_to() -> None:
    """A list of lists, by a reference to the schema itself."""
    lists = {"type": "array", "items": {"$ref": "#"}}
    assert fits_schema([[], [[]]], lists)
    assert not fits_schema([[], [1]], lists)


def test_answer_that_is_nested_without_measure_does_not_fit() -> None:
    """Neither reading it nor looking at it ends the walk."""
    lists = {"type": "array", "items": {"$ref": "#"}}
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert not fits_schema(deep, lists)
    assert not fits("[" * 100_000, lists)
