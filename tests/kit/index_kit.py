"""What a prefix index says of every replica that it has a number for, one by one."""

from trimtab.core.decision import Held
from trimtab.core.prefix import Blocks, PrefixIndex


def held_by(
    index: PrefixIndex, blocks: Blocks, prompt_tokens: int, prompt_bytes: int | None = None
) -> tuple[Held, ...]:
    """Return what each would reuse and overwrite, in order of id; a byte is a token unless `prompt_bytes` is given."""
    columns = index.held_columns(blocks, prompt_tokens, prompt_bytes or prompt_tokens)
    return tuple(
        Held(replica=name, tokens=columns.by(name), displaced=columns.displaced_by(name))
        for name in sorted(index._numbers)
    )
