"""Synthetic readings and facts of servers of others, for tests of the rules."""

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Evidence, Reading, Readings, Unknown, Window
from trimtab.core.served import Accelerator, ModelShape
from trimtab.diagnosis.served_advice import Answer, Judgement, ServedAdvice, Subject
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_rules import advise_served

WINDOW = Window(0.0, 60.0)
SERVED_8B = ModelShape(
    name="dense-8b",
    source="test",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_size=128,
    vocabulary=128_256,
    parameters=8.0e9,
    active_parameters=8.0e9,
    weight_bytes=16.0e9,
    kv_bytes_per_token=131_072.0,
)
DEVICE = Accelerator(
    name="test-gpu",
    flops_16bit=990e12,
    flops_8bit=1980e12,
    memory_bytes=80e9,
    memory_bytes_per_s=3.35e12,
    link_bytes_per_s=450e9,
    source="test",
)
KNOWN = ServedFacts(model=SERVED_8B, accelerator=DEVICE)
MEASURED = CostModel(
    prefill_base_ms=5.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=4.0,
    prefill_samples=6,
    step_samples=6,
    source="test",
)

Values = dict[str, float | str | None]


def served_evidence(
    name: str, value: float, *, note: str = "", samples: int | None = 200, window: Window = WINDOW
) -> Evidence:
    """One reading of the window."""
    return Evidence(
        id=f"served/{name}",
        name=name,
        value=value,
        unit="",
        source="test",
        window=window,
        samples=samples,
        note=note,
    )


def served(values: Values, *, note: str = "", window: Window = WINDOW) -> Readings:
    """Readings by name; text makes one unknown with that reason, None leaves it out."""
    items: list[Reading] = []
    for name, value in values.items():
        if isinstance(value, str):
            items.append(Unknown(str(name), value))
        elif value is not None:
            items.append(served_evidence(str(name), float(value), note=note, window=window))
    return Readings(tuple(items))


def advised(
    values: Values, facts: ServedFacts | None = None, *, at_s: float | None = None
) -> ServedAdvice:
    """The advice on such readings; without facts nothing is known beside them."""
    return advise_served(served(values), facts or ServedFacts(), at_s=at_s)


def judged(subject: Subject, facts: ServedFacts, values: Values | None = None) -> Judgement | None:
    """What is judged of a subject."""
    return advised(values or {}, facts).judgement(subject)


def answer_of(
    subject: Subject, facts: ServedFacts, values: Values | None = None
) -> Answer | str | None:
    """The answer on a subject: "silent" if nothing raised it, None if it cannot be told."""
    found = judged(subject, facts, values)
    return "silent" if found is None else found.answer
