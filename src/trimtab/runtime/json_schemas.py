"""JSON schemas that a user gives: refused up front where they could not be used, and held against answers.

The jsonschema package is imported when a schema is there. References are looked up in the schema itself and in the
published drafts, never in a network.
"""

from collections.abc import Mapping
from typing import Any


def schema_fault(schema: Any) -> str | None:
    """Return why a schema cannot be used, None where it can; raises `ImportError` without the package."""
    import jsonschema
    from referencing.exceptions import Unresolvable

    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
        _follow(schema)
        _validator(schema).is_valid(None)
    except jsonschema.SchemaError as error:
        return str(error.message)
    except Unresolvable as error:
        return f"its reference {error.ref!r} leads nowhere; give what it refers to in the schema itself"
    except RecursionError:
        return "it is nested too deeply, or refers to itself without end"
    return None


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value fits a schema without a fault; one that is nested too deeply to be looked at does not."""
    try:
        return bool(_validator(schema).is_valid(value))
    except RecursionError:
        return False


def _validator(schema: Any) -> Any:
    import jsonschema
    from jsonschema_specifications import REGISTRY

    return jsonschema.validators.validator_for(schema)(schema, registry=REGISTRY)


def _follow(schema: Any) -> None:
    """Look every reference up, also those in what is referred to; raises `Unresolvable`."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.jsonschema import DRAFT202012

    whole: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
    waiting: list[Any] = [(whole, REGISTRY.resolver_with_root(whole))]
    seen: set[int] = set()
    while waiting:
        here, resolver = waiting.pop()
        if id(here.contents) in seen:
            continue
        seen.add(id(here.contents))
        waiting += [(each, resolver.in_subresource(each)) for each in here.subresources()]
        contents = here.contents if isinstance(here.contents, dict) else {}
        for reference in (contents.get("$ref"), contents.get("$dynamicRef")):
            if isinstance(reference, str):
                found = resolver.lookup(reference)
                waiting.append(
                    (
                        Resource.from_contents(found.contents, default_specification=DRAFT202012),
                        found.resolver,
                    )
                )
