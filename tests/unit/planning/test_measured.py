"""Reading tables of measured layouts."""

import pytest

from trimtab.core.layout import PlanInputError
from trimtab.planning.measured import COLUMNS, read_measured

ROW = {
    "id": "r1_c256_tp8_ep8",
    "engine": "trtllm",
    "engine_version": "1.1",
    "model": "deepseek-ai/DeepSeek-R1",
    "system": "b200_sxm",
    "precision": "FP4",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "4",
    "gpus": "8",
    "tp": "1",
    "attention_dp": "8",
    "moe_tp": "1",
    "moe_ep": "8",
    "ttft_ms": "791.1",
    "tpot_ms": "23.9",
}


def table(**changes: str) -> list[str]:
    row = ROW | changes
    return [",".join(COLUMNS), ",".join(row[name] for name in COLUMNS)]


def test_clients_of_all_groups_are_read_from_the_id() -> None:
    """Where attention is data-parallel the column counts one group; the id names the clients of the whole server."""
    assert read_measured(table())[0].load.clients == 256.0


def test_without_a_count_in_the_id_the_groups_are_multiplied() -> None:
    """An id that names no clients leaves clients of one group times groups."""
    assert read_measured(table(id="run-7"))[0].load.clients == 32.0


def test_one_group_keeps_the_column() -> None:
    """With one attention group an id of several replicas does not count: the column is one server's."""
    row = read_measured(table(attention_dp="1", tp="8", concurrency="56"))[0]
    assert row.load.clients == 56.0


def test_dense_model_has_no_experts_to_spread() -> None:
    """Sizes of experts that do not cover the devices are a dense model's."""
    row = read_measured(table(attention_dp="1", tp="8", moe_tp="1", moe_ep="1"))[0]
    assert (row.load.layout.tp, row.load.layout.moe_tp, row.load.layout.moe_ep) == (8, 1, 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tpot_ms": "0"}, "tpot_ms"),
        ({"ttft_ms": "soon"}, "ttft_ms"),
        ({"isl": ""}, "isl"),
        ({"gpus": "7"}, "gpus"),
        ({"model": ""}, "model"),
        ({"osl": "-1"}, "osl"),
    ],
)
def test_bad_row_names_its_column(changes: dict[str, str], field: str) -> None:
    """A value that cannot be is refused with the column's name and the row's number."""
    with pytest.raises(PlanInputError, match=r"row 2") as caught:
        read_measured(table(**changes))
    assert caught.value.field == field


def test_missing_column_is_named() -> None:
    """A table without a needed column is refused with that column."""
    with pytest.raises(PlanInputError) as caught:
        read_measured(["id,engine", "a,b"])
    assert caught.value.field == "engine_version"


def test_empty_table_is_refused() -> None:
    """A header alone says nothing."""
    with pytest.raises(PlanInputError):
        read_measured([",".join(COLUMNS)])


def test_bad_rows_can_be_left_out_and_said() -> None:
    """Asked to, the reader keeps what can be and names each row that cannot."""
    refused: dict[str, str] = {}
    lines = [*table(), table(tpot_ms="0")[1]]
    assert len(read_measured(lines, refused)) == 1
    assert list(refused) == ["row 3"]
    assert "tpot_ms" in refused["row 3"]
