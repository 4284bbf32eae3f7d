"""What a specification asks the kernel tables for."""

import json

from trimtab.runtime.kernel_wanted import wanted_by

GEMM = {"Gemm": {"name": "a matrix", "n": 4096, "k": 7168, "quant_mode": "fp8_static"}}
LATENT = {
    "Fallback": {
        "primary": {
            "MlaModuleContext": {
                "num_heads": 16,
                "kv_cache_dtype": "bfloat16",
                "fmha_quant_mode": "fp8",
                "gemm_quant_mode": "fp8_block",
            }
        },
        "fallback": [GEMM],
    }
}


def spec(*operations: object) -> str:
    """A specification whose prompts and tokens take the same operations."""
    return json.dumps({"context_ops": operations, "generation_ops": operations})


def test_matrices_are_named_with_the_width_of_their_table() -> None:
    """A static FP8 matrix is looked up among the FP8 ones."""
    assert wanted_by(spec(GEMM)).matrices == (("fp8", 4096, 7168),)


def test_latent_attention_is_asked_by_the_widths_of_its_cache_and_matrices() -> None:
    """Wherever in a specification it stands."""
    found = wanted_by(spec(LATENT))
    assert found.modules == (("bfloat16", "fp8_block"),)
    assert found.known
    assert wanted_by(spec(GEMM)).modules == ()


def test_operation_of_an_unknown_kind_may_ask_for_anything() -> None:
    """Then no matrix and no family of tables is left out."""
    found = wanted_by(spec(GEMM, {"SparseAttention": {"n": 8}}))
    assert (found.matrices, found.known) == ((), False)


def test_families_are_asked_by_kinds_of_operations_alone() -> None:
    """With matrices and latent attention nobody asks for experts; an unknown kind may ask for anything."""
    found = wanted_by(spec(GEMM, LATENT))
    told = [found.asks(each) for each in ("gemm", "comm", "mla", "moe", "mhc")]
    assert told == [True, True, True, False, False]
    assert wanted_by(spec({"SparseAttention": {"n": 8}})).asks("moe")
