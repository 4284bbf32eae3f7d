"""Every lever record among the examples is complete."""

from pathlib import Path

from events_kit import REVISION

from trimtab.core.lever import check_record
from trimtab.rollout.short_record import complete, parse_record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "levers" / "smaller-chunk.toml"


def test_example_of_a_lever_record_is_complete() -> None:
    """As a person would copy it: nothing is refused."""
    short = parse_record(EXAMPLE.read_text(encoding="utf-8"), source=EXAMPLE.name)
    record = complete(short, baseline=REVISION, now_s=0.0)
    assert check_record(record).name == "smaller-chunk"
