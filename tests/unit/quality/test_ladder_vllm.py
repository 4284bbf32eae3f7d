"""The ladder of vLLM: stages in order, kernels that are shared, KV types last."""

from trimtab.engines.compressed_tensors import Scheme
from trimtab.engines.gguf_tensors import LINEAR, Group
from trimtab.quality.ladder import Stage
from trimtab.quality.ladder_vllm import vllm_ladder


def test_stages_come_in_order_and_kv_last() -> None:
    """Weights, then activations, then KV with the original's weights."""
    ladder = vllm_ladder(LINEAR, kv_types=("auto", "fp8"), kv_binds=False)
    names = [rung.label for rung in ladder]
    assert names == ["bf16", "int8 rounded", "w4a16", "w8a8", "fp8", "bf16, KV fp8"]
    assert ladder[0].is_original
    assert ladder[-1].stages == (Stage.KV,)
    assert [rung.lowers_kv for rung in ladder] == [False] * 5 + [True]


def test_activations_rest_on_their_own_rounded_weights() -> None:
    """W8A8 of a group of layers comes after the same layers rounded."""
    ladder = vllm_ladder(None, kv_types=("auto",), kv_binds=False)
    after = {rung.name: rung.after for rung in ladder if rung.scheme is Scheme.W8A8}
    assert after == {"ffn w8a8": "ffn int8 rounded", "w8a8": "int8 rounded"}
    known = {rung.label for rung in ladder}
    assert set(after.values()) <= known


def test_groups_go_first_only_with_their_kernel_partners() -> None:
    """v was shown harmless and q was not: their kernel waits; the others go first."""
    lowered = (Group.ATTENTION_V, Group.FFN_DOWN)
    ladder = vllm_ladder(lowered, kv_types=("auto",), kv_binds=False)
    assert [rung.lowered for rung in ladder if rung.scheme is Scheme.FP8] == [
        (Group.FFN_DOWN,),
        LINEAR,
    ]


def test_where_kv_binds_every_rung_with_kernels_meets_every_kv_type() -> None:
    """Rounded in place is not served, so that it meets none."""
    ladder = vllm_ladder(LINEAR, kv_types=("auto", "fp8"), kv_binds=True)
    lowered = [rung.name for rung in ladder if rung.lowers_kv]
    assert lowered == ["w4a16", "w8a8", "fp8", "bf16"]


def test_rounded_rungs_make_no_claim_of_speed() -> None:
    """They run in the original's own precision."""
    ladder = vllm_ladder(LINEAR, kv_types=("auto",), kv_binds=False)
    assert [rung.name for rung in ladder if rung.quality_only] == ["int8 rounded"]
