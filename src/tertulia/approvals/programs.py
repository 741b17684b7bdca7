"""What is known of programs: which do nothing but what they are named for, and which start what they are given.

One that stands in neither table is unknown: rules may name it, grants remember its exact words.
"""

import re


def names(text: str) -> frozenset[str]:
    """The names that stand in a text."""
    return frozenset(text.split())


_ALONE: dict[str, tuple[str, ...]] = {"": ()}
_GIT = ("--output", "--ext-diff", "--textconv")

PLAIN: dict[str, dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        names("""
            basename cat cd cmp comm cut dirname du df echo expr false grep head id ls md5sum nl od paste
            printenv pwd readlink realpath sha1sum sha256sum stat tail tr true uname wc which whoami
        """),
        _ALONE,
    ),
    "date": {"": ("-s", "--set")},
    "diff": {"": ("--output",)},
    "git": {
        "blame": _GIT,
        "describe": (),
        "diff": _GIT,
        "log": _GIT,
        "ls-files": (),
        "rev-parse": (),
        "show": _GIT,
        "status": (),
    },
    "npm": {"ls": ()},
    "pip": {"freeze": (), "list": (), "show": ()},
    "rg": {"": ("--pre", "--hostname-bin", "--search-zip", "-z")},
}
"""Programs whose subcommands (`""`: it has none) start nothing else, with the options that make them do more."""

INTERPRETERS = names("""
    ash awk bash bun busybox csh dash deno elixir erl expect fish gawk ghci groovy iex ipython irb java
    jshell julia ksh lua luajit mawk mksh mongo mongosh mysql nawk node nodejs osascript perl php powershell
    psql pwsh pypy python r rbash rscript ruby scala sh sqlite swift tclsh tcsh toybox ts-node wish zsh
""")
"""These run programs that stand in their arguments, or that they are fed."""

STATE = names("""
    . alias bind builtin cd command complete declare disown enable eval exec export hash let local mapfile
    popd pushd read readarray readonly set shift shopt source trap typeset ulimit umask unalias unset
""")
"""Builtins after which the same words may mean something else."""

WRAPPERS = (
    INTERPRETERS
    | (STATE - {"cd"})
    | names("""
        at batch bwrap catchsegv chronic chroot chrt cmd coproc crontab dbus-run-session do doas emacs entr
        env fakeroot fd fdfind find firejail flock gdb i386 ionice ld.so linux32 linux64 lldb ltrace nice
        nohup npx nsenter numactl parallel perf pipx pkexec prlimit proot run-parts runuser screen script
        setarch setpriv setsid ssh start-stop-daemon stdbuf strace su sudo systemd-run taskset then time
        timeout tmux torsocks trace unbuffer unshare uvx valgrind vi vim watch x86_64 xargs xvfb-run
    """)
)
"""These start what stands in their arguments."""

_INLINE = re.compile(r"-([a-zA-Z]*[ceEpr]|-eval|-command|-exec|-print)?(=.*)?", re.DOTALL)
"""Options of interpreters that are followed by a program, and the `-` that stands for what they are fed."""

_VERSION = re.compile(r"[-.]?[0-9][0-9.]*$")


def base_name(word: str) -> str:
    """The name of a program without its folder and its case."""
    return word.rpartition("/")[2].casefold().removesuffix(".exe")


def wraps(word: str, known: frozenset[str] = WRAPPERS) -> bool:
    """Whether a program is one of these, in any version."""
    name = base_name(word)
    return name in known or _VERSION.sub("", name) in known


def command_path(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The program and its subcommand, when nothing else can come of these words; else None.

    An option before the subcommand (`git -c`), a program of another folder and an option that starts or writes
    something have no path.
    """
    subcommands = PLAIN.get(words[0])
    if subcommands is None:
        return None
    path = words[:1] if "" in subcommands else words[:2]
    risky = subcommands.get(path[1] if len(path) > 1 else "")
    if risky is None or any(_is(word, option) for word in words[len(path) :] for option in risky):
        return None
    return path


def is_fed(words: tuple[str, ...]) -> bool:
    """Whether an interpreter among the words is given a program in them, or on its input."""
    for n, word in enumerate(words):
        if wraps(word, INTERPRETERS):
            rest = words[n + 1 :]
            if all(each.startswith("-") for each in rest) or any(_INLINE.fullmatch(each) for each in rest):
                return True
    return False


def _is(word: str, option: str) -> bool:
    """Long options may be cut short, short ones may stand in a cluster or have their value behind them."""
    name = word.partition("=")[0]
    if option.startswith("--"):
        return len(name) > 2 and option.startswith(name)
    return word.startswith("-") and not word.startswith("--") and option[1] in word
