"""What the host would run later: it cannot be changed from inside, and nothing is left where it is absent."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import InvalidInput, SandboxError
from tertulia.sandbox import launch
from tertulia.sandbox.placeholders import MARK
from tertulia.sandbox.policy import Policy, bounds
from tertulia.sandbox.protected import plan
from tertulia.sandbox.sandbox import Sandbox

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}
AUTHOR = "-c user.name=a -c user.email=a@b"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=GIT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout


@pytest.fixture
def repository(root: Path) -> Path:
    git(root, "init", "-q")
    (root / "a.txt").write_text("one\n")
    git(root, "add", "a.txt")
    git(root, *AUTHOR.split(), "commit", "-qm", "first")
    return root


@pytest.mark.parametrize(
    "command",
    [
        "git config core.fsmonitor 'touch pwned'",
        "echo '[core] fsmonitor = touch pwned' >> .git/config",
        "rm .git/config",
        "mv .git/config .git/other",
        "echo 'touch pwned' > .git/hooks/pre-commit",
        "rm -r .git/hooks",
        "mv .git/hooks h",
        "mv .git git",
        "rm -rf .git; mkdir .git",
        "echo ../evil > .git/commondir",
        "ln -sf /etc .git/hooks/x",
    ],
)
async def test_a_repository_cannot_be_made_to_run_something(run: Any, repository: Path, command: str) -> None:
    config, hooks = (
        (repository / ".git" / "config").read_text(),
        sorted(os.listdir(repository / ".git" / "hooks")),
    )
    await run(command)
    assert (repository / ".git" / "config").read_text() == config
    assert sorted(os.listdir(repository / ".git" / "hooks")) == hooks
    assert not (repository / ".git" / "commondir").exists()
    if "rm -rf" not in command:
        git(repository, "status")
    assert not (repository / "pwned").exists()


async def test_work_in_a_repository_goes_on(run: Any, repository: Path) -> None:
    commit = f"echo two > b.txt && git add . && git {AUTHOR} commit -qm second"
    ran = await run(f"git checkout -qb topic && {commit} && git status --short && git diff HEAD")
    assert (ran.status, ran.text) == (0, "")
    assert git(repository, "log", "--format=%s").split() == ["second", "first"]
    assert git(repository, "ls-files").split() == ["a.txt", "b.txt"]  # and no placeholder


async def test_hooks_that_are_absent_cannot_be_made(run: Any, repository: Path) -> None:
    for name in os.listdir(repository / ".git" / "hooks"):
        (repository / ".git" / "hooks" / name).unlink()
    (repository / ".git" / "hooks").rmdir()
    ran = await run("mkdir -p .git/hooks; echo x > .git/hooks/pre-commit")
    assert ran.status == 1
    assert not (repository / ".git" / "hooks").exists()


async def test_what_a_git_file_points_to_is_protected(run: Any, home: Path, repository: Path) -> None:
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    commands = (
        "echo gitdir: elsewhere > .git",
        f"echo x >> {repository}/.git/config",
        f"echo x > {repository}/.git/hooks/pre-commit",
        f"echo x > {repository}/.git/worktrees/tree/config.worktree",
        "mv .git git",
    )
    before = (tree / ".git").read_text(), (repository / ".git" / "config").read_text()
    for command in commands:
        await run(command, cwd=tree, roots=(str(tree), str(repository)))
        assert ((tree / ".git").read_text(), (repository / ".git" / "config").read_text()) == before
        assert not (repository / ".git" / "hooks" / "pre-commit").exists()
    git(tree, "status")


async def test_submodules_are_protected_like_their_repository(run: Any, repository: Path) -> None:
    module = repository / ".git" / "modules" / "lib" / "inner"
    git(repository, "init", "-q", "--bare", str(module))
    before = (module / "config").read_text()
    ran = await run("cd .git/modules/lib/inner; echo x >> config; echo x > hooks/y; echo x > z")
    assert (module / "config").read_text() == before
    assert not (module / "hooks" / "y").exists()
    assert (module / "z").exists(), ran.text


EVIL = (
    '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch {}; false"\n'
)


def looked_at(folder: Path) -> None:
    """What a person types, in a folder that may be none of git's."""
    subprocess.run(["git", "status"], cwd=folder, env=GIT, capture_output=True, timeout=20, check=False)


@pytest.mark.parametrize(
    "before", [[], ["refs"], ["refs", "objects"], ["refs", "objects", "HEAD"], ["repository"]]
)
@pytest.mark.parametrize("rest", ["true", "sleep 20"])
async def test_a_root_cannot_become_a_repository_itself(
    run: Any, sandboxed: Callable[..., Sandbox], root: Path, before: list[str], rest: str
) -> None:
    """Neither by commands, nor by file tools, nor by one after the other, and nothing that was there is in the way."""
    for name in before:
        if name == "repository":
            git(root, "init", "-q")
        else:
            (root / name).mkdir()
    config = EVIL.format(root / "pwned")
    for head in ("echo 'ref: refs/heads/main' > HEAD", "rm -f HEAD; ln -s refs/heads/main HEAD"):
        ran = await run(
            f"rm -rf .git/HEAD refs; rmdir HEAD; echo '{config}' > config; mkdir refs objects hooks; {head}; {rest}"
        )
        assert "a git repository" in (ran.stopped or "")
        assert not (root / "HEAD").is_file()
        looked_at(root)
        for name, text in {
            "config": config,
            "objects/x": "",
            "refs/x": "",
            "HEAD": "ref: refs/heads/main",
        }.items():
            with contextlib.suppress(SandboxError, InvalidInput):
                sandboxed().files.write(name, text.encode())
        looked_at(root)
    assert not (root / "pwned").exists()


@pytest.mark.parametrize("rest", ["true", "sleep 20"])
async def test_a_root_does_not_become_one_whose_rest_is_elsewhere(run: Any, root: Path, rest: str) -> None:
    """`commondir` names the folder in which git finds objects and refs."""
    config = EVIL.format(root / "pwned")
    for name, touch in (("sub", "true"), ("s", "touch -d @86399 commondir")):
        ran = await run(
            f"mkdir -p {name}/objects {name}/refs; echo '{config}' > {name}/config; "
            f"printf {name} > commondir; {touch}; echo 'ref: refs/heads/main' > HEAD; {rest}"
        )
        assert "a git repository" in (ran.stopped or "")
        looked_at(root)
        assert not (root / "HEAD").exists()
        (root / "commondir").unlink()
    assert not (root / "pwned").exists()


async def test_a_file_that_is_called_head_is_no_repository(run: Any, root: Path) -> None:
    """Not with the placeholder that stands beside it meanwhile either."""
    (root / "HEAD").write_text("something else\n")
    ran = await run("ls; sleep 0.2")
    assert (ran.status, ran.stopped) == (0, None)
    assert "commondir" in ran.text
    assert os.listdir(root) == ["HEAD"]


async def test_one_command_does_not_make_the_next_one_free_to(
    sandboxed: Callable[..., Sandbox], root: Path
) -> None:
    """The second starts while the root looks like a repository, which was none before both."""
    sandbox = sandboxed()
    sandbox.bounds()
    for name in ("objects", "refs"):
        (root / name).mkdir()
    (root / "HEAD").write_text("ref: refs/heads/main\n")
    async with asyncio.timeout(30):
        ended = await sandbox.start(["/bin/sleep", "20"]).wait()
    assert "a git repository" in (ended.stopped or "")
    assert not (root / "HEAD").exists()


async def test_a_repository_with_many_submodules(run: Any, repository: Path) -> None:
    for n in range(120):
        module = repository / ".git" / "modules" / "libraries" / f"module-{n}"
        for name in ("hooks", "objects", "refs"):
            (module / name).mkdir(parents=True)
        (module / "HEAD").write_text("ref: refs/heads/main\n")
        (module / "config").write_text("[core]\n")
    ran = await run("echo x > .git/modules/libraries/module-119/config")
    assert "Read-only" in ran.text
    assert not list((repository / ".git" / "modules").glob("**/commondir"))


async def test_too_many_protected_paths_are_told(
    run: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MOST", 60)
    with pytest.raises(SandboxError, match="too many protected"):
        await run("true")
    assert not (repository / ".git" / "commondir").exists()


async def test_a_bare_repository_is_protected_and_works(
    run: Any, root: Path, repository: Path, home: Path
) -> None:
    bare = home / "bare"
    git(home, "clone", "-q", "--bare", str(repository), str(bare))
    before = (bare / "config").read_text()
    ran = await run("git branch other && echo x >> config; echo x > hooks/post-update", cwd=bare)
    assert "Read-only" in ran.text
    assert (bare / "config").read_text() == before
    assert "other" in git(bare, "branch")


@pytest.mark.parametrize("name", ["commondir", "gitdir", "config.worktree"])
async def test_linked_worktrees_are_protected_in_their_repository(
    run: Any, sandboxed: Callable[..., Sandbox], repository: Path, name: str
) -> None:
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    own = repository / ".git" / "worktrees" / "tree"
    evil = repository / "evil"
    for folder in ("objects", "refs"):
        (evil / folder).mkdir(parents=True)
    (evil / "HEAD").write_text("ref: refs/heads/main\n")
    (evil / "config").write_text(EVIL.format(repository / "pwned"))
    before = {each: (own / each).read_text() for each in ("commondir", "gitdir")}
    there = f".git/worktrees/tree/{name}"
    await run(f"echo ../../../evil > {there}; mv .git/worktrees w; rm -rf .git/worktrees/tree/{name}")
    with pytest.raises(SandboxError, match="protected"):
        sandboxed().files.write(there, b"../../../evil\n")
    looked_at(tree)
    assert not (repository / "pwned").exists()
    assert {each: (own / each).read_text() for each in before} == before
    assert not (own / "config.worktree").exists()


async def test_work_in_a_linked_worktree_goes_on(run: Any, repository: Path) -> None:
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    commit = f"echo two > b.txt && git add . && git {AUTHOR} commit -qm second && git status --short"
    ran = await run(commit, cwd=tree, roots=(str(tree), str(repository)))
    assert (ran.status, ran.text) == (0, "")
    look = "git diff HEAD && git log --format=%s && git status --short"
    ran = await run(look, cwd=tree, read_only=(str(repository),))
    assert ran == (0, None, "second\nfirst\n")
    inner = repository / "inner"
    git(repository, "worktree", "add", "-q", str(inner))
    ran = await run(f"cd inner && {commit}", cwd=repository)
    assert (ran.status, ran.text) == (0, "")
    ran = await run("git worktree add -q more && git worktree list", cwd=repository)
    assert (ran.status, "more" in ran.text) == (0, True)


async def test_what_the_config_includes_is_protected_with_it(
    run: Any, sandboxed: Callable[..., Sandbox], repository: Path
) -> None:
    (repository / "git").mkdir()
    (repository / "git" / "shared").write_text("")
    git(repository, "config", "include.path", "../git/shared")
    git(repository, "config", "core.hooksPath", ".githooks")
    for path in ("git/shared", ".githooks/pre-commit"):
        with pytest.raises(SandboxError, match="protected"):
            sandboxed().files.write(path, b"x")
    ran = await run(
        "git status --short; echo x > git/shared; mv git g; mkdir -p .githooks; echo x > .githooks/pre-commit"
    )
    assert ran.text.startswith("?? git/\n")
    assert (repository / "git" / "shared").read_text() == ""
    assert not (repository / ".githooks").exists()


async def test_where_links_of_protected_folders_lead_is_protected(
    run: Any, sandboxed: Callable[..., Sandbox], repository: Path
) -> None:
    (repository / "scripts").mkdir()
    (repository / "scripts" / "check").write_text("as it was")
    (repository / ".git" / "hooks" / "pre-commit").symlink_to("../../scripts/check")
    (repository / ".vscode").mkdir()
    (repository / ".vscode" / "tasks.json").symlink_to("../absent/tasks.json")
    for path in (".git/hooks/pre-commit", "scripts/check", "absent/tasks.json", ".vscode/tasks.json"):
        with pytest.raises(SandboxError, match="protected"):
            sandboxed().files.write(path, b"x")
    ran = await run(
        "echo x > scripts/check; mv scripts s; mkdir -p absent; echo x > absent/tasks.json; touch scripts/mine"
    )
    assert (repository / "scripts" / "check").read_text() == "as it was"
    assert sorted(os.listdir(repository / "scripts")) == ["check", "mine"], ran.text
    assert not (repository / "absent").exists()


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        (".git", "repo.git", ".git/config"),
        (".git", "repo.git", "repo.git/hooks/pre-commit"),
        (".mcp.json", "conf/mcp.json", ".mcp.json"),
        (".mcp.json", "conf/mcp.json", "conf/mcp.json"),
        (".envrc", "conf/absent", ".envrc"),
        (".vscode", "conf", ".vscode/tasks.json"),
        (".bashrc", "dotfiles/bashrc", "~/.bashrc"),
        (".config", "dotfiles", ".config/git/config"),
    ],
)
def test_file_tools_do_not_write_behind_a_link(
    sandboxed: Callable[..., Sandbox],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    target: str,
    path: str,
) -> None:
    monkeypatch.setenv("HOME", str(root))
    for folder in ("repo.git/hooks", "conf", "dotfiles"):
        (root / folder).mkdir(parents=True)
    for name in ("repo.git/config", "repo.git/HEAD", "conf/mcp.json", "dotfiles/bashrc"):
        (root / name).write_text("as it was")
    (root / link).symlink_to(target)
    with pytest.raises(SandboxError, match="protected"):
        sandboxed().files.write(path, b"x")
    sandboxed(writable=(link, target)).files.write(path, b"x")


async def test_a_hidden_place_gets_no_other_name_with_its_folder(
    run: Any, sandboxed: Callable[..., Sandbox], root: Path
) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "key").write_text("the key")
    ran = await run("mv a c; cat */*/key; touch a/mine", denied=("a/b/key",))
    assert "the key" not in ran.text
    assert sorted(os.listdir(root / "a")) == ["b", "mine"]


ABSENT = (
    ".git/config",
    ".git/hooks/pre-commit",
    ".tertulia/config.toml",
    ".mcp.json",
    ".vscode/tasks.json",
    ".envrc",
)


@pytest.mark.parametrize("path", ABSENT)
async def test_absent_ones_cannot_be_made_and_leave_nothing(run: Any, root: Path, path: str) -> None:
    top = path.split("/")[0]
    ran = await run(
        f"mkdir -p $(dirname {path}); echo x > {path}; rm -f {path}; mv {top} y; echo $?; touch z"
    )
    assert ran.text.splitlines()[-1] == "1"
    assert os.listdir(root) == ["z"]


async def test_start_up_files_are_protected_where_home_is_the_root(run: Any, home: Path, root: Path) -> None:
    files = ".bashrc .bash_aliases .xsession .xinitrc .local/bin/ls .local/lib/python3/site-packages/usercustomize.py"
    files += " bin/ls .config/environment.d/x.conf"
    files += " .zshrc .config/fish/config.fish .config/git/config .gitconfig .ssh/authorized_keys"
    command = f"for f in {files}; do echo evil >> $f; done"
    command += "; mkdir -p .config/autostart/x .local/bin bin; mv .config c; cat .ssh/*"
    ran = await run(f"{command}; touch mine", cwd=home)
    assert (home / ".bashrc").read_text() == "# as it was\n"
    assert sorted(os.listdir(home)) == [".bashrc", ".config", ".ssh", "mine", "project"]
    assert os.listdir(home / ".config") == ["tertulia"]
    assert os.listdir(home / ".ssh") == ["id_ed25519"]
    assert "private" not in ran.text


async def test_a_denied_folder_that_is_absent_is_not_made(run: Any, home: Path, root: Path) -> None:
    await run("mkdir .aws; echo x > .aws/credentials; echo x > .netrc; true", cwd=home)
    assert sorted(os.listdir(home)) == [".bashrc", ".config", ".ssh", "project"]


async def test_a_link_in_its_place_is_refused_by_name(run: Any, root: Path, tmp_path: Path) -> None:
    (root / ".vscode").symlink_to(tmp_path)
    with pytest.raises(SandboxError, match=r"\.vscode is a symbolic link"):
        await run("true")
    ran = await run("true", writable=(".vscode",))
    assert ran.status == 0


async def test_a_policy_opens_what_it_names(run: Any, repository: Path) -> None:
    ran = await run("git config a.b c && echo x > .envrc", writable=(".git/config", ".envrc"))
    assert ran.status == 0, ran.text
    assert git(repository, "config", "a.b") == "c\n"
    assert (repository / ".envrc").read_text() == "x\n"
    ran = await run("echo x > .git/hooks/y", writable=(".git/config", ".envrc"))
    assert ran.status == 1


def test_commands_at_once_share_a_placeholder_and_the_last_takes_it_away(root: Path) -> None:
    made = bounds(Policy(), str(root))
    first, second = plan(made), plan(made)
    placed = sorted(os.listdir(root))
    assert placed == [".envrc", ".git", ".mcp.json", ".tertulia", ".vscode"]
    first.release()
    assert sorted(os.listdir(root)) == placed
    second.release()
    assert os.listdir(root) == []


def test_what_a_crash_left_goes_with_the_next_command(root: Path) -> None:
    for name in (".vscode", ".envrc"):
        (root / name).mkdir()
    for name in (".vscode", ".envrc"):
        os.utime(root / name, (MARK, MARK))
    made = plan(bounds(Policy(), str(root)))
    made.release()
    assert os.listdir(root) == []


def test_what_someone_has_put_there_meanwhile_stays(root: Path) -> None:
    made = plan(bounds(Policy(), str(root)))
    (root / ".envrc").rmdir()
    (root / ".envrc").write_text("export A=1\n")
    (root / ".vscode" / "settings.json").write_text("{}")
    os.rmdir(root / ".git")
    git(root, "init", "-q")
    made.release()
    assert sorted(os.listdir(root)) == [".envrc", ".git", ".vscode"]
    assert (root / ".vscode" / "settings.json").exists()


def test_an_empty_file_of_the_user_is_no_placeholder(root: Path) -> None:
    (root / ".envrc").touch()
    plan(bounds(Policy(), str(root))).release()
    assert os.listdir(root) == [".envrc"]


@pytest.mark.parametrize("name", [*ABSENT, "sub/.git/config", "sub/.git", ".git/HEAD", "HEAD", "sub/HEAD"])
def test_file_tools_are_held_to_the_same(sandboxed: Callable[..., Sandbox], root: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="protected"):
        sandboxed().files.write(name, b"x")
    assert os.listdir(root) == []
    sandboxed(writable=(name,)).files.write(name, b"x")
    assert (root / name).read_bytes() == b"x"
