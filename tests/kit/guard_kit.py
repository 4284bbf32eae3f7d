"""Keys of two tenants in memory, for whoever tests what stands before the fleet."""

from typing import Any

from trimtab.core.tenants import ApiKey, KeyBook, find_key, make_key, new_key

ALICE, BOB = (make_key(bytes([number]) * 36) for number in (1, 2))


class MemoryRing:
    """A ring of keys that no file holds."""

    def __init__(self, *owners: tuple[str, str]) -> None:
        book = KeyBook()
        for key, tenant in owners:
            book = book.with_key(new_key(key, tenant, at_s=0.0))
        self.keys = book.by_hash()
        self.has_file = bool(owners)

    def look(self, now_s: float) -> None:
        return

    def find(self, said: str, now_s: float) -> ApiKey | None:
        return find_key(self.keys, said)


def two_tenants() -> MemoryRing:
    """Return the keys of alice and bob."""
    return MemoryRing((ALICE, "alice"), (BOB, "bob"))


def bearer(key: str, **more: Any) -> dict[str, str]:
    """Return headers with a key; '_' stands for '-'."""
    said = {name.replace("_", "-"): value for name, value in more.items()}
    return {"authorization": f"Bearer {key}"} | said
