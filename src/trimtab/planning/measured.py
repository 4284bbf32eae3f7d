"""Measured layouts: rows of a table, each one run of a server under a closed loop of clients.

Columns (CSV, header required): id, engine, engine_version, model, system, precision, isl, osl, concurrency, gpus, tp,
attention_dp, moe_tp, moe_ep, ttft_ms, tpot_ms; `source` is optional. Known trap of such tables: where attention is
copied over data-parallel groups, `concurrency` counts the clients of one group, and some rows were divided twice. The
run's id still names all clients (`..._c256_tp8_...`), so there the id is believed; without one the column is multiplied
by the groups.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError

COLUMNS: Final = (
    "id",
    "engine",
    "engine_version",
    "model",
    "system",
    "precision",
    "isl",
    "osl",
    "concurrency",
    "gpus",
    "tp",
    "attention_dp",
    "moe_tp",
    "moe_ep",
    "ttft_ms",
    "tpot_ms",
)
ROWS_MAX: Final = 100_000
_CLIENTS_IN_ID: Final = re.compile(r"(?:^|_)c(\d+)(?:_|$)")


class Group(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a correction is valid for: one hardware, engine and model."""

    system: str
    engine: str
    model: str

    @property
    def label(self) -> str:
        """The group in one string such as "h100_sxm/vllm/Qwen/Qwen3-32B"."""
        return f"{self.system}/{self.engine}/{self.model}"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout was or would be run with, as far as errors of an estimate may depend on it.

    `clients`: requests in flight over the whole replica; `prefix_share`: part (0 to 1) of the input that its cache
    held; `run` says which engine version or campaign measured.
    """

    layout: Layout
    clients: float
    input_tokens: int
    output_tokens: int
    precision: str = ""
    prefix_share: float = 0.0
    run: str = ""


class MeasuredLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One measured row. Mean times in milliseconds; `run` joins engine version and campaign."""

    id: str
    group: Group
    engine_version: str
    load: Load
    ttft_ms: float
    tpot_ms: float


def read_measured(
    lines: Iterable[str], refused: dict[str, str] | None = None
) -> tuple[MeasuredLayout, ...]:
    """Read a table of measured layouts from its lines; raises `PlanInputError` naming the column and the row.

    With `refused` given, a row that cannot be is left out and said there; a table without any other still raises.
    """
    table = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        raise PlanInputError(missing[0], "this column is missing in the table of measured layouts")
    rows: list[MeasuredLayout] = []
    for number, fields in enumerate(table, start=2):
        if len(rows) == ROWS_MAX:
            raise PlanInputError("table", f"has more than {ROWS_MAX:,} rows")
        try:
            rows.append(_row(fields, number))
        except PlanInputError as error:
            if refused is None:
                raise
            refused[f"row {number}"] = str(error)
    if not rows:
        raise PlanInputError("table", "has no row that can be used")
    return tuple(rows)


def _row(fields: Mapping[str, str | None], number: int) -> MeasuredLayout:
    layout = _layout(fields, number)
    version = fields["engine_version"] or ""
    return MeasuredLayout(
        id=fields["id"] or f"row {number}",
        group=Group(
            system=_text(fields, "system", number),
            engine=_text(fields, "engine", number),
            model=_text(fields, "model", number),
        ),
        engine_version=version,
        load=Load(
            layout=layout,
            clients=_clients(fields, layout, number),
            input_tokens=int(_positive(fields, "isl", number)),
            output_tokens=int(_positive(fields, "osl", number)),
            precision=(fields["precision"] or "").lower(),
            run=f"{fields.get('source') or ''}/{version}",
        ),
        ttft_ms=_positive(fields, "ttft_ms", number),
        tpot_ms=_positive(fields, "tpot_ms", number),
    )


def _layout(fields: Mapping[str, str | None], number: int) -> Layout:
    size = {
        name: int(_positive(fields, name, number))
        for name in ("gpus", "tp", "attention_dp", "moe_tp", "moe_ep")
    }
    devices = size["tp"] * size["attention_dp"]
    if size["gpus"] % devices:
        raise PlanInputError(
            "gpus",
            f"{size['gpus']} devices of row {number} are no multiple of TP {size['tp']} x DP {size['attention_dp']}",
            (str(devices),),
        )
    spread_experts = size["moe_tp"] * size["moe_ep"] == devices
    return Layout(
        tp=size["tp"],
        pp=size["gpus"] // devices,
        attention_dp=size["attention_dp"],
        moe_tp=size["moe_tp"] if spread_experts else 1,
        moe_ep=size["moe_ep"] if spread_experts else 1,
    )


def _clients(fields: Mapping[str, str | None], layout: Layout, number: int) -> float:
    column = _positive(fields, "concurrency", number)
    if layout.attention_dp == 1:
        return column
    told = _CLIENTS_IN_ID.search(fields["id"] or "")
    return float(told[1]) if told else column * layout.attention_dp


def _text(fields: Mapping[str, str | None], name: str, number: int) -> str:
    text = fields[name]
    if not text:
        raise PlanInputError(name, f"is empty in row {number}")
    return text


def _positive(fields: Mapping[str, str | None], name: str, number: int) -> float:
    text = _text(fields, name, number)
    try:
        value = float(text)
    except ValueError as error:
        raise PlanInputError(name, f"{text!r} in row {number} is no number") from error
    if not 0.0 < value < 1e9:
        raise PlanInputError(name, f"{text} in row {number} must be above zero")
    return value
