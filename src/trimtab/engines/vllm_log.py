"""vLLM's own log, read: what a start took and what it really runs; and which of its lines may be kept.

Sizes in the log are GiB rounded to two decimals; they become bytes here, good to 5 MiB. What a log does not say is
None: on a CPU vLLM itself names no weights (our plugin does), and a KV cache of a given size is not profiled for.
Wordings of vLLM 0.7 to 0.32 are read, on CPU and GPU.

Until a server has answered its first health check nobody has sent it a prompt, so all it says may be kept. After that
some complaints quote the request: of those lines only the head is kept (level, time, place in the source).
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_GIB: Final = 2**30
# A process, its level, time and place in the source, and then what it says.
_LINE: Final = re.compile(
    r"(?:\((?P<process>[\w-]+?)(?: pid=(?P<pid>\d+))?\) )?(?P<head>(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d \[(?P<place>[\w./]+):\d+\]) ?(?P<words>.*)"
)
_WEIGHTS: Final = re.compile(
    r"Model loading took ([\d.]+) ?Gi?B|[Ll]oading model weights took ([\d.]+) ?Gi?B"
    r"|model weights take ([\d.]+) ?GiB|([\d.]+) GiB for weight"
)
_WEIGHTS_EXACT: Final = re.compile(r"Weights of this rank: (\d+) bytes")
_CONSUMED: Final = re.compile(r"([\d.]+) GiB for consumed memory")
_ACTIVATION: Final = re.compile(
    r"activation peak memory takes ([\d.]+) ?GiB|([\d.]+) GiB for peak activation"
)
_OTHER: Final = re.compile(r"non_torch_memory takes ([\d.]+) ?GiB|([\d.]+) GiB for non-torch")
_GRAPHS: Final = re.compile(
    r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) ?GiB|([\d.]+) GiB for CUDAGraph"
)
_KV_BYTES: Final = re.compile(
    r"Available KV cache memory: ([\d.]+) ?GiB|reserved for KV Cache is ([\d.]+) ?GiB"
    r"|(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"
)
_KV_TOKENS: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY: Final = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_BLOCKS: Final = re.compile(r"# (?:cuda|CUDA|GPU|gpu|cpu|CPU) blocks: (\d+)")
_CHECKPOINT: Final = re.compile(r"Checkpoint size: ([\d.]+) GiB")
_INIT: Final = re.compile(r"init engine \(.*?\) took ([\d.]+) s")
_LOADED: Final = re.compile(r"Loading weights took ([\d.]+) s")
_CONFIG: Final = re.compile(
    r"Initializing a V\d LLM engine \(v(?P<version>[^)]+)\) with config: (?P<rest>.*)"
)
_SETTINGS: Final = {
    "dtype": re.compile(r"\bdtype=(?:torch\.)?(\w+)"),
    "context_tokens": re.compile(r"\bmax_seq_len=(\d+)"),
    "tensor_parallel": re.compile(r"\btensor_parallel_size=(\d+)"),
    "pipeline_parallel": re.compile(r"\bpipeline_parallel_size=(\d+)"),
    "data_parallel": re.compile(r"\bdata_parallel_size=(\d+)"),
    "quantization": re.compile(r"\bquantization=([\w-]+)"),
    "kv_dtype": re.compile(r"\bkv_cache_dtype=(\w+)"),
    "seed": re.compile(r"\bseed=(\d+)"),
    "prefix_caching": re.compile(r"\benable_prefix_caching=(\w+)"),
    "chunked_prefill": re.compile(r"\benable_chunked_prefill=(\w+)"),
    "enforce_eager": re.compile(r"\benforce_eager=(\w+)"),
    "speculation": re.compile(r"\bspeculative_config=(?:SpeculativeConfig\(method='(\w+)'|(None))"),
}
_STAGES: Final = (
    ("Application startup complete", "answering"),
    ("Starting vLLM server", "opening its port"),
    ("init engine", "engine ready"),
    ("Warming up model", "tracing and warming up"),
    ("Capturing CUDA graph", "capturing graphs"),
    ("KV cache", "sizing the KV cache"),
    ("Loading weights took", "weights loaded"),
    ("Starting to load model", "loading weights"),
    ("Initializing a V", "starting the engine"),
    ("Resolved architecture", "model recognised"),
    ("non-default args", "reading options"),
)
# Lines of statistics: numbers and nothing else.
_PROMPTLESS: Final = frozenset({"loggers.py", "metrics.py", "launcher.py", "core.py", "utils.py"})
_TRACE: Final = re.compile(
    r"(?:\([\w-]+ pid=\d+\) )?(?:\w+ [\d-]+ [\d:]+ \[[\w./]+:\d+\] )?"
    r"(?P<kept>\s+File \"[^\"]+\", line \d+|[\w.]*(?:Error|Exception|Interrupt)\b)"
)
_FATAL: Final = re.compile(
    r"Fatal Python error: [A-Z]\w+|Segmentation fault|Killed|!!!!!!! Segfault"
)


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of the server said of its memory, in bytes; `process`: its name there, such as `Worker_TP0`.

    `weights`: the model as loaded. `consumed`: weights and what lies outside the tensor library, where the log counts
    them together. `activation_peak`: beyond the weights while profiling. `kv_cache`: set aside for KV.
    """

    process: str
    weights: int | None = None
    consumed: int | None = None
    activation_peak: int | None = None
    other: int | None = None
    graphs: int | None = None
    kv_cache: int | None = None


class StartReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a start-up log says. None: it does not say.

    `kv_tokens`, `kv_blocks`: capacity of one engine (each data-parallel rank has its own). `concurrency_max`: how many
    requests of `concurrency_tokens` fit at once. `settings`: what the engine says it runs, under the names of
    `VllmLaunch`.
    """

    version: str | None = None
    ranks: tuple[RankMemory, ...] = ()
    checkpoint_bytes: int | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    concurrency_max: float | None = None
    concurrency_tokens: int | None = None
    load_s: float | None = None
    init_s: float | None = None
    settings: dict[str, str] = {}

    @property
    def kv_cache_bytes(self) -> int | None:
        """The KV caches of all ranks together; None where no rank says."""
        said = [rank.kv_cache for rank in self.ranks if rank.kv_cache is not None]
        return sum(said) if said else None

    @property
    def weights_bytes(self) -> int | None:
        """The weights of all ranks together, copies counted as often as they are held; None where no rank says."""
        said = [rank.weights for rank in self.ranks if rank.weights is not None]
        return sum(said) if said else None


def read_start_log(text: str) -> StartReport:
    """Read a whole start-up log; lines that say nothing of interest, or cannot be read, change nothing."""
    # Workers of different data-parallel ranks have one name; the process tells them apart.
    ranks: dict[tuple[str, int], dict[str, int]] = {}
    found: dict[str, object] = {}
    settings: dict[str, str] = {}
    for line in text.splitlines():
        process, pid, words = split_line(line)
        sizes = _rank_sizes(words)
        if sizes:
            ranks.setdefault((process, pid), {}).update(sizes)
        found |= _engine_facts(words)
        if (config := _CONFIG.search(words)) is not None:
            found["version"] = config["version"]
            settings |= _settings(config["rest"])
    return StartReport(
        ranks=tuple(
            RankMemory(process=name, **sizes) for (name, _), sizes in sorted(ranks.items())
        ),
        settings=settings,
        **found,  # type: ignore[arg-type]
    )


def split_line(line: str) -> tuple[str, int, str]:
    """Return the process that a line names and its id (empty and 0 if none), and the words after its head."""
    match = _LINE.search(line)
    if match is None:
        return "", 0, line
    return match["process"] or "", int(match["pid"] or 0), match["words"]


def _rank_sizes(words: str) -> dict[str, int]:
    if (exact := _WEIGHTS_EXACT.search(words)) is not None:
        return {"weights": int(exact[1])}
    patterns = (
        ("weights", _WEIGHTS),
        ("consumed", _CONSUMED),
        ("activation_peak", _ACTIVATION),
        ("other", _OTHER),
        ("graphs", _GRAPHS),
        ("kv_cache", _KV_BYTES),
    )
    return {name: size for name, pattern in patterns if (size := _size(pattern, words)) is not None}


def _engine_facts(words: str) -> dict[str, object]:
    found: dict[str, object] = {}
    if (match := _KV_TOKENS.search(words)) is not None:
        found["kv_tokens"] = _count(match[1])
    if (match := _CONCURRENCY.search(words)) is not None:
        found |= {"concurrency_tokens": _count(match[1]), "concurrency_max": float(match[2])}
    if (match := _BLOCKS.search(words)) is not None:
        found["kv_blocks"] = int(match[1])
    if (size := _size(_CHECKPOINT, words)) is not None:
        found["checkpoint_bytes"] = size
    if (match := _INIT.search(words)) is not None:
        found["init_s"] = float(match[1])
    if (match := _LOADED.search(words)) is not None:
        found["load_s"] = float(match[1])
    return found


def _settings(config: str) -> dict[str, str]:
    matches = {name: pattern.search(config) for name, pattern in _SETTINGS.items()}
    return {
        name: next(group for group in match.groups() if group is not None)
        for name, match in matches.items()
        if match is not None
    }


def _size(pattern: re.Pattern[str], words: str) -> int | None:
    match = pattern.search(words)
    if match is None:
        return None
    return round(float(next(group for group in match.groups() if group is not None)) * _GIB)


def _count(digits: str) -> int:
    return int(digits.replace(",", ""))


_WORKER_FAILED: Final = re.compile(r"Worker failed with error '(?P<cause>.+)', please check")
_POINTS_UP: Final = "See root cause above"


def start_stage(line: str) -> str | None:
    """Return which stage of a start a line tells of, in words; None for any other line."""
    *_, words = split_line(line)
    return next((stage for sign, stage in _STAGES if sign in words), None)


def keepable_line(line: str) -> str | None:
    """Return what may be kept of a line that a serving server wrote, None if nothing: no prompt may reach a disk."""
    if (fatal := _FATAL.search(line)) is not None:
        return fatal.group()
    match = _LINE.match(line)
    if match is not None and match["level"] == "INFO":
        return line.rstrip() if match["place"] in _PROMPTLESS else None
    if (trace := _TRACE.match(line)) is not None:
        return trace["kept"]
    return None if match is None else match["head"]


def last_error(lines: Iterable[str]) -> str:
    """Return the words of the last line that tells of an error, empty if there is none.

    A line that only points at one above it does not count, nor does one of the source in a traceback; of what a worker
    failed with its own words are told.
    """
    found = ""
    for line in lines:
        if re.search(r"\b\w*Error\b|\bERROR\b|Fatal|Killed|error:", line):
            *_, words = split_line(line)
            worker = _WORKER_FAILED.search(words)
            said = words.strip() if worker is None else worker["cause"]
            points_up = found and _POINTS_UP in said
            found = found if not said or points_up or said.startswith("raise ") else said
    return found
