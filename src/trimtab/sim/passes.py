"""How llama.cpp cuts one step of several slots into passes over the model.

Law: where every slot has KV of its own, a pass takes the same number of tokens from each slot in it, and only slots
whose numbers follow each other. A step's batch holds the token of each decoding slot in order of slot, then the
prompts in order of slot. A pass begins with the first slot of the batch that has tokens left and takes in each later
one whose number is the next; it ends when one of them has none left, or at the most tokens of a pass. So a prompt
beside a decode takes at least two passes, one with a token of each and one with the rest, and streams of slots that
are not neighbours are decoded one after the other, reading the weights each time.

Source: `llama_batch_allocr::split_equal` (sequential) and `llama_kv_cache::init_batch` of llama.cpp, which does so
unless it was started with one KV for all (`kv_unified`).
"""

from collections.abc import Sequence


def passes_of(batch: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return the tokens of each pass of a batch, whose entries are (slot, tokens) in order and of different slots.

    `most`: tokens of a pass at most; at least one of each slot in it all the same.
    """
    left = [(slot, tokens) for slot, tokens in batch if tokens > 0]
    made = []
    while left:
        together: list[int] = []
        for at, (slot, _) in enumerate(left):
            if not together or slot == left[together[-1]][0] + 1:
                together.append(at)
        count = len(together)
        each = min(min(left[at][1] for at in together), max(1, most // count))
        made.append(each * count)
        for at in together:
            slot, tokens = left[at]
            left[at] = (slot, tokens - each)
        left = [entry for entry in left if entry[1] > 0]
    return made
