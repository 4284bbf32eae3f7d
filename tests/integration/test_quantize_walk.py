"""The walk itself, with arms that are told what to answer: rungs that are broken end where that is known."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from trimtab.core.ports import LaunchError
from trimtab.core.types import Verdict
from trimtab.engines.score_format import Generated
from trimtab.quality.ladder import Rung, RungResult, Stage
from trimtab.quality.loss import TextScore
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import RungFacts
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime import quantize as walk
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_texts import QualityText
from trimtab.runtime.quantize import Quantizer
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_engine import OriginalArm, Progress, RungArm

FACTS = RungFacts(effective={}, bits_per_weight=8.0, file_bytes=1, kv_bytes_per_token=None)
ORIGINAL = Rung(name="bf16", stages=(Stage.ORIGINAL,), quality_only=True)


class Arm:
    """A character is a token. `loss`: of every token; None: it never answers."""

    streams = 1
    url = "http://nowhere"

    def __init__(self, loss: float | None) -> None:
        self.loss = loss

    async def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(range(len(text)))

    async def score(self, window: Window) -> TextScore:
        if self.loss is None:
            await asyncio.Event().wait()
        losses = (self.loss or 0.0,) * window.scored
        return TextScore(
            kind=window.kind, name=window.name, first_position=window.first, losses=losses
        )

    async def write(self, before: Sequence[int], tokens: int, **_: object) -> Generated:
        return Generated((1, 2, 3), "abc", False)


class Engine:
    """Implements `LadderEngine` for rungs with a loss each; a `LaunchError` is raised at a rung's start."""

    version, machine = "made/1", "here"

    def __init__(self, **rungs: float | LaunchError | None) -> None:
        self.told = rungs
        self.closed = False
        self.after: dict[str, str] = {}

    async def original(self, say: Progress) -> OriginalArm:
        return OriginalArm(cast(QualityArm, Arm(2.0)), "m", "0", "m", "as given")

    async def sensitivity(self, *_: object) -> Sensitivity:
        raise AssertionError("not asked for")

    def rungs(self, found: Sensitivity | None) -> tuple[Rung, ...]:
        return (
            ORIGINAL,
            *(
                Rung(
                    name=name,
                    stages=(Stage.WEIGHTS,),
                    after=self.after.get(name, ""),
                    quality_only=True,
                )
                for name in self.told
            ),
        )

    async def write(self, rung: Rung, found: Sensitivity | None) -> RungFacts:
        return FACTS

    @asynccontextmanager
    async def started(self, rung: Rung) -> AsyncIterator[RungArm]:
        told = self.told.get(rung.name, 2.0)
        if isinstance(told, LaunchError):
            raise told
        yield RungArm(cast(QualityArm, Arm(told)), FACTS)

    def resident_bytes(self) -> int | None:
        return None

    def discard(self) -> None:
        pass

    async def keep(self, rung: Rung) -> str:
        return "kept"

    def notes(self, results: Sequence[RungResult]) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        self.closed = True


async def walked(engine: Engine, folder: Path) -> Quantized:
    ask = QuantizeAsk(
        model="m",
        folder=folder,
        texts=(QualityText("code", "a.py", "x" * 1200),),
        positions=512,
        free_prompts=2,
        sensitivity=False,
        confirm=False,
    )
    found = await Quantizer(ask, engine, SystemClock(), lambda *_: None).run()
    assert engine.closed
    return found


def told(found: Quantized, name: str) -> RungResult:
    return next(one for one in found.results if one.rung.name == name)


async def test_rung_that_never_answers_is_an_error_and_the_walk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for; what comes after it is measured."""
    monkeypatch.setattr(walk, "SLOW_MIN_S", 0.05)
    monkeypatch.setattr(walk, "SLOW_TIMES", 0.0)
    found = await walked(Engine(slow=None, good=2.0), tmp_path)
    assert told(found, "slow").verdict is Verdict.ERROR
    assert "too slow to be judged, it met no traffic" in told(found, "slow").because
    assert told(found, "good").verdict is Verdict.PASS


async def test_garbage_fails_before_any_traffic_and_nothing_is_lowered_on_top_of_it(
    tmp_path: Path,
) -> None:
    """Its first text gives it away; the rung that rests on it is not tried."""
    engine = Engine(garbage=13.0, more=2.0)
    engine.after["more"] = "garbage"
    found = await walked(engine, tmp_path)
    assert told(found, "garbage").because.startswith("garbage: 13.00 nats a token")
    assert told(found, "more").because.startswith("not tried: garbage")
    assert told(found, "more").verdict is Verdict.FAIL


async def test_rung_whose_precision_is_not_effective_is_an_error_with_its_words(
    tmp_path: Path,
) -> None:
    """What was requested did not run: no quality and no speed of it is told."""
    broken = LaunchError("requested is not effective: ffn_down: 30 int8 planned, 30 plain run")
    found = await walked(Engine(idle=broken), tmp_path)
    idle = told(found, "idle")
    assert (idle.verdict, idle.because, idle.quality) == (Verdict.ERROR, str(broken), {})
    assert found.choice.rung == "bf16"
