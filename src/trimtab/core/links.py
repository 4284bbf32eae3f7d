"""What joins accelerators, by the names that people use: bytes per second in one direction, latency, peer access.

Rates are what one device sends in one direction: half of a total that counts both; for networks the line rate of one
adapter for each device. Latencies are of one small message between two devices by NCCL-like libraries, rounded; they
differ by driver and topology, so they are starting points. Without peer access, devices of a PCIe host exchange through
the host's memory: the data crosses PCIe twice, so half of the rate is taken.

Sources: maker's data sheets for NVLink; PCI-SIG rates after encoding for PCIe (x16: 15.75, 31.5, 63 GB/s); line rates
for InfiniBand and Ethernet.
"""

from typing import Final

from trimtab.core.layout import Link, PlanInputError
from trimtab.core.nearest import nearest_names, plain_name

_G: Final = 1e9
_GBIT: Final = 1e9 / 8.0


def _link(
    name: str, gbytes: float | None, latency_us: float | None, peer: bool | None, source: str
) -> Link:
    """`gbytes`: GB/s in one direction for each device."""
    rate = None if gbytes is None else gbytes * _G
    return Link(name=name, bytes_per_s=rate, latency_us=latency_us, peer_access=peer, source=source)


def _network(name: str, gbits: float, latency_us: float, source: str) -> Link:
    return Link(
        name=name,
        bytes_per_s=gbits * _GBIT,
        latency_us=latency_us,
        peer_access=None,
        source=f"{source}, one adapter of {gbits:g} Gbit/s for each device",
    )


_NVLINK: Final = "data sheet, half of the total of both directions"
_PCIE: Final = "PCI-SIG rate of 16 lanes after encoding"
_THROUGH_HOST: Final = f"{_PCIE}, halved: without peer access data crosses the host"
_IB: Final = "InfiniBand line rate"
_ROCE: Final = "Ethernet line rate with RDMA"
_ETHERNET: Final = "Ethernet line rate through the kernel"

LINKS: Final[tuple[Link, ...]] = (
    _link("NVLink 2", 150, 8, True, f"NVIDIA V100 {_NVLINK}"),
    _link("NVLink 3", 300, 6, True, f"NVIDIA A100 {_NVLINK}"),
    _link("NVLink 4", 450, 5, True, f"NVIDIA H100 {_NVLINK}"),
    _link("NVLink 5", 900, 4, True, f"NVIDIA B200 {_NVLINK}"),
    _link("NVLink bridge 3090", 56.25, 8, True, "NVIDIA GA102 white paper, a pair only"),
    _link("NVLink bridge H100 NVL", 300, 6, True, f"NVIDIA H100 NVL {_NVLINK}, pairs only"),
    _link("NVSwitch A100", 300, 6, True, f"NVIDIA HGX A100 {_NVLINK}"),
    _link("NVSwitch H100", 450, 5, True, f"NVIDIA HGX H100 {_NVLINK}"),
    _link("NVSwitch B200", 900, 4, True, f"NVIDIA HGX B200 {_NVLINK}"),
    _link("NVL72", 900, 5, True, f"NVIDIA GB200 NVL72 {_NVLINK}; all 72 devices of the rack"),
    _link("Infinity Fabric MI300X", 448, 8, True, "AMD Instinct MI300X data sheet, seven links of 64 GB/s"),
    _link("Infinity Fabric MI355X", 537.6, 8, True, "AMD Instinct MI355X data sheet"),
    _link("PCIe 3 peer", 15.75, 12, True, _PCIE),
    _link("PCIe 4 peer", 31.5, 10, True, _PCIE),
    _link("PCIe 5 peer", 63, 8, True, _PCIE),
    _link("PCIe 3 no peer", 7.9, 30, False, _THROUGH_HOST),
    _link("PCIe 4 no peer", 15.75, 25, False, _THROUGH_HOST),
    _link("PCIe 5 no peer", 31.5, 20, False, _THROUGH_HOST),
    _network("InfiniBand 100", 100, 10, _IB),
    _network("InfiniBand 200", 200, 9, _IB),
    _network("InfiniBand 400", 400, 8, _IB),
    _network("InfiniBand 800", 800, 8, _IB),
    _network("RoCE 100", 100, 15, _ROCE),
    _network("RoCE 200", 200, 14, _ROCE),
    _network("RoCE 400", 400, 12, _ROCE),
    _network("RoCE 800", 800, 12, _ROCE),
    _network("Ethernet 10", 10, 60, _ETHERNET),
    _network("Ethernet 25", 25, 50, _ETHERNET),
    _network("Ethernet 100", 100, 40, _ETHERNET),
    _link("shared memory", None, None, None, "processes of one host; no maker states its rate"),
    _link("unknown", None, None, None, "not told: neither rate nor latency nor peer access is known"),
)  # fmt: skip
"""Every link known, the fast ones within a node first."""

# Other writings, normalised.
_ALIASES: Final = {
    "nvlink2": "NVLink 2", "nvlinkv100": "NVLink 2",
    "nvlink3": "NVLink 3", "nvlinka100": "NVLink 3",
    "nvlink4": "NVLink 4", "nvlinkh100": "NVLink 4", "nvlinkh200": "NVLink 4",
    "nvlink5": "NVLink 5", "nvlinkb200": "NVLink 5", "nvlinkb300": "NVLink 5",
    "nvswitch": "NVSwitch H100", "nvswitch3": "NVSwitch H100", "nvswitchh200": "NVSwitch H100",
    "nvswitchb300": "NVSwitch B200", "nvlinkbridge": "NVLink bridge 3090", "xgmi": "Infinity Fabric MI300X",
    "nvl": "NVL72", "gb200nvl72": "NVL72", "gb300nvl72": "NVL72", "infinityfabric": "Infinity Fabric MI300X",
    "pcie3": "PCIe 3 peer", "pcie4": "PCIe 4 peer", "pcie5": "PCIe 5 peer",
    "pcie3p2p": "PCIe 3 peer", "pcie4p2p": "PCIe 4 peer", "pcie5p2p": "PCIe 5 peer",
    "pcie3nop2p": "PCIe 3 no peer", "pcie4nop2p": "PCIe 4 no peer", "pcie5nop2p": "PCIe 5 no peer",
    "pciegen3": "PCIe 3 peer", "pciegen4": "PCIe 4 peer", "pciegen5": "PCIe 5 peer",
    "pcienopeer": "PCIe 4 no peer", "pcienop2p": "PCIe 4 no peer",
    "ib100": "InfiniBand 100", "ib200": "InfiniBand 200", "ib400": "InfiniBand 400", "ib800": "InfiniBand 800",
    "edr": "InfiniBand 100", "hdr": "InfiniBand 200", "ndr": "InfiniBand 400", "xdr": "InfiniBand 800",
    "10gbe": "Ethernet 10", "25gbe": "Ethernet 25", "100gbe": "Ethernet 100", "shm": "shared memory",
}  # fmt: skip

# Names that leave the generation open: the device tells it.
_BY_DEVICE: Final = (
    ("V100", "NVLink 2"), ("A100", "NVLink 3"), ("H100", "NVLink 4"), ("H200", "NVLink 4"),
    ("GB200", "NVL72"), ("GB300", "NVL72"), ("B200", "NVLink 5"), ("B300", "NVLink 5"),
    ("MI3", "Infinity Fabric MI300X"), ("RTX 3090", "NVLink bridge 3090"),
)  # fmt: skip
_OPEN: Final = ("nvlink", "nvswitch")


_BY_NAME: Final = {plain_name(link.name): link for link in LINKS}


def find_link(name: str, *, device: str = "") -> Link:
    """Return the link of a name such as "NVLink 4", "pcie4-nop2p" or "ib400"; "nvlink" is that of `device`.

    Raises `PlanInputError` on the field `link`.
    """
    plain = plain_name(name)
    if plain in _OPEN and device:
        for part, found in _BY_DEVICE:
            if part in device:
                return _BY_NAME[plain_name(found)]
    known = _ALIASES.get(plain)
    if known is not None:
        return _BY_NAME[plain_name(known)]
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    names = [link.name for link in LINKS]
    raise PlanInputError(
        "link", f"no link {name!r} is known", nearest_names(name, names) or tuple(names)
    )


def usual_link(device: str) -> Link:
    """Return the link that a device is usually sold with inside a node; "unknown" where the table does not tell."""
    for part, found in _BY_DEVICE:
        if part in device and "PCIe" not in device and "RTX" not in device:
            return _BY_NAME[plain_name(found)]
    return _BY_NAME["unknown"]
