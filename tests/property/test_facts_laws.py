"""Whatever stands in a file of facts or of requests, reading it ends well or in a typed error."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ModelShape
from trimtab.diagnosis.roofline import decode_work, prefill_work
from trimtab.engines.model_config import read_model_config
from trimtab.engines.model_names import find_model_shape, known_names
from trimtab.interfaces.prompts_cli import prompt_of_line
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.prompt_lint import lint

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "kv_lora_rank",
    "num_experts",
    "num_experts_per_tok",
    "sliding_window",
    "layer_types",
    "quantization_config",
    "torch_dtype",
    "text_config",
    "first_k_dense_replace",
    "mlp_only_layers",
]
KINDS = st.sampled_from(["llama", "gemma3_text", "deepseek_v3", "qwen3_moe", "gpt_oss", "other"])
COUNTS = st.integers(1, 9_000)
WHOLE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}


@given(KINDS, st.dictionaries(st.sampled_from(KEYS), JSON | COUNTS, max_size=8))
def test_any_configuration_gives_a_shape_or_a_typed_error(kind: str, odd: dict) -> None:
    """A shape that comes out has no count below zero and meets no more parameters than it has."""
    data = json.dumps(
        {"model_type": kind, "vocab_size": 99, "intermediate_size": 8, **WHOLE, **odd}
    )
    try:
        found = read_model_config(data.encode(), source="a test")
    except EngineFormatError as error:
        found = str(error)
    if isinstance(found, str):
        assert len(found) > 5
        return
    assert isinstance(found, ModelShape)
    assert found.kv_bytes_per_token > 0
    if found.parameters is not None:
        assert 0 < found.active_parameters <= found.parameters
    numbers = [value for value in msgspec.structs.astuple(found) if isinstance(value, int | float)]
    assert all(number >= 0 for number in numbers)


@given(st.binary(max_size=60))
def test_any_bytes_as_a_configuration_end_in_a_typed_error(data: bytes) -> None:
    """None of them describes a model."""
    with pytest.raises(EngineFormatError):
        read_model_config(data, source="a test")


LINES = JSON.map(json.dumps) | st.dictionaries(
    st.sampled_from(["messages", "prompt", "tools", "session", "event", "segments", "body"]),
    JSON
    | st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant"]), "content": JSON}
        ),
        max_size=3,
    ),
    max_size=3,
).map(json.dumps)


@given(st.lists(LINES, max_size=5))
def test_any_lines_are_linted_or_refused_with_their_place(lines: list[str]) -> None:
    """A line that cannot be read is named; what can be read is linted."""
    read, refused = [], []
    for number, line in enumerate(lines, start=1):
        try:
            read.append(prompt_of_line(line.encode(), number, "a file", 4.0))
        except WorkloadError as error:
            refused.append((number, str(error)))
    assert [text for at, text in refused if not text.startswith(f"a file, line {at}")] == []
    found = lint(each for each in read if each is not None)
    assert found.requests == sum(each is not None for each in read)


@given(
    st.sampled_from(known_names()),
    st.integers(1, 512),
    st.integers(1, 100_000),
    st.sampled_from([1, 2, 4, 8]),
)
def test_work_grows_with_batch_and_context_and_is_shared_by_devices(
    name: str, batch: int, context: int, devices: int
) -> None:
    """More streams or longer ones are never less work, and a rank never has more than the whole."""
    shape = find_model_shape(name)
    one = decode_work(shape, batch=batch, context_tokens=context, devices=devices)
    more = decode_work(shape, batch=batch + 1, context_tokens=context + 1, devices=devices)
    whole = decode_work(shape, batch=batch, context_tokens=context)
    assert one.operations < more.operations
    assert one.bytes <= more.bytes
    assert one.bytes <= whole.bytes
    assert one.operations * devices == pytest.approx(whole.operations)
    cold = prefill_work(shape, tokens=batch, devices=devices)
    warm = prefill_work(shape, tokens=batch, cached_tokens=context, devices=devices)
    assert 0 < cold.operations <= warm.operations
