"""Requests: what is read of them, and the two edits that may be made."""

import json

import msgspec
import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.core.types import Constraint
from trimtab.engines.openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    edit_request,
    event_of_chunk,
    names_kv,
    read_chunk,
    read_request,
)


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


@pytest.mark.parametrize("role", [None, 5, [], {}, ["system"]])
def test_role_that_is_no_text_is_read_as_its_own(role: object) -> None:
    """Whatever a client calls a role: a segment, and no crash."""
    body = {"messages": [{"role": role, "content": "x"}]}
    segments = read_request(CHAT_PATH, json.dumps(body).encode()).segments
    assert segments == ((str(role), "x"),)


def test_segments_follow_the_prompt() -> None:
    """System messages, then tools, then the other messages, each by role with its text."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42"},
    ]
    facts = read_request(CHAT_PATH, json.dumps({"messages": messages, "tools": tools}).encode())
    assert facts.segments == (
        ("system", "be brief"),
        ("tools", '[{"type":"function","function":{"name":"f"}}]'),
        ("user", "ab"),
        ("assistant", ""),
        ("tool", "42"),
    )


def test_only_text_parts_count() -> None:
    """An image is not text."""
    image = {"type": "image_url", "image_url": {"url": "data:..."}}
    body = {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}]}
    assert read_request(CHAT_PATH, json.dumps(body).encode()).segments == (("user", "what?"),)


def test_developer_messages_are_system_messages() -> None:
    """Both names of the role give the same segment."""
    body = {"messages": [{"role": "developer", "content": "x"}]}
    assert read_request(CHAT_PATH, json.dumps(body).encode()).segments == (("system", "x"),)


def test_tool_calls_are_part_of_the_message() -> None:
    """The calls an assistant made come back in the prompt, so they count."""
    body = {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]}
    assert read_request(CHAT_PATH, json.dumps(body).encode()).segments == (
        ("assistant", 'a[{"id":"1"}]'),
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", (("prompt", "a"),)),
        (["a", "b"], (("prompt", "a"), ("prompt", "b"))),
        ([1, 2], (("prompt_ids", "1 2"),)),
        ([[1], [2, 3]], (("prompt_ids", "1"), ("prompt_ids", "2 3"))),
    ],
)
def test_prompt_of_a_completion(prompt: object, expected: tuple[tuple[str, str], ...]) -> None:
    """Texts and token ids, one or several."""
    assert (
        read_request(COMPLETIONS_PATH, json.dumps({"prompt": prompt}).encode()).segments == expected
    )


def test_numbers_are_read_as_they_are() -> None:
    """Temperature, token limit, count and model are what the body says."""
    facts = read_request(
        CHAT_PATH, chat(temperature=0, max_tokens=7, max_completion_tokens=9, n=2, model="m")
    )
    assert (facts.temperature, facts.max_tokens, facts.n, facts.model) == (0.0, 9, 2, "m")


def test_absent_is_unknown() -> None:
    """No temperature is not temperature 0."""
    facts = read_request(CHAT_PATH, chat(temperature=True))
    assert (facts.temperature, facts.max_tokens, facts.model, facts.stream) == (
        None,
        None,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Constraint.FREE),
        ({"response_format": {"type": "text"}}, Constraint.FREE),
        ({"response_format": {"type": "json_object"}}, Constraint.JSON_OBJECT),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, Constraint.JSON_SCHEMA),
        ({"json_schema": {}}, Constraint.JSON_SCHEMA),
        ({"grammar": "root ::= x"}, Constraint.GRAMMAR),
    ],
)
def test_constraint_of_the_output(fields: dict[str, object], expected: Constraint) -> None:
    """What the output must obey is read from the fields that say so."""
    assert read_request(CHAT_PATH, chat(**fields)).constraint == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, b"{"),
        (CHAT_PATH, b"\xff"),
        (CHAT_PATH, b"[]"),
        (CHAT_PATH, b'{"messages": "secret"}'),
        (CHAT_PATH, b'{"messages": ["secret"]}'),
        (COMPLETIONS_PATH, b'{"prompt": {"secret": 1}}'),
        ("/v1/embeddings", b"{}"),
    ],
)
def test_unreadable_request_is_a_typed_error_that_quotes_nothing(path: str, body: bytes) -> None:
    """The message names what is wrong and never the body's own words."""
    with pytest.raises(EngineFormatError) as caught:
        read_request(path, body)
    assert "secret" not in str(caught.value)


def test_body_without_need_of_an_edit_keeps_its_bytes() -> None:
    """Odd spacing and escapes pass as they came."""
    body = (
        b'{ "stream" : true, "stream_options": {"include_usage" : true}, "id_slot": 1, "x": 1.50 }'
    )
    assert edit_request(body, include_usage=True, id_slot=1) is body
    assert (
        edit_request(b'{"stream": false }', include_usage=True, id_slot=None)
        == b'{"stream": false }'
    )


def test_edits_change_nothing_else() -> None:
    """Order, numbers and nested values stay byte for byte; only the declared fields are new."""
    body = b'{"b":1.50,"stream":true,"a":{"z":1,"y":"\\u00e9"}}'
    assert edit_request(body, include_usage=True, id_slot=3) == (
        b'{"b":1.50,"stream":true,"a":{"z":1,"y":"\\u00e9"},'
        b'"stream_options":{"include_usage":true},"id_slot":3}'
    )


def test_other_stream_options_stay() -> None:
    """Only include_usage is set."""
    body = b'{"stream":true,"stream_options":{"continuous":true,"include_usage":false}}'
    edited = msgspec.json.decode(edit_request(body, include_usage=True, id_slot=None))
    assert edited["stream_options"] == {"continuous": True, "include_usage": True}


def test_usage_is_asked_for_only_in_streams() -> None:
    """A body that does not stream is left alone."""
    assert edit_request(chat(), include_usage=True, id_slot=None) == chat()


@pytest.mark.parametrize(
    ("choices", "usage", "alone"),
    [
        ([], {"completion_tokens": 3}, True),
        ([{"delta": {}}], {"completion_tokens": 3}, True),
        ([{"index": 0, "delta": {"content": ""}, "finish_reason": None}], {}, True),
        ([{"index": 0, "text": ""}], {}, True),
        ([{"delta": {}, "finish_reason": "stop"}], {}, False),
        ([{"delta": {"content": "x"}}], {}, False),
        ([{"delta": {"role": "assistant", "content": ""}}], {}, False),
        ([{"delta": {"tool_calls": [{"index": 0}]}}], {}, False),
        ([], None, False),
    ],
)
def test_usage_chunk_is_known_in_both_shapes(choices: object, usage: object, alone: bool) -> None:
    """Without choices, or with one that says nothing; one that says something is no usage chunk alone."""
    chunk = read_chunk(json.dumps({"choices": choices, "usage": usage}).encode())
    assert event_of_chunk(chunk, None).usage_only is alone


@pytest.mark.parametrize(
    "named",
    [
        '"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1"}',
        '"id_slot":3',
        '"kv_transfer_params":null',
        '"bootstrap_host":"10.0.0.1","bootstrap_port":1,"bootstrap_room":2',
        '"ec_transfer_params":{"a":1}',
        '"vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true}}',
        '"\\u0069d_slot":3',
        '"id_slot":1,"id_slot":2',
    ],
)
def test_kv_that_a_client_names_is_taken_out(named: str) -> None:
    """Where KV lies is the gateway's alone to say: another's prompt may lie there, or another's host."""
    body = f'{{"prompt":"a","x":1.50,{named}}}'.encode()
    assert names_kv(body)
    edited = edit_request(body, include_usage=False, id_slot=None)
    kept = b',"vllm_xargs":{}' if "vllm_xargs" in named else b""
    assert edited == b'{"prompt":"a","x":1.50' + kept + b"}"


def test_kv_that_the_gateway_names_goes_over_a_clients() -> None:
    """Fields are set last, as they are; arguments beside them stay."""
    body = b'{"prompt":"a","kv_transfer_params":{"remote_host":"x"},"vllm_xargs":{"a":1}}'
    edited = edit_request(
        body, include_usage=False, id_slot=None, fields={"kv_transfer_params": '{"a": [1]}'}
    )
    assert edited == b'{"prompt":"a","kv_transfer_params":{"a": [1]},"vllm_xargs":{"a":1}}'
    assert not names_kv(b'{"prompt":"a"}')


def test_extra_arguments_said_twice_are_sent_once() -> None:
    """Another reader than ours may follow the first of them."""
    body = b'{"vllm_xargs":{"kv_transfer_params":{}},"prompt":"a","vllm_xargs":{}}'
    edited = edit_request(body, include_usage=False, id_slot=None)
    assert edited == b'{"vllm_xargs":{},"prompt":"a"}'


def test_extra_arguments_that_are_no_object_are_the_servers_to_refuse() -> None:
    """Nothing in them is followed, so nothing is taken out."""
    body = b'{"prompt":"a","vllm_xargs":["id_slot"]}'
    assert edit_request(body, include_usage=False, id_slot=None) == body
