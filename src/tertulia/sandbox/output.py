"""What a command has printed, as text, bounded: the beginning and the end are kept."""

import codecs

LARGEST = 8 * 1024 * 1024
"""Characters kept; half of them from the beginning."""


class Output:
    def __init__(self, limit: int = LARGEST) -> None:
        self._half = limit // 2
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = ""
        self._tail: list[str] = []
        self._tail_size = 0
        self._dropped = 0
        self._taken = 0  # characters that `new` has given
        self._total = 0

    def add(self, data: bytes) -> str:
        """The text of these bytes; a character may wait for its rest."""
        text = self._decoder.decode(data)
        self._total += len(text)
        room = self._half - len(self._head)
        if room > 0:
            self._head += text[:room]
        if rest := text[max(room, 0) :]:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size - len(self._tail[0]) > self._half:
                gone = self._tail.pop(0)
                self._tail_size -= len(gone)
                self._dropped += len(gone)
        return text

    @property
    def text(self) -> str:
        gap = f"\n[… {self._dropped:,} characters were not kept …]\n" if self._dropped else ""
        return self._head + gap + "".join(self._tail)

    def new(self) -> str:
        """What came since this was called last."""
        fresh = self._total - self._taken
        self._taken = self._total
        return self.text[-fresh:] if fresh else ""
