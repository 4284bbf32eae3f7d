"""Rounded numbers are those of the packages that read them: torch's casts, compressed-tensors' packing and scales."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

import trimtab
from trimtab.runtime.vllm_env import find_environment

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]

PROGRAM: Final = """
import json
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from trimtab.engines import low_precision as ours

rng = np.random.default_rng(0)
wide = (rng.standard_normal(100_000) * np.exp(5 * rng.standard_normal(100_000))).astype(np.float32)
weights = rng.standard_normal((192, 576)).astype(np.float32)
tensor = torch.tensor(weights)
fours, scales = ours.int4_groups(weights)
floats, rows = ours.fp8_rows(weights)
cast = (tensor / torch.tensor(rows)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
unpacked = unpack_from_int32(torch.tensor(ours.packed_int4(fours)), 4, tensor.shape).numpy()
eight = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")
theirs, _ = calculate_qparams(
    tensor.min(1, keepdim=True).values, tensor.max(1, keepdim=True).values, eight
)
print(json.dumps({
    "bf16": torch.tensor(wide).bfloat16().view(torch.int16).numpy().tobytes() == ours.to_bf16(wide),
    "fp8": bool((cast == floats).all()),
    "int4": bool((unpacked == fours).all()),
    "int8 scales": bool(np.allclose(theirs.numpy(), ours.int8_rows(weights)[1], rtol=1e-6)),
}))
"""


def test_rounding_agrees_with_torch_and_compressed_tensors() -> None:
    """bf16 and e4m3 to the last bit, int4 as it is unpacked, int8 scales as its observers find them."""
    source = Path(trimtab.__file__).parents[1]
    done = subprocess.run(
        [str(find_environment().python), "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={"PYTHONPATH": str(source), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"bf16": True, "fp8": True, "int4": True, "int8 scales": True}
