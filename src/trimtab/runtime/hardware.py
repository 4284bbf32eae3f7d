"""What this machine is: its CPU, the cores that may be used, its memory, and how cores are shared among replicas.

Limits of a container count: a CPU quota or a memory limit of the control group is as real as the hardware.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
# Version 1 of control groups says "no limit" by a number near the top of the range.
_NO_LIMIT_FROM = 1 << 60


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as far as serving is concerned. `cores` are those this process may use."""

    cpu: str
    cores: int
    memory_bytes: int

    @property
    def label(self) -> str:
        """A short name for records, such as `Intel Xeon E5-2680, 2 cores, 24 GiB`."""
        return f"{self.cpu}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB"


def read_hardware() -> Hardware:
    """Read the machine from /proc and the control group."""
    limit = memory_limit()
    total = meminfo_bytes("MemTotal") or 0
    return Hardware(
        cpu=cpu_name((PROC / "cpuinfo").read_text()),
        cores=core_count(),
        memory_bytes=total if limit is None else min(total, limit),
    )


def cpu_name(cpuinfo: str) -> str:
    """Return the name in the text of /proc/cpuinfo without marketing signs; `unknown CPU` if there is none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "Hardware"}:
            plain = value.replace("(R)", "").replace("(TM)", "").replace("(tm)", "")
            return " ".join(word for word in plain.split("@")[0].split() if word != "CPU")
    return "unknown CPU"


def has_wide_vectors() -> bool:
    """Say whether this machine's CPU has AVX-512, as far as /proc/cpuinfo tells its flags."""
    return "avx512f" in _read(PROC / "cpuinfo").split()


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def core_count() -> int:
    """Return how many cores may be used at once: CPUs allowed, less if a quota says so."""
    quota, allowed = _cpu_quota(), len(usable_cpus())
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def _cpu_quota() -> float | None:
    """Return the tightest quota of this process's control groups in cores, None if there is none."""
    quotas = [_quota_v2(folder) for folder in cgroup_folders("")]
    quotas += [_quota_v1(folder) for folder in cgroup_folders("cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    return float(words[0]) / float(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.strip().isdigit() and int(period) > 0 else None


def cgroup_folders(controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's control group, innermost first, up to the root.

    `controller` is one of version 1; empty is version 2. Inside a container the inner ones may not be visible.
    """
    mount = CGROUP_ROOT / controller if controller else CGROUP_ROOT
    for line in _read(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            inner = mount / path.lstrip("/")
            return tuple(
                folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount)
            )
    return ()


class CpuShare(msgspec.Struct, frozen=True):
    """What one replica gets: a number of threads, and CPUs of its own (none: not pinned)."""

    threads: int
    cpus: tuple[int, ...]


def share_cpus(
    replicas: int, *, threads: int, cpus: Sequence[int], cores: int
) -> tuple[CpuShare, ...]:
    """Share cores evenly. `threads` 0: as many as a replica's share; otherwise that many.

    Replicas get distinct CPUs where there are enough; where there are not, nothing is pinned and the system
    schedules. A remainder stays free, so that replicas stay equal and the gateway has room.
    """
    if replicas < 1:
        raise ValueError("no replicas to share cores among")
    each = threads or max(1, cores // replicas)
    # Under a quota below the CPU count any CPUs will do, and pinning them would only forbid moving.
    if each * replicas > cores or cores < len(cpus):
        return (CpuShare(each, ()),) * replicas
    return tuple(
        CpuShare(each, tuple(cpus[index * each : (index + 1) * each])) for index in range(replicas)
    )


def meminfo_bytes(field: str) -> int | None:
    """Return a field of /proc/meminfo in bytes, None if it is not there."""
    for line in _read(PROC / "meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return int(value.split()[0]) * 1024
    return None


def memory_available() -> int | None:
    """Return the bytes that can still be allocated: the least of the system's and of every control group's."""
    found = [meminfo_bytes("MemAvailable")]
    found += [_room(folder, "memory.max", "memory.current") for folder in cgroup_folders("")]
    found += [
        _room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
        for folder in cgroup_folders("memory")
    ]
    return min((room for room in found if room is not None), default=None)


def memory_limit() -> int | None:
    """Return the tightest memory limit of this process's control groups in bytes, None if there is none."""
    found = [_limit(folder / "memory.max") for folder in cgroup_folders("")]
    found += [_limit(folder / "memory.limit_in_bytes") for folder in cgroup_folders("memory")]
    return min((limit for limit in found if limit is not None), default=None)


def _limit(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_FROM else None


def _room(folder: Path, limit_file: str, used_file: str) -> int | None:
    """Return what a control group may still allocate; page cache that can be dropped counts as free."""
    limit, used = _limit(folder / limit_file), _read(folder / used_file).strip()
    if limit is None or not used.isdigit():
        return None
    cache = _stat_field(_read(folder / "memory.stat"), "inactive_file")
    return max(0, limit - max(0, int(used) - cache))


def _stat_field(text: str, field: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key in {field, f"total_{field}"} and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    """Return a file's text; empty where the kernel does not offer it."""
    try:
        return path.read_text()
    except OSError:
        return ""


def resident_bytes(pid: int) -> int | None:
    """Return a process's resident memory in bytes, None if it is gone."""
    words = _read(PROC / str(pid) / "statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else None


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds a process has used, None if it is gone."""
    # The name in brackets may hold spaces; what counts begins after it.
    words = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    if len(words) < 13:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
