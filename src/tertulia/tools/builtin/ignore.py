"""What .gitignore files name, each for the folder that it is in and those below."""

import functools
import os

from pathspec import GitIgnoreSpec

from ...sandbox.files import Files
from ...sandbox.walk import read_in

NAME = ".gitignore"
LARGEST = 256 * 1024
NEVER = (".git", ".hg", ".svn", "__pycache__", "node_modules")


class Ignore:
    """For one walk. A folder's own file is read when the walk first asks about something in it."""

    def __init__(self, files: Files, path: str) -> None:
        self._specs: dict[str, GitIgnoreSpec | None] = {}
        place = files.locate(path)
        folder = place.real
        while folder != place.root:
            folder = os.path.dirname(folder)
            with files.folder(folder) as descriptor:
                self._read(descriptor, folder)

    def keep(self, folder: int, real: str, entry: "os.DirEntry[str]") -> bool:
        if entry.name in NEVER:
            return False
        above = os.path.dirname(real)
        if above not in self._specs:
            self._read(folder, above)
        is_folder = entry.is_dir(follow_symlinks=False)
        while above in self._specs:
            spec = self._specs[above]
            if spec is not None:
                said = spec.check_file(os.path.relpath(real, above) + ("/" if is_folder else "")).include
                if said is not None:
                    return not said
            above = os.path.dirname(above)
        return True

    def _read(self, folder: int, real: str) -> None:
        data = read_in(folder, NAME, LARGEST)
        self._specs[real] = _spec(data.decode("utf-8", "replace")) if data else None


@functools.lru_cache(64)
def _spec(text: str) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(line for line in text.splitlines() if "\0" not in line)
