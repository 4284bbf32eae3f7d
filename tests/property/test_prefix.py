"""The prefix index equals models written the long way round, and never outgrows its bound."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from index_kit import held_by

from trimtab.core.decision import columns_for
from trimtab.core.prefix import SLOT_SIMILARITY, BlockHasher, PrefixIndex

WORDS = st.lists(st.sampled_from("abc"), max_size=12).map(lambda words: "".join(words))
REPLICAS = st.sampled_from(("r0", "r1"))
COMING = st.sampled_from(("r0", "r1", "r2", "r3"))
HASHER = BlockHasher(b"key", 1)


def blocks_of(text: str) -> tuple[int, ...]:
    return HASHER.blocks(text.encode())


def common(a: str, b: str) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


class EngineSlot:
    """A slot as the engine keeps it: its text, whether it works, when it last ended."""

    def __init__(self) -> None:
        self.text = ""
        self.began: int | None = None
        self.ended = 0


class Engine:
    """llama.cpp's rule for slots, on whole texts."""

    def __init__(self, slots: int) -> None:
        self.slots = [EngineSlot() for _ in range(slots)]
        self.queue: list[str] = []

    def pick(self, text: str) -> EngineSlot | None:
        best, similarity_best = None, 0.0
        for slot in self.slots:
            similarity = common(slot.text, text) / len(text) if text else 0.0
            if slot.began is None and similarity > max(SLOT_SIMILARITY, similarity_best):
                best, similarity_best = slot, similarity
        if best is not None:
            return best
        oldest = None
        for slot in self.slots:
            if slot.began is None and (oldest is None or slot.ended <= oldest.ended):
                oldest = slot
        return oldest

    def start(self, text: str, now: int) -> None:
        slot = self.pick(text)
        if slot is None:
            self.queue.append(text)
        else:
            slot.text, slot.began = text, now

    def end(self, text: str, now: int) -> None:
        running = [slot for slot in self.slots if slot.began is not None and slot.text == text]
        if running:
            slot = min(running, key=lambda one: one.began or 0)
            slot.began, slot.ended = None, now
            if self.queue:
                self.start(self.queue.pop(0), now)
        elif text in self.queue:
            self.queue.remove(text)


class SlotsAgree(RuleBasedStateMachine):
    """The index with room to spare against the engine's own rule."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(10_000, 1)
        self.engines = {"r0": Engine(1), "r1": Engine(3)}
        self.index.set_slots("r0", 1)
        self.index.set_slots("r1", 3)
        self.now = 0

    @rule(replica=REPLICAS, text=WORDS)
    def dispatch(self, replica: str, text: str) -> None:
        self.now += 1
        self.index.record(replica, blocks_of(text))
        self.engines[replica].start(text, self.now)

    @rule(replica=REPLICAS, data=st.data())
    def finish(self, replica: str, data: st.DataObject) -> None:
        engine = self.engines[replica]
        running = [slot.text for slot in engine.slots if slot.began is not None]
        if running + engine.queue:
            text = data.draw(st.sampled_from(sorted(running + engine.queue)))
            self.now += 1
            self.index.finished(replica, blocks_of(text))
            engine.end(text, self.now)

    @rule(replica=REPLICAS)
    def restart(self, replica: str) -> None:
        self.index.forget(replica)
        self.engines[replica] = Engine(len(self.engines[replica].slots))

    @rule(text=WORDS)
    def promises_are_kept(self, text: str) -> None:
        size = len(text) + 1
        for held in held_by(self.index, blocks_of(text), size, size):
            slot = self.engines[held.replica].pick(text)
            if slot is not None:
                expected = common(slot.text, text)
                assert held.tokens == expected
                assert held.displaced == len(slot.text) - expected

    @invariant()
    def size_is_what_the_engines_hold(self) -> None:
        held = [slot.text for engine in self.engines.values() for slot in engine.slots]
        queued = [text for engine in self.engines.values() for text in engine.queue]
        assert self.index.stats().blocks == sum(map(len, held + queued))


class PagesAgree(RuleBasedStateMachine):
    """The paged kind against a list of prefixes in the order of their last use."""

    BLOCKS_MAX = 8

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.BLOCKS_MAX, 1)
        self.recent: list[tuple[str, str]] = []

    @rule(replica=COMING, text=WORDS)
    def serve(self, replica: str, text: str) -> None:
        self.index.record(replica, blocks_of(text))
        head = text[: self.BLOCKS_MAX]
        for length in range(len(head), 0, -1):
            block = (replica, head[:length])
            self.recent = [other for other in self.recent if other != block] + [block]
        self.recent = self.recent[-self.BLOCKS_MAX :]

    @rule(replica=COMING, text=WORDS)
    def finish(self, replica: str, text: str) -> None:
        self.index.finished(replica, blocks_of(text))
        held = [block for block in self.recent if block[0] == replica and text.startswith(block[1])]
        held.sort(key=lambda block: -len(block[1]))
        self.recent = [other for other in self.recent if other not in held] + held

    @rule(replica=COMING)
    def restart(self, replica: str) -> None:
        self.index.forget(replica)
        self.recent = [block for block in self.recent if block[0] != replica]

    @rule(replica=COMING)
    def leave(self, replica: str) -> None:
        self.index.leave(replica)
        self.recent = [block for block in self.recent if block[0] != replica]

    @rule(text=WORDS, order=st.permutations(("r0", "r1", "r2", "r3")))
    def answers_outlive_departures(self, text: str, order: list[str]) -> None:
        size = len(text) + 1
        given = self.index.held_columns(blocks_of(text), size, size)
        was = [given.by(name) for name in order]
        self.index.meet(order[:2])
        self.index.leave(order[2])
        self.recent = [block for block in self.recent if block[0] != order[2]]
        self.index.meet(order[:1] + order[3:])
        columns = columns_for(tuple(order))
        assert [given.by(name) for name in order] == was
        assert given.over(columns)[0].tolist() == was
        found = dict.fromkeys(range(len(order)), 0)
        for match in given.matches(columns, 1) or ():
            found |= dict.fromkeys(match.places(), match.tokens)
        assert list(found.values()) == was

    @rule(text=WORDS)
    def promises_are_kept(self, text: str) -> None:
        size = len(text) + 1
        for held in held_by(self.index, blocks_of(text), size, size):
            lengths = [
                length
                for length in range(len(text) + 1)
                if length == 0 or (held.replica, text[:length]) in self.recent
            ]
            assert held.tokens == max(lengths)

    @invariant()
    def bound_holds(self) -> None:
        assert self.index.stats().blocks == len(self.recent)


class MixedBound(RuleBasedStateMachine):
    """Slots and pages under one small bound."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(6, 1)
        self.index.set_slots("r0", 2)
        self.sent: list[tuple[str, str]] = []

    @rule(replica=REPLICAS, text=WORDS)
    def dispatch(self, replica: str, text: str) -> None:
        self.index.record(replica, blocks_of(text))
        self.sent.append((replica, text))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.sent:
            replica, text = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
            self.index.finished(replica, blocks_of(text))

    @invariant()
    def bound_holds(self) -> None:
        assert self.index.stats().blocks <= 6

    @rule(text=WORDS)
    def promises_are_in_range(self, text: str) -> None:
        for held in held_by(self.index, blocks_of(text), 100, 200):
            assert 0 <= held.tokens <= 99


TestSlotsAgree = SlotsAgree.TestCase
TestPagesAgree = PagesAgree.TestCase
TestMixedBound = MixedBound.TestCase
for case in (TestSlotsAgree, TestPagesAgree, TestMixedBound):
    case.settings = settings(deadline=None, stateful_step_count=40)


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 20))
def test_common_blocks_are_common_bytes(a: bytes, b: bytes, size: int) -> None:
    """Two prompts share as many leading hashes as they share leading full blocks."""
    hasher = BlockHasher(b"key", size)
    shared = sum(
        a[: start + size] == b[: start + size]
        for start in range(0, min(len(a), len(b)) - size + 1, size)
    )
    left, right = hasher.blocks(a), hasher.blocks(b)
    equal = sum(
        left[: place + 1] == right[: place + 1] for place in range(min(len(left), len(right)))
    )
    assert equal == shared
