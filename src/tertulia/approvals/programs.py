"""What is known of programs: which do nothing but what they are named for, and which start what they are given.

One that stands in neither table is unknown: rules may name it, grants remember its exact words.
"""

import re


def names(text: str) -> frozenset[str]:
    """The names that stand in a text."""
    return frozenset(text.split())


_ALONE: dict[str, tuple[str, ...]] = {"": ()}
_GIT = ("--output", "--ext-diff", "--textconv")

ONLY: dict[tuple[str, str], frozenset[str]] = {
    ("npm", "ls"): names("--all -a --depth --json --link --long -l --omit --parseable -p --global -g"),
    ("pip", "freeze"): names("--all --exclude --exclude-editable --local -l --user"),
    ("pip", "list"): names("--exclude --exclude-editable --format --local -l --not-required --user"),
    ("pip", "show"): names("--files -f"),
}
"""Where any option may set what else the program does: the options that a path may have."""

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
    . alias bind builtin cd command compgen complete declare disown enable eval exec export fc getopts hash let
    local mapfile popd pushd read readarray readonly set shift shopt source trap typeset ulimit umask unalias unset
""")
"""Builtins after which the same words may mean something else, or which run what they find in a word."""

WRAPPERS = (
    INTERPRETERS
    | (STATE - {"cd"})
    | names("""
        at batch bwrap catchsegv chronic chroot chrt cmd coproc crontab dbus-run-session dc do doas ed emacs entr ex
        env fakeroot fd fdfind find firejail flock gdb i386 ionice ld.so linux32 linux64 lldb ltrace m4 nice
        nohup npx nsenter numactl parallel perf pipx pkexec prlimit proot run-parts runuser screen script
        setarch setpriv setsid ssh start-stop-daemon stdbuf strace su sudo systemd-run taskset then time
        timeout tmux torsocks trace unbuffer unshare uvx valgrind vi vim watch x86_64 xargs xvfb-run
    """)
)
"""These start what stands in their arguments."""

EXTERNAL = WRAPPERS - STATE
"""Those of them that another program can start."""

_VERSION = re.compile(r"[-.]?[0-9][0-9.]*$")


def base_name(word: str) -> str:
    """The name of a program without its folder and its case."""
    return word.rpartition("/")[2].casefold().removesuffix(".exe")


def known_as(word: str, known: frozenset[str]) -> str:
    """The one of these that a program is, in any version; else ''."""
    name = base_name(word)
    return next((each for each in (name, _VERSION.sub("", name)) if each in known), "")


def wraps(word: str) -> bool:
    return bool(known_as(word, WRAPPERS))


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
    rest = words[len(path) :]
    if risky is None or any(is_option(word, option) for word in rest for option in risky):
        return None
    only = ONLY.get((path[0], path[-1]))
    others = (word for word in rest if word.startswith("-") and word.partition("=")[0] not in (only or ()))
    return path if only is None or not any(others) else None


def is_option(word: str, option: str) -> bool:
    """Long options may be cut short, short ones may stand in a cluster or have their value behind them."""
    name = word.partition("=")[0]
    if option.startswith("--"):
        return len(name) > 2 and option.startswith(name)
    return word.startswith("-") and not word.startswith("--") and option[1] in word
