"""Sharing cores among replicas, and naming the machine."""

import pytest

from trimtab.runtime.hardware import CpuShare, Hardware, cpu_name, share_cpus


def test_replicas_get_distinct_cpus_where_there_are_enough() -> None:
    """Two replicas on four cores get two threads and two CPUs each, none twice."""
    assert share_cpus(2, threads=0, cpus=(4, 5, 6, 7), cores=4) == (
        CpuShare(2, (4, 5)),
        CpuShare(2, (6, 7)),
    )


def test_remainder_of_the_cores_stays_free() -> None:
    """Replicas stay equal: three cores for two replicas are one each."""
    assert share_cpus(2, threads=0, cpus=(0, 1, 2), cores=3) == (
        CpuShare(1, (0,)),
        CpuShare(1, (1,)),
    )


def test_more_replicas_than_cores_are_not_pinned() -> None:
    """One thread each, and the system schedules them."""
    assert share_cpus(3, threads=0, cpus=(0, 1), cores=2) == (CpuShare(1, ()),) * 3


def test_asked_for_threads_are_given() -> None:
    """A configured number wins; pinned only where it fits."""
    assert share_cpus(2, threads=2, cpus=(0, 1, 2, 3), cores=4)[1] == CpuShare(2, (2, 3))
    assert share_cpus(2, threads=4, cpus=(0, 1, 2, 3), cores=4)[1] == CpuShare(4, ())


def test_quota_counts_as_cores_and_forbids_pinning() -> None:
    """Eight CPUs under a quota of two are two cores, anywhere."""
    assert share_cpus(2, threads=0, cpus=tuple(range(8)), cores=2) == (CpuShare(1, ()),) * 2


def test_no_replicas_is_an_error() -> None:
    """Sharing among nobody has no answer."""
    with pytest.raises(ValueError, match="no replicas"):
        share_cpus(0, threads=0, cpus=(0,), cores=1)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 @ 2.5GHz\n",
            "Intel Xeon E5-2680",
        ),
        ("Model\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("", "unknown CPU"),
    ],
)
def test_cpu_has_a_short_name(cpuinfo: str, expected: str) -> None:
    """Marketing signs and the clock are left out; no name is said to be unknown."""
    assert cpu_name(cpuinfo) == expected


def test_label_names_cpu_cores_and_memory() -> None:
    """What goes into every record fits on one line."""
    hardware = Hardware(cpu="Intel Xeon", cores=2, memory_bytes=24 * 2**30)
    assert hardware.label == "Intel Xeon, 2 cores, 24 GiB"
