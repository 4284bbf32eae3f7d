"""Which sizes of measured matrices are kept: those that a time can come from, and no others."""

import numpy

from trimtab.runtime.kernel_matrices import Size, kept_sizes

WIDTHS = [1 << place for place in range(7, 17)]
SIZES: list[Size] = [(n, k) for n in WIDTHS for k in WIDTHS]


def kept(asked: list[Size], *, short: frozenset[Size] = frozenset()) -> set[Size]:
    """The sizes that stay of a table in which each was swept to 8,192 tokens, those of `short` to 512."""
    rows = [
        (tokens, *size)
        for size in SIZES
        for tokens in (1, 64, 512, 8192)
        if tokens <= 512 or size not in short
    ]
    tokens, columns, depth = numpy.array(rows, dtype=numpy.int64).T
    stay = kept_sizes(tokens, columns, depth, asked)
    left = {row[1:] for row, each in zip(rows, stay, strict=True) if each}
    assert all(each == (row[1:] in left) for row, each in zip(rows, stay, strict=True))
    return left


def test_measured_size_stays_alone_with_its_whole_sweep() -> None:
    """Its time is that of its own sweep, so no other is needed."""
    assert kept([(1024, 4096)]) == {(1024, 4096)}


def test_size_that_nobody_measured_keeps_the_nearest() -> None:
    """The nearest four are among them; sizes that are many doublings away are not."""
    left = kept([(1500, 4096)])
    assert {(1024, 4096), (2048, 4096), (2048, 2048), (2048, 8192)} <= left
    assert len(left) < 20
    assert (128, 128) not in left


def test_each_reach_of_a_sweep_keeps_its_own_nearest() -> None:
    """Where sweeps near by end early, sizes farther away that go on are asked beyond that end."""
    short = frozenset(size for size in SIZES if size[0] in (1024, 2048))
    left = kept([(1500, 4096)], short=short)
    assert {(1024, 4096), (2048, 4096), (512, 4096), (4096, 4096)} <= left


def test_size_far_beyond_all_others_keeps_everything() -> None:
    """The package then looks for the largest that there are."""
    assert kept([(65_536 * 8, 4096)]) == set(SIZES)


def test_nothing_asked_keeps_nothing() -> None:
    """And an empty table has nothing to keep."""
    empty = numpy.zeros(0, dtype=numpy.int64)
    assert kept([]) == set()
    assert len(kept_sizes(empty, empty, empty, [(1, 1)])) == 0
