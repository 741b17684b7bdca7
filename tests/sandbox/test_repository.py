"""Where git's configuration leads to, and what says where submodules have their repository."""

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import SandboxError
from tertulia.sandbox.repository import of_root
from tertulia.sandbox.sandbox import Sandbox

PATH = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
AUTHOR = "-c user.name=a -c user.email=a@b -c protocol.file.allow=always"
HOOK = ".githooks/pre-commit"


def sh(folder: Path, command: str) -> str:
    """As a person would, with their own configuration of git."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**PATH, "HOME": os.environ["HOME"]}, capture_output=True,
        text=True, timeout=20, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def repository(root: Path) -> Path:
    sh(root, f"git init -q; git {AUTHOR} commit -q --allow-empty -m first")
    return root


NAMED = {
    "a comment behind it": "printf '[core]\\n\\thooksPath = .githooks ; ours\\n' >> .git/config",
    "the other comment": "printf '[core]\\n\\thooksPath = .githooks#ours\\n' >> .git/config",
    "an included file": "git config include.path ../.shared; git config -f .shared core.hooksPath .githooks",
    "one more": "git config include.path ../.a; mkdir b; git config -f .a include.path b/c; "
    "git config -f b/c core.hooksPath .githooks",
    "a work tree's": "git config extensions.worktreeConfig true; git config --worktree core.hooksPath .githooks",
    "two lines": "printf '[core]\\n\\thooksPath = .git\\\\\\nhooks\\n' >> .git/config",
    "a line that begins late": "printf '[core]\\n\\thooksPath = \\\\\\n  .githooks\\n' >> .git/config",
    "a quoted piece": "printf '[core]\\n\\thooksPath = .git\"hooks\"\\n' >> .git/config",
    "the user's": "git config --global core.hooksPath .githooks",
    "the user's other one": "mkdir -p ~/.config/git; git config -f ~/.config/git/config core.hooksPath .githooks",
    "a condition": "git config -f ~/x core.hooksPath .githooks; "
    "printf '[includeIf \"gitdir:a]b\"] path = ~/x\\n' >> .git/config",
    "other ends of lines": "printf '\\357\\273\\277[core]\\r\\n\\thooksPath = .githooks\\r\\n' > .git/config",
}


@pytest.mark.parametrize("command", NAMED.values(), ids=NAMED)
async def test_hooks_are_protected_however_their_folder_is_named(
    run: Any, sandboxed: Callable[..., Sandbox], repository: Path, command: str
) -> None:
    (repository / ".githooks").mkdir()
    (repository / HOOK).write_text("as it was")
    sh(repository, command)
    with pytest.raises(SandboxError, match="protected"):
        sandboxed().files.write(HOOK, b"x")
    ran = await run(f"echo x > {HOOK}; mv .githooks other; git status --short")
    assert (repository / HOOK).read_text() == "as it was", ran.text


async def test_what_an_included_file_includes_is_protected(run: Any, repository: Path) -> None:
    sh(repository, "git config include.path ../.a; git config -f .a include.path b/c; mkdir b; touch b/c")
    ran = await run("echo x > b/c; mv b d; echo x > .a")
    assert ran.status != 0
    assert (repository / "b" / "c").read_text() == ""


async def test_hooks_of_the_repository_that_a_root_lies_in(run: Any, repository: Path) -> None:
    inner = repository / "inner"
    (inner / "hooks").mkdir(parents=True)
    sh(repository, "git config core.hooksPath inner/hooks")
    ran = await run("touch hooks/pre-commit; touch mine", cwd=inner)
    assert "Read-only" in ran.text
    assert sorted(os.listdir(inner)) == ["hooks", "mine"]
    assert os.listdir(inner / "hooks") == []


async def test_hooks_of_a_linked_worktree(run: Any, repository: Path) -> None:
    sh(
        repository,
        "git worktree add -q ../tree; git config core.hooksPath .githooks; mkdir ../tree/.githooks",
    )
    await run(f"touch {HOOK}", cwd=repository.parent / "tree")
    assert os.listdir(repository.parent / "tree" / ".githooks") == []


EVIL = r"""
cp -r .git/modules/lib build
printf '[core]\n\trepositoryformatversion=0\n\tbare=false\n\tworktree=../lib\n' > build/config
printf '\tfsmonitor="touch %s/pwned; false"\n' "$PWD" >> build/config
rm -f lib/.git; echo 'gitdir: ../build' > lib/.git; mv lib old; mkdir lib; echo 'gitdir: ../build' > lib/.git
"""


async def test_a_submodule_keeps_its_repository(run: Any, home: Path, repository: Path) -> None:
    sh(home, f"git init -q lib; git -C lib {AUTHOR} commit -q --allow-empty -m first")
    sh(repository, f"git {AUTHOR} submodule --quiet add {home}/lib lib; git {AUTHOR} commit -qm second")
    before = (repository / "lib" / ".git").read_text()
    await run(EVIL)
    sh(repository, "git status")
    assert not (repository / "pwned").exists()
    assert (repository / "lib" / ".git").read_text() == before
    ran = await run(
        f"cd lib && echo x > x && git add x && git {AUTHOR} commit -qm third && git status --short"
    )
    assert (ran.status, ran.text) == (0, "")


async def test_a_linked_worktree_in_the_root_keeps_its_repository(run: Any, repository: Path) -> None:
    sh(repository, "git worktree add -q inner")
    before = (repository / "inner" / ".git").read_text()
    await run("echo 'gitdir: ../evil' > inner/.git; mv inner outer")
    assert (repository / "inner" / ".git").read_text() == before


def test_no_bytes_of_a_config_are_too_much(repository: Path) -> None:
    pieces = (
        b"[core]\n", b"[include]", b"[includeIf \"a]b\"]", b"hooksPath", b"path", b"worktree", b" = ", b"\\\n", b"\\",
        b'"', b"#", b";", b"\0", b"\xff", b"~", b"~\xff/", b"\r\n", b"\n", b"config", b"..", b"/", b"a" * 5000,
    )  # fmt: skip
    draw = random.Random(7)
    for _ in range(300):
        data = b"".join(draw.choices(pieces, k=draw.randint(1, 30)))
        for name in ("config", "config.worktree", "commondir"):
            (repository / ".git" / name).write_bytes(data)
        found = list(of_root(str(repository)))
        assert str(repository / ".git" / "config") in found
        assert not any("\0" in path for path in found)


def test_configs_that_include_each_other_or_are_no_files(repository: Path) -> None:
    sh(repository, "mkfifo pipe; mkdir folder")
    with (repository / ".git" / "config").open("a") as config:
        config.write("[include]\npath = config\npath = ../folder\npath = ../pipe\n")
    assert str(repository / "pipe") in list(of_root(str(repository)))
