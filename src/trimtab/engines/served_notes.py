"""Notes about a page, gathered without repeating and without growing with the page."""

from trimtab.core.served import Note

NOTES_MAX = 48


class NoteBook:
    """At most `NOTES_MAX` different notes, in an order that does not depend on the order of the page."""

    def __init__(self) -> None:
        self._notes: set[tuple[str, str, str]] = set()

    def add(self, kind: str, text: str, metric: str = "") -> None:
        """Note something of a metric, or of the page where none is named."""
        # Ten times the maximum bounds the memory and leaves the choice of the kept ones to sorting.
        if len(self._notes) < 10 * NOTES_MAX:
            self._notes.add((kind, metric, text))

    def add_all(self, notes: tuple[Note, ...]) -> None:
        """Take over the notes of somebody else."""
        for note in notes:
            self.add(note.kind, note.text, note.metric)

    def notes(self) -> tuple[Note, ...]:
        """Return the notes, sorted; what is over the maximum is counted in one more."""
        kept = sorted(self._notes)
        notes = [Note(kind=kind, metric=metric, text=text) for kind, metric, text in kept]
        if len(notes) > NOTES_MAX:
            more = len(notes) - NOTES_MAX
            notes[NOTES_MAX:] = [Note(kind="limit", text=f"{more} more notes of this page")]
        return tuple(notes)
