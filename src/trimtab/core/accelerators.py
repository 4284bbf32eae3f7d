"""Peak rates of accelerators as their makers state them, found by the names that people and drivers use.

All rates are dense: where a sheet states them with sparsity, half of it. `flops_8bit` is FP8 where the device has it,
else INT8. Links are one direction: half of a total that counts both. Memory is the capacity on the sheet in decimal
bytes; what a driver gives to programs is a figure of its own. What is not certain is None: a missing ceiling is said to
be unknown, a wrong one would be believed.

A name that leaves the variant open ("H100") is read as the variant most in use, and the result's source says so.
"""

from typing import Final

import msgspec

from trimtab.core.served import Accelerator

_T: Final = 1e12
_G: Final = 1e9
_GIB: Final = float(1 << 30)

# What drivers give to programs in GiB, from public start-up reports of engines ("total_gpu_memory", "total capacity").
_VISIBLE_GIB: Final = {
    "V100 SXM2 32GB": 31.74, "T4": 14.56, "A100 SXM 40GB": 39.39, "A100 PCIe 40GB": 39.39, "A100 SXM 80GB": 79.15,
    "A100 PCIe 80GB": 79.14, "A10": 22.07, "L4": 22.03, "L40S": 44.39, "H100 SXM": 79.19, "H100 PCIe": 79.19,
    "H200 SXM": 139.8, "H200 NVL": 139.8, "B200": 178.35, "B300": 267.7, "GB300": 267.7, "RTX 3090": 23.58,
    "RTX 4090": 23.55, "RTX 5090": 31.36, "MI300X": 191.98,
}  # fmt: skip


def _device(
    name: str,
    flops_16: float | None,
    flops_8: float | None,
    memory_gb: float | None,
    bandwidth_gb: float | None,
    link_gb: float | None,
    source: str,
) -> Accelerator:
    """Rates in Tflop/s, capacity in GB, bandwidth and link (one direction) in GB/s."""
    visible = _VISIBLE_GIB.get(name)
    return Accelerator(
        name=name,
        flops_16bit=None if flops_16 is None else flops_16 * _T,
        flops_8bit=None if flops_8 is None else flops_8 * _T,
        memory_bytes=None if memory_gb is None else memory_gb * _G,
        memory_bytes_per_s=None if bandwidth_gb is None else bandwidth_gb * _G,
        link_bytes_per_s=None if link_gb is None else link_gb * _G,
        source=source,
        visible_bytes=None if visible is None else visible * _GIB,
    )


_A100: Final = "NVIDIA A100 Tensor Core GPU data sheet; 8 bit is INT8"
_H100: Final = "NVIDIA H100 Tensor Core GPU data sheet, half of the rates with sparsity"
_H200: Final = "NVIDIA H200 Tensor Core GPU data sheet, half of the rates with sparsity"
_GEFORCE: Final = "rates with 32-bit accumulation, as inference engines use them; link is PCIe"
_NVL72: Final = "data sheet, a 72nd of the rack, half of the rates with sparsity"

ACCELERATORS: Final[tuple[Accelerator, ...]] = (
    _device("V100 SXM2 32GB", 125, None, 32, 900, 150, "NVIDIA V100 data sheet"),
    _device("T4", 65, 130, 16, 320, 16, "NVIDIA T4 product brief; 8 bit is INT8, link is PCIe"),
    _device("A100 PCIe 40GB", 312, 624, 40, 1555, 300, _A100),
    _device("A100 SXM 40GB", 312, 624, 40, 1555, 300, _A100),
    _device("A100 PCIe 80GB", 312, 624, 80, 1935, 300, _A100),
    _device("A100 SXM 80GB", 312, 624, 80, 2039, 300, _A100),
    _device("A10", 125, 250, 24, 600, 32, "NVIDIA A10 data sheet; 8 bit is INT8, link is PCIe"),
    _device("L4", 121, 242, 24, 300, 32, "NVIDIA L4 data sheet, half with sparsity; link is PCIe"),
    _device("L40S", 362, 733, 48, 864, 32, "NVIDIA L40S data sheet; link is PCIe"),
    _device("H100 SXM", 989.4, 1978.9, 80, 3350, 450, _H100),
    _device("H100 PCIe", 756, 1513, 80, 2000, 300, _H100),
    _device("H100 NVL", 835, 1670, 94, 3900, 300, _H100),
    _device("H200 SXM", 989.4, 1978.9, 141, 4800, 450, _H200),
    _device("H200 NVL", 835, 1670, 141, 4800, 450, _H200),
    _device(
        "B200", 2250, 4500, 180, 8000, 900,
        "NVIDIA DGX B200 data sheet, an eighth of the system, half of the rates with sparsity",
    ),
    _device("GB200", 2500, 5000, 186, 8000, 900, f"NVIDIA GB200 NVL72 {_NVL72}"),
    _device(
        "B300", 2250, 4500, None, 8000, 900,
        "NVIDIA HGX B300 specifications, an eighth of the board, half of the rates with sparsity; "
        "sheets differ on its memory",
    ),
    _device(
        "GB300", 2500, 5000, None, 8000, 900,
        f"NVIDIA GB300 NVL72 {_NVL72}; sheets differ on its memory",
    ),
    _device(
        "RTX 3090", 71, None, 24, 936, 56.25,
        "NVIDIA GA102 white paper; rate with 32-bit accumulation; link is NVLink of a pair",
    ),
    _device("RTX 4090", 165.2, 330.3, 24, 1008, 32, f"NVIDIA Ada white paper; {_GEFORCE}"),
    _device("RTX 5090", 209.5, 419, 32, 1792, 64, f"NVIDIA RTX Blackwell white paper; {_GEFORCE}"),
    _device(
        "RTX PRO 6000 Workstation", 503.8, 1007.6, 96, 1792, 64,
        "NVIDIA RTX PRO Blackwell white paper; link is PCIe",
    ),
    _device(
        "RTX PRO 6000 Server", 500, 1000, 96, 1597, 64,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet, half with sparsity; link is PCIe",
    ),
    _device("MI300X", 1307.4, 2614.9, 192, 5300, 448, "AMD Instinct MI300X data sheet"),
    _device("MI325X", 1307.4, 2614.9, 256, 6000, 448, "AMD Instinct MI325X data sheet"),
    _device("MI350X", 2306.9, 4613.8, 288, 8000, 537.6, "AMD Instinct MI350X data sheet"),
    _device("MI355X", 2516.6, 5033.2, 288, 8000, 537.6, "AMD Instinct MI355X data sheet"),
)  # fmt: skip
"""Every device known, oldest first within a maker."""

# What drivers and people write, normalised, where it is more than the name itself.
_ALIASES: Final = {
    "teslat4": "T4",
    "v100sxm232gb": "V100 SXM2 32GB",
    "teslav100sxm232gb": "V100 SXM2 32GB",
    "a100pcie40gb": "A100 PCIe 40GB",
    "a10040gbpcie": "A100 PCIe 40GB",
    "a100sxm440gb": "A100 SXM 40GB",
    "a10040gbsxm": "A100 SXM 40GB",
    "a10080gbpcie": "A100 PCIe 80GB",
    "a100sxm480gb": "A100 SXM 80GB",
    "a10080gbsxm": "A100 SXM 80GB",
    "h10080gbhbm3": "H100 SXM",
    "h100sxm5": "H100 SXM",
    "h10080gb": "H100 SXM",
    "h100hbm3": "H100 SXM",
    "h200sxm5": "H200 SXM",
    "h200141gb": "H200 SXM",
    "h100nvl94gb": "H100 NVL",
    "b200sxm": "B200",
    "b200sxm6": "B200",
    "b300sxm": "B300",
    "b300sxm6": "B300",
    "b300sxm6ac": "B300",
    "gb200nvl72": "GB200",
    "gb300nvl72": "GB300",
    "rtxpro6000blackwellworkstationedition": "RTX PRO 6000 Workstation",
    "rtxpro6000blackwellserveredition": "RTX PRO 6000 Server",
    "mi300xoam": "MI300X",
    "mi325xoam": "MI325X",
}

# Names that leave the variant open: the variant most in use.
_USUAL: Final = {
    "a100": "A100 SXM 80GB",
    "a10080gb": "A100 SXM 80GB",
    "a10040gb": "A100 SXM 40GB",
    "a100sxm": "A100 SXM 80GB",
    "a100pcie": "A100 PCIe 80GB",
    "h100": "H100 SXM",
    "h200": "H200 SXM",
    "v100": "V100 SXM2 32GB",
    "rtxpro6000": "RTX PRO 6000 Workstation",
    "rtxpro6000blackwell": "RTX PRO 6000 Workstation",
}

_MAKERS: Final = ("nvidia", "geforce", "amd", "instinct")


class UnknownAcceleratorError(ValueError):
    """A name that is no device of the table; the message lists the names that are."""


def _plain(name: str) -> str:
    """Lower case without makers, spaces and signs: what names are compared by."""
    words = "".join(sign if sign.isalnum() else " " for sign in name.lower()).split()
    return "".join(word for word in words if word not in _MAKERS)


_BY_NAME: Final = {_plain(device.name): device for device in ACCELERATORS}


def find_accelerator(name: str) -> Accelerator:
    """Return the device of a name such as "H100", "NVIDIA A100-SXM4-80GB" or "MI300X".

    Raises `UnknownAcceleratorError`. A name that leaves the variant open gets the variant most in use, and its source
    says that it was taken so.
    """
    plain = _plain(name)
    known = _ALIASES.get(plain)
    if known is not None:
        return _BY_NAME[_plain(known)]
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    usual = _USUAL.get(plain)
    if usual is None:
        names = ", ".join(device.name for device in ACCELERATORS)
        raise UnknownAcceleratorError(f"no accelerator {name!r} is known; known are: {names}")
    found = _BY_NAME[_plain(usual)]
    return msgspec.structs.replace(
        found, source=f"{found.source}; {name!r} leaves the variant open and was read as {usual}"
    )
