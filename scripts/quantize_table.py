"""Prints the table of docs/quantize.md from a walk: python scripts/quantize_table.py out/quantized.json."""

import sys
from pathlib import Path

import msgspec

from trimtab.interfaces.quantize_view import SIGNS, harm_words, ratio_words
from trimtab.quality.ladder import RungResult
from trimtab.quality.quantized import Quantized

HEADS = ("rung", "KV", "verdict", "bits", "file MB", "resident MB", "KV B/token")
SPEEDS = ("TTFT", "TPOT", "tok/s at {most}", "latency and cost")


def row_of(one: RungResult, found: Quantized, kinds: list[str]) -> list[str]:
    """Return one row; ratios are parts of the original's."""
    speed = one.speed
    most = max(found.plan.concurrencies)
    chosen = " **chosen**" if one.rung.label == found.choice.rung else ""
    return [
        one.rung.name + chosen,
        one.rung.kv_type,
        SIGNS[one.verdict],
        f"{one.bits_per_weight:.1f}",
        f"{one.file_bytes / 1e6:,.0f}",
        "unknown" if one.resident_bytes is None else f"{one.resident_bytes / 1e6:,.0f}",
        "unknown" if one.kv_bytes_per_token is None else f"{one.kv_bytes_per_token:,.0f}",
        *(harm_words(one, kind).removeprefix(f"{kind} ").rpartition(" n=")[0] for kind in kinds),
        *(
            ratio_words(each)
            for each in ((speed.ttft_ms, speed.tpot_ms) if speed else (None, None))
        ),
        ratio_words(speed.tokens_per_s[most] if speed else None),
        ratio_words(speed.score if speed else None),
    ]


def main(path: Path) -> None:
    """Print the table and what was kept."""
    found = msgspec.json.decode(path.read_bytes(), type=Quantized)
    kinds = list(found.plan.positions)
    speeds = [head.format(most=max(found.plan.concurrencies)) for head in SPEEDS]
    heads = [*HEADS, *(f"{kind}, nats a token" for kind in kinds), *speeds]
    rows = [row_of(one, found, kinds) for one in found.results]
    for cells in (heads, ["---"] * len(heads), *rows):
        sys.stdout.write("| " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
