"""What was measured already, as rows that correct a plan: a table of layouts, or benchmark files and access logs with
their layout.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError
from trimtab.core.nearest import plain_name
from trimtab.core.served import ModelShape
from trimtab.planning.measured import Group, Load, MeasuredLayout, read_measured
from trimtab.runtime.served_sources import SourceError
from trimtab.workloads.bench_files import read_bench_text
from trimtab.workloads.bench_run import BenchFileError, BenchRun

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_SIZE: Final = re.compile(r"(TP|DP|EP|PP)(\d+)")
_LABELLED: Final = re.compile(r"(?P<label>(?:(?:TP|DP|EP|PP)\d+[ ,x+-]?)+)=(?P<path>.+)")


def read_rows(words: Sequence[str], group: Group, model: ModelShape) -> tuple[MeasuredLayout, ...]:
    """Return the rows of a group out of [LAYOUT=]FILE words; raises `SourceError`, `PlanInputError`."""
    rows: list[MeasuredLayout] = []
    for word in words:
        found = _LABELLED.fullmatch(word)
        if found is None:
            label, labels, _ = word.partition("=")
            if labels and not Path(word).exists():
                raise PlanInputError(
                    "measured",
                    f"{label!r} names no layout",
                    ("TP4=FILE", "TP8 PP2=FILE", "DP8 EP8=FILE"),
                )
            rows += _of_table(Path(word), group)
            continue
        path = Path(found["path"])
        layout = layout_of(found["label"], model)
        rows += [_of_bench(run, path, layout, group) for run in _bench_runs(path)]
    return tuple(rows)


def layout_of(label: str, model: ModelShape) -> Layout:
    """Return the layout that a label such as "TP4", "TP8 PP2" or "DP8 EP8" names."""
    sizes = {name: int(size) for name, size in _SIZE.findall(label)}
    tp, dp, ep = sizes.get("TP", 1), sizes.get("DP", 1), sizes.get("EP", 1)
    ranks = tp * dp if model.experts else 1
    if ranks % ep:
        raise PlanInputError(
            "measured", f"{label.strip()} deals experts out over {ep} of {ranks} ranks"
        )
    return Layout(
        tp=tp, attention_dp=dp, pp=sizes.get("PP", 1), moe_ep=ep, moe_tp=max(1, ranks // ep)
    )


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SourceError(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _of_table(path: Path, group: Group) -> list[MeasuredLayout]:
    """Return the rows of the group asked for; a table without one is refused with the groups that it has."""
    try:
        rows = read_measured(_text_of(path).splitlines())
    except PlanInputError as error:
        raise PlanInputError(
            "measured", f"{path}: {error}; one benchmark's result needs its layout", ("TP4=FILE",)
        ) from error
    mine = [row for row in rows if _same_group(row.group, group)]
    if not mine:
        has = tuple(dict.fromkeys(row.group.label for row in rows))
        raise PlanInputError("measured", f"{path} has no row of {group.label}", has[:3])
    return [msgspec.structs.replace(row, group=group) for row in mine]


def _same_group(one: Group, other: Group) -> bool:
    names = [plain_name(each.model.rpartition("/")[2]) for each in (one, other)]
    same_model = names[0].startswith(names[1]) or names[1].startswith(names[0])
    return (one.system, one.engine) == (other.system, other.engine) and same_model


def _bench_runs(path: Path) -> tuple[BenchRun, ...]:
    try:
        return read_bench_text(_text_of(path))
    except BenchFileError as error:
        raise SourceError(f"{path}: {error}") from error


def _of_bench(run: BenchRun, path: Path, layout: Layout, group: Group) -> MeasuredLayout:
    return MeasuredLayout(
        id=f"{path.name} ({run.tool})",
        group=group,
        engine_version="",
        load=Load(
            layout=layout,
            clients=run.clients,
            input_tokens=max(1, round(run.input_tokens)),
            output_tokens=max(1, round(run.output_tokens)),
            prefix_share=run.prefix_share,
            run=run.tool,
        ),
        ttft_ms=run.ttft_ms,
        tpot_ms=run.tpot_ms,
    )
