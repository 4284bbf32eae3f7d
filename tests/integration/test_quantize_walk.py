"""The walk itself, with arms that are told what to answer: rungs that are broken end where that is known."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from trimtab.core.ports import LaunchError
from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.engines.score_format import Generated
from trimtab.interfaces.quantize_view import rows_of
from trimtab.quality.ladder import Ratio, Rung, RungResult, Speed, Stage
from trimtab.quality.loss import TextScore
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import RungFacts
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime import quantize as walk
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.eval_judge import JudgeError
from trimtab.runtime.lm_eval import HarnessError
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_texts import QualityText
from trimtab.runtime.quantize import Quantizer
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_engine import OriginalArm, Progress, RungArm, RungError
from trimtab.runtime.quantize_original import Original
from trimtab.runtime.sandbox import SandboxError

FACTS = RungFacts(effective={}, bits_per_weight=8.0, file_bytes=1, kv_bytes_per_token=None)
ORIGINAL = Rung(name="bf16", stages=(Stage.ORIGINAL,), quality_only=True)


class Arm:
    """A character is a token. `loss`: of every token; None: it never answers; an error: it is raised."""

    streams = 1
    url = "http://nowhere"

    def __init__(self, loss: float | Exception | None) -> None:
        self.loss = loss

    async def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(range(len(text)))

    async def score(self, window: Window) -> TextScore:
        if isinstance(self.loss, Exception):
            raise self.loss
        if self.loss is None:
            await asyncio.Event().wait()
        losses = (self.loss or 0.0,) * window.scored
        return TextScore(
            kind=window.kind, name=window.name, first_position=window.first, losses=losses
        )

    async def write(self, before: Sequence[int], tokens: int, **_: object) -> Generated:
        return Generated((1, 2, 3), "abc", False)


class Engine:
    """Implements `LadderEngine` for rungs with a loss each; a `LaunchError` is raised at a rung's start.

    With `ends_original` the original is gone as soon as a rung is asked for.
    """

    version, machine = "made/1", "here"

    ends_original = False

    def __init__(self, **rungs: float | Exception | None) -> None:
        self.told = rungs
        self.first = Arm(2.0)
        self.closed = False
        self.after: dict[str, str] = {}

    async def original(self, say: Progress) -> OriginalArm:
        return OriginalArm(cast(QualityArm, self.first), "m", "0", "m", "as given")

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
        if isinstance(told := self.told.get(rung.name), RungError):
            raise told
        return FACTS

    @asynccontextmanager
    async def started(self, rung: Rung) -> AsyncIterator[RungArm]:
        told = self.told.get(rung.name, 2.0)
        if self.ends_original and not rung.is_original:
            self.first.loss = ArmError("original did not answer")
        if isinstance(told, Exception):
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


async def test_rung_that_cannot_be_written_is_an_error_and_the_walk_goes_on(tmp_path: Path) -> None:
    """It has no file, so nothing is told of its size; what comes after it is measured."""
    found = await walked(Engine(q4=RungError("q4: no layer is left"), q8=2.0), tmp_path)
    assert (told(found, "q4").verdict, told(found, "q4").because) == (
        Verdict.ERROR,
        "q4: no layer is left",
    )
    assert told(found, "q8").verdict is Verdict.PASS
    assert [row[2:4] for row in rows_of(found) if row[0] == "q4"] == [("unknown", "unknown")]


async def test_rung_is_not_blamed_for_an_original_that_is_gone(tmp_path: Path) -> None:
    """The walk ends with what the original says, and the rung has no row to be taken over."""
    engine = Engine(q8=ArmError("rung did not answer"))
    engine.ends_original = True
    with pytest.raises(ArmError, match="original did not answer"):
        await walked(engine, tmp_path)
    assert b'"q8"' not in (tmp_path / "walk.json").read_bytes()


@pytest.mark.parametrize("kind", [JudgeError, HarnessError, SandboxError])
async def test_rung_is_not_blamed_for_what_judges_it(tmp_path: Path, kind: type[Exception]) -> None:
    """A judge that is away is no verdict on the rung: the walk ends there and can be resumed."""
    with pytest.raises(kind, match="away"):
        await walked(Engine(q8=kind("away")), tmp_path)
    assert b'"q8"' not in (tmp_path / "walk.json").read_bytes()


@pytest.mark.parametrize(
    ("alive", "verdict"), [(True, None), (False, Verdict.ERROR)], ids=["harness", "rung"]
)
async def test_harness_that_fails_is_the_rungs_failure_only_where_the_rung_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool, verdict: Verdict | None
) -> None:
    """A rung that dies under its questions has a row; a harness that fails by itself ends the walk."""
    asked: list[Arm] = []

    async def failing(arm: Arm, _: object) -> tuple[()]:
        asked.append(arm)
        if len(asked) < 3:  # the original before the walk, and as the first rung of it
            return ()
        arm.loss = arm.loss if alive else ArmError("rung did not answer")
        raise HarnessError("lm-eval ended with 1")

    monkeypatch.setattr(walk, "answered", failing)
    if verdict is None:
        with pytest.raises(HarnessError):
            await walked(Engine(q8=2.0), tmp_path)
        return
    found = told(await walked(Engine(q8=2.0), tmp_path), "q8")
    assert (found.verdict, found.because) == (verdict, "rung did not answer")


def measured(verdict: Verdict, low: float, high: float, kv_type: str) -> RungResult:
    """A rung with an interval of latency and cost."""
    told = Ratio(
        n=4,
        ratio=0.5 * (low + high),
        interval=Interval(low=low, high=high, level=0.95),
        base=1.0,
        rung=1.0,
    )
    return RungResult(
        rung=Rung(name="q8_0", stages=(Stage.KV,), kv_type=kv_type),
        verdict=verdict,
        because="within",
        kinds={"code": verdict},
        elsewhere=verdict,
        quality={},
        speed=Speed(ttft_ms=told, tpot_ms=told, tokens_per_s={}, score=told),
        effective={},
        bits_per_weight=16.0,
        file_bytes=1,
        resident_bytes=None,
        kv_bytes_per_token=None,
    )


@pytest.mark.parametrize(
    ("binds", "kv_type", "low", "high", "said"),
    [
        (True, "q8_0", 0.95, 1.04, ""),
        (True, "q8_0", 1.01, 1.04, "; slower: 1.025 [1.010, 1.040] lies above 1"),
        (
            True,
            "f16",
            0.95,
            1.04,
            "; not faster: 0.995 [0.950, 1.040] does not lie below the bar 1.000",
        ),
        (False, "f16", 0.90, 0.97, ""),
        (False, "f16", 0.984, 0.998, "its ratio is not below the bar 0.990"),
    ],
)
async def test_rung_is_confirmed_by_what_it_was_chosen_by(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    binds: bool,
    kv_type: str,
    low: float,
    high: float,
    said: str,
) -> None:
    """Where KV binds a rung of fewer KV bytes need not be faster, only not shown to be slower."""
    ask = QuantizeAsk(model="m", folder=tmp_path, texts=(), kv_binds=binds)
    quantizer = Quantizer(ask, Engine(), SystemClock(), lambda *_: None)
    again = measured(Verdict.PASS, low, high, kv_type)

    async def measure(*_: object) -> RungResult:
        return again

    monkeypatch.setattr(quantizer, "_measure", measure)
    original = measured(Verdict.PASS, 0.99, 1.01, "f16")
    found = await quantizer._confirm(cast(Original, None), again, None, original)
    assert found.holds is (not said)
    assert said in found.because
