"""lm-eval's logged samples: outcomes by document and filter, and lines that are none named."""

import json

import pytest

from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome
from trimtab.quality.evals import EvalError
from trimtab.quality.harness import read_samples


def sample(doc: int, value: object = 1.0, **more: object) -> bytes:
    fields = {"doc_id": doc, "metrics": ["exact_match"], "exact_match": value, "resps": [["x"]]}
    return json.dumps({**fields, **more}).encode()


def read(*lines: bytes) -> tuple[EvalOutcome, ...]:
    return read_samples(lines, task="gsm8k", name="samples")


def test_documents_come_in_order_and_filters_are_kinds() -> None:
    """Two filters judge one answer twice: they are two kinds, each paired by document."""
    found = read(
        sample(2, 0.0, filter="strict-match"),
        sample(1, filter="strict-match"),
        sample(1, 0.0, filter="flexible-extract"),
    )
    assert found == (
        EvalOutcome("gsm8k flexible-extract/1", "gsm8k flexible-extract", EvalAnswer((False,))),
        EvalOutcome("gsm8k strict-match/1", "gsm8k strict-match", EvalAnswer((True,))),
        EvalOutcome("gsm8k strict-match/2", "gsm8k strict-match", EvalAnswer((False,))),
    )


def test_metric_that_is_a_grade_is_passed_over() -> None:
    """The first that is right or wrong counts."""
    [found] = read(sample(0, metrics=["bleu", "acc"], bleu=0.31, acc=1))
    assert found == EvalOutcome("gsm8k/0", "gsm8k", EvalAnswer((True,)))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([b"{"], "line 1 is no sample of lm-eval"),
        ([sample(0), sample(1, metrics=["bleu"], bleu=0.3)], "line 2: none of its metrics"),
        ([sample(0), sample(0)], "line 2: the document 0 comes twice"),
        ([], "has no samples"),
    ],
)
def test_samples_that_cannot_be_paired_are_refused(lines: list[bytes], said: str) -> None:
    """With the line."""
    with pytest.raises(EvalError, match=said):
        read(*lines)
