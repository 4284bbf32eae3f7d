"""The table of accelerators: names as drivers and people write them, and rates that can be."""

import pytest

from trimtab.core.accelerators import ACCELERATORS, UnknownAcceleratorError, find_accelerator


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("nvidia b200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("gb200-nvl72", "GB200"),
    ],
)
def test_device_is_found_by_what_drivers_and_people_write(written: str, name: str) -> None:
    """Makers, case, spaces and dashes do not matter."""
    found = find_accelerator(written)
    assert (found.name, "variant open" in found.source) == (name, False)


@pytest.mark.parametrize(
    ("written", "name"), [("H100", "H100 SXM"), ("A100", "A100 SXM 80GB"), ("h200", "H200 SXM")]
)
def test_open_variant_is_read_as_the_usual_one_and_says_so(written: str, name: str) -> None:
    """A rate may differ by a third between variants, so the guess is named."""
    found = find_accelerator(written)
    assert found.name == name
    assert f"was read as {name}" in found.source


@pytest.mark.parametrize("written", ["", "H1000", "TPU v9", "A10G", "nvidia"])
def test_unknown_name_lists_the_known_ones(written: str) -> None:
    """A device that resembles another one is not taken for it."""
    with pytest.raises(UnknownAcceleratorError, match="MI300X"):
        find_accelerator(written)


def test_figures_are_those_of_the_data_sheets() -> None:
    """A sample of published dense rates, bandwidths and links."""
    h100, mi300x, l4 = (find_accelerator(name) for name in ("H100 SXM", "MI300X", "L4"))
    assert (h100.flops_16bit, h100.flops_8bit) == (989.4e12, 1978.9e12)
    assert (h100.memory_bytes_per_s, h100.link_bytes_per_s) == (3350e9, 450e9)
    assert (mi300x.flops_16bit, mi300x.memory_bytes_per_s) == (1307.4e12, 5300e9)
    assert (l4.memory_bytes, l4.memory_bytes_per_s) == (24e9, 300e9)


@pytest.mark.parametrize("device", ACCELERATORS, ids=lambda device: device.name)
def test_every_device_has_a_source_and_possible_rates(device) -> None:
    """Nobody's 8-bit rate is below its 16-bit one, nor beyond double of it by more than rounding."""
    assert len(device.source) > 10
    assert not device.measured
    told = (device.flops_16bit, device.memory_bytes_per_s)
    assert all(rate is not None and rate > 0 for rate in told)
    if device.flops_8bit is not None:
        assert 1.99 < device.flops_8bit / device.flops_16bit < 2.04


def test_names_are_unique() -> None:
    """A name finds one device."""
    names = [device.name for device in ACCELERATORS]
    assert len(names) == len(set(names))
    assert [find_accelerator(name).name for name in names] == names
