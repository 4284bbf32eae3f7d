"""The table of links: names as people write them, and what an unknown one offers."""

import pytest

from trimtab.core.layout import PlanInputError
from trimtab.core.links import LINKS, find_link, usual_link


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVLink 4", "NVLink 4"),
        ("nvlink4", "NVLink 4"),
        ("pcie4-nop2p", "PCIe 4 no peer"),
        ("PCIe gen5", "PCIe 5 peer"),
        ("ib400", "InfiniBand 400"),
        ("NDR", "InfiniBand 400"),
        ("roce-200", "RoCE 200"),
        ("GB200 NVL72", "NVL72"),
    ],
)
def test_link_is_found_by_what_people_write(written: str, name: str) -> None:
    """Case, spaces and dashes do not matter, and usual short names work."""
    assert find_link(written).name == name


def test_nvlink_without_generation_is_that_of_the_device() -> None:
    """A100 has the third generation, H100 the fourth, B200 the fifth."""
    found = [
        find_link("nvlink", device=name).name for name in ("A100 SXM 80GB", "H100 SXM", "B200")
    ]
    assert found == ["NVLink 3", "NVLink 4", "NVLink 5"]


def test_unknown_link_names_the_field_and_the_nearest() -> None:
    """A misspelt link offers the one that was meant."""
    with pytest.raises(PlanInputError) as caught:
        find_link("infiniband 40")
    assert caught.value.field == "link"
    assert "InfiniBand 400" in caught.value.nearest


def test_without_peer_access_half_the_rate_is_left() -> None:
    """Data that crosses the host crosses PCIe twice."""
    peer, none = find_link("PCIe 4 peer"), find_link("PCIe 4 no peer")
    assert none.bytes_per_s == peer.bytes_per_s / 2
    assert (peer.peer_access, none.peer_access) == (True, False)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_every_link_has_a_source_and_is_found_by_its_name(link) -> None:
    """Rates are positive or said to be unknown."""
    assert len(link.source) > 10
    assert find_link(link.name) == link
    assert link.bytes_per_s is None or link.bytes_per_s > 1e9


def test_usual_link_of_a_device_is_unknown_where_makers_do_not_tell() -> None:
    """A PCIe card's link depends on its host."""
    assert usual_link("H100 SXM").name == "NVLink 4"
    assert usual_link("L40S").bytes_per_s is None
