"""Laws of what a client may not say: no body keeps a field that names KV, and everything else stays as it was."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trimtab.engines.openai import EXTRA_ARGUMENTS, KV_FIELDS, edit_request, names_kv

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from(KV_FIELDS) | st.sampled_from(("model", "prompt", "x")) | st.text(max_size=5)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=5)


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in KV_FIELDS}


@given(fields=FIELDS, extra=st.none() | FIELDS, escaped=st.booleans())
def test_no_field_that_names_kv_is_passed_on(
    fields: dict[str, Any], extra: dict[str, Any] | None, escaped: bool
) -> None:
    """Neither at the top nor among extra arguments, however its name is written."""
    said = {**fields, **({} if extra is None else {EXTRA_ARGUMENTS: extra})}
    body = json.dumps(said).encode()
    if escaped:
        body = body.replace(b'"id_slot"', b'"\\u0069d_slot"')
    edited = json.loads(edit_request(body, include_usage=False, id_slot=None))
    kept = plain(said)
    if isinstance(kept.get(EXTRA_ARGUMENTS), dict):
        kept[EXTRA_ARGUMENTS] = plain(kept[EXTRA_ARGUMENTS])
    assert edited == kept


@given(fields=FIELDS)
def test_body_that_names_no_kv_is_told_by_a_look_at_its_bytes(fields: dict[str, Any]) -> None:
    """The cheap look never misses: where it says no, there is nothing to take out."""
    body = json.dumps(fields).encode()
    if not names_kv(body):
        assert plain(fields) == fields
        assert edit_request(body, include_usage=False, id_slot=None) is body
