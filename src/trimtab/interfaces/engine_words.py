"""A started server in words: where it answers, what it takes, what it runs otherwise than asked for."""

from collections.abc import Iterator, Sequence

from trimtab.engines.vllm_log import RankMemory
from trimtab.runtime.vllm_launcher import Running
from trimtab.runtime.vllm_server import ProcessMemory

MIB = 1024 * 1024


def running_lines(running: Running, processes: Sequence[ProcessMemory]) -> Iterator[str]:
    """Say it, a fact a line; what vLLM does not say is left out."""
    report = running.report
    yield f"{running.model.id} answers at {running.url}/v1 after {running.start_s:.0f} s"
    if running.launch is not None:
        yield f"layout    {running.launch.layout}, {report.settings.get('dtype', 'precision unknown')}"
    if report.kv_tokens is not None:
        blocks = "" if report.kv_blocks is None else f" in {report.kv_blocks:,} blocks"
        yield f"KV cache  {report.kv_tokens:,} tokens{blocks}{_concurrency(running)}"
    for rank in report.ranks:
        yield f"{rank.process:<9} " + ", ".join(_rank_parts(rank))
    for process in processes:
        yield f"process   {process.pid} {process.name}: {_process(process)}"
    if processes:
        yield f"together  {_mib(sum(_fair(one) for one in processes))}, shared pages counted once"
    for difference in running.differences:
        yield f"differs   {difference}"
    if running.log_path is not None:
        yield f"log       {running.log_path}"


def _concurrency(running: Running) -> str:
    report = running.report
    if report.concurrency_max is None:
        return ""
    return f": {report.concurrency_max:g} requests of {report.concurrency_tokens:,} tokens at once"


def _rank_parts(rank: RankMemory) -> list[str]:
    sizes = (
        ("weights", rank.weights),
        ("weights and others", rank.consumed),
        ("activation peak", rank.activation_peak),
        ("other", rank.other),
        ("graphs", rank.graphs),
        ("KV cache", rank.kv_cache),
    )
    return [f"{name} {_mib(size)}" for name, size in sizes if size is not None]


def _process(process: ProcessMemory) -> str:
    shared = process.proportional_bytes
    part = "" if shared is None else f", {_mib(shared)} with shared pages split"
    return f"{_mib(process.resident_bytes)} resident{part}"


def _fair(process: ProcessMemory) -> int:
    shared = process.proportional_bytes
    return process.resident_bytes if shared is None else shared


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
