"""A walk that was interrupted: what it measured is taken over by one that asks the same, and by no other."""

from pathlib import Path

import msgspec
import pytest

from trimtab.core.ports import LaunchError
from trimtab.core.types import Verdict
from trimtab.quality.ladder import Rung, RungResult, Stage
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime.quality_texts import QualityText
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_sitting import (
    NAME,
    Sitting,
    begun,
    ended,
    fingerprint_of,
    kept,
    words_of,
)


def ask(folder: Path, **other: object) -> QuantizeAsk:
    fields = {"model": "m.gguf", "folder": folder, "texts": (QualityText("code", "a", "x = 1"),)}
    return msgspec.structs.replace(QuantizeAsk(**fields), **other)  # type: ignore[arg-type]


def mark(asked: QuantizeAsk, machine: str = "here") -> str:
    return fingerprint_of(asked, engine="llamacpp/1", machine=machine, sha256="0" * 64)


ROW = RungResult(
    rung=Rung(name="q8_0", stages=(Stage.WEIGHTS,), kinds={}),
    verdict=Verdict.PASS,
    because="within",
    kinds={"code": Verdict.PASS},
    elsewhere=Verdict.PASS,
    quality={},
    speed=None,
    effective={},
    bits_per_weight=8.5,
    file_bytes=1,
    resident_bytes=None,
    kv_bytes_per_token=None,
)
LOOKED = Sensitivity(groups=(), outliers=(), probe="q4_0")


def test_interrupted_walk_is_taken_over_whole(tmp_path: Path) -> None:
    """Rows and sensitivity come back as they were, and the report says how many are of an earlier sitting."""
    first = ask(tmp_path)
    kept(first, Sitting(fingerprint=mark(first), sensitivity=LOOKED, results={"q8_0": ROW}))
    again = ask(tmp_path, resume=True)
    found = begun(again, mark(again))
    assert (found.results, found.sensitivity, found.taken_over) == ({"q8_0": ROW}, LOOKED, 1)
    more = msgspec.structs.replace(found, results={"q8_0": ROW, "q4_0": ROW})
    assert words_of(more)[0].startswith("the walk was interrupted: 1 of 2 rungs")


def test_walk_begins_anew_unless_it_is_asked_to_go_on(tmp_path: Path) -> None:
    """Old rows never slip into a fresh walk."""
    first = ask(tmp_path)
    kept(first, Sitting(fingerprint=mark(first), results={"q8_0": ROW}))
    found = begun(first, mark(first))
    assert (found.results, words_of(found)) == ({}, ())


@pytest.mark.parametrize(
    "other", [{"rounds": 9}, {"positions": 64}, {"margin_nats": 0.5}, {"free_prompts": 3}]
)
def test_walk_that_was_asked_otherwise_is_not_taken_over(
    tmp_path: Path, other: dict[str, object]
) -> None:
    """Rows that were measured otherwise do not stand beside each other."""
    first = ask(tmp_path)
    kept(first, Sitting(fingerprint=mark(first), results={"q8_0": ROW}))
    again = ask(tmp_path, resume=True, **other)
    with pytest.raises(LaunchError, match=r"the walk in .*walk\.json was another"):
        begun(again, mark(again))
    same = ask(tmp_path, resume=True)
    with pytest.raises(LaunchError, match="the machine"):
        begun(same, mark(same, machine="another"))


def test_more_rungs_may_be_asked_of_the_same_walk(tmp_path: Path) -> None:
    """A further KV type or rung leaves the measured rows as they are."""
    first = ask(tmp_path)
    kept(first, Sitting(fingerprint=mark(first), results={"q8_0": ROW}))
    wider = ask(tmp_path, resume=True, kv_types=("f16", "q8_0", "q4_0"), only=("q8_0",))
    assert begun(wider, mark(wider)).results == {"q8_0": ROW}


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    """Also after a walk that ended; and a damaged file is no empty one."""
    again = ask(tmp_path, resume=True)
    with pytest.raises(LaunchError, match="nothing to resume"):
        begun(again, mark(again))
    kept(again, Sitting(fingerprint=mark(again)))
    ended(again)
    with pytest.raises(LaunchError, match="nothing to resume"):
        begun(again, mark(again))
    (tmp_path / NAME).write_text("{")
    with pytest.raises(LaunchError, match="is damaged"):
        begun(again, mark(again))


def test_rung_that_could_not_be_judged_is_measured_again(tmp_path: Path) -> None:
    """What broke then may have been the machine of that hour; rows that were judged are taken over."""
    first = ask(tmp_path)
    broken = msgspec.structs.replace(ROW, verdict=Verdict.ERROR)
    kept(first, Sitting(fingerprint=mark(first), results={"q8_0": ROW, "q4_0": broken}))
    again = ask(tmp_path, resume=True)
    found = begun(again, mark(again))
    assert (found.results, found.taken_over) == ({"q8_0": ROW}, 1)
