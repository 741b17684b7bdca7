"""What the sandbox lets through: folders, network, environment, limits. A value; nothing here touches a disk twice."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from ..records.errors import SandboxError

if TYPE_CHECKING:
    from .hosts import Hosts

MIB = 1024 * 1024

SECRET_PLACES = (
    "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.oci", "~/.terraform.d", "~/.password-store",
    "~/.config/gcloud", "~/.config/gh", "~/.config/hub", "~/.config/op", "~/.config/rclone", "~/.config/google-chrome",
    "~/.config/chromium", "~/.mozilla", "~/.local/share/keyrings", "~/.local/share/kwalletd", "~/.netrc", "~/.npmrc",
    "~/.pypirc", "~/.pgpass", "~/.my.cnf", "~/.git-credentials", "~/.config/git/credentials", "~/.vault-token",
    "~/.cargo/credentials", "~/.cargo/credentials.toml",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
)  # fmt: skip
"""Keys and tokens of a user and of the machine."""

PROTECTED = (".git", ".tertulia", ".mcp.json", ".vscode", ".envrc")
"""What starts programs on the host later, in each root. Of a repository only what its `.git` may run is meant."""

START_UP_FILES = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".inputrc", ".gitconfig", ".pam_environment", ".xprofile",
    ".xsessionrc", ".xsession", ".xinitrc",
)  # fmt: skip
START_UP_FOLDERS = (
    ".config/fish", ".config/git", ".config/autostart", ".config/systemd", ".config/environment.d", "bin", ".local/bin",
    ".local/lib",
)  # fmt: skip
"""Read by shells and by a login, first on the PATH, or imported by every Python; below the home folder."""

ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR",
    "VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "GOPATH", "GOROOT", "NVM_DIR", "CI",
)  # fmt: skip
"""The names that a command sees; LC_* besides. Secrets stand under other names, so they are never in it."""

Network = Literal["off", "on"] | tuple[str, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one command with all that it starts. `reserve`: what must stay free on the disk."""

    seconds: float = 600.0
    memory: int = 4096 * MIB
    processes: int = 512
    disk: int = 4096 * MIB
    reserve: int = 256 * MIB


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`roots` can be written; without any, the Session's cwd is the one. `read_only`: more that file tools may read.

    `denied` is hidden altogether, besides the keys and tokens that always are. `writable` opens a protected path
    (`".git"`, `".envrc"`), by name or in full. `network` may be a list of hosts, each with a port where it is not 80
    or 443. `environment` holds more names, or names with their values.
    """

    roots: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: Network = "off"
    environment: tuple[str, ...] | Mapping[str, str] = ()
    limits: Limits = Limits()


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """A Policy on this machine: every path absolute and real."""

    policy: Policy
    roots: tuple[str, ...]
    read_only: tuple[str, ...]
    denied: tuple[str, ...]
    home: str
    store: tuple[str, ...] = ()  # hidden where it is there; nothing may stand in its place
    hosts: "Hosts | None" = None  # those that commands reach, when it is not all or none

    def readable(self, real: str) -> str | None:
        """The folder that lets this path be read, the innermost."""
        return _innermost(real, (*self.roots, *self.read_only))

    def writing(self, real: str) -> str | None:
        found = self.readable(real)
        return found if found in self.roots else None

    def hidden(self, real: str) -> bool:
        return _innermost(real, (*self.denied, *self.store)) is not None


def bounds(policy: Policy, cwd: str, store: tuple[str, ...] = ()) -> Bounds:
    """What a policy means for a Session in this folder; SandboxError when it cannot be kept."""
    hosts = hosts_of(policy.network)
    roots = tuple(dict.fromkeys(_folder(path, cwd) for path in policy.roots or (cwd,)))
    denied = tuple(
        dict.fromkeys(_real(path, cwd) for path in (*SECRET_PLACES, *own_places(), *policy.denied))
    )
    made = Bounds(
        policy=policy,
        roots=roots,
        read_only=tuple(dict.fromkeys(_folder(path, cwd) for path in policy.read_only)),
        denied=denied,
        home=os.path.realpath(os.path.expanduser("~")),
        store=tuple(map(os.path.realpath, store)),
        hosts=hosts,
    )
    for root in roots:
        if root == "/":
            raise SandboxError("the whole machine cannot be a root", hint="sandbox='off' runs unconfined")
        if made.hidden(root):
            raise SandboxError(
                f"{root} lies in a folder that is never shown to tools", hint="choose another cwd"
            )
    return made


def hosts_of(network: Network) -> "Hosts | None":
    if network in ("off", "on"):
        return None
    given: object = network
    if not isinstance(given, list | tuple) or not given:
        raise SandboxError(f"network is {given!r}", hint="'off', 'on' or a list of hosts: ('example.org',)")
    from .hosts import Hosts

    return Hosts(given)


def own_places() -> tuple[str, ...]:
    """Where our own data and configuration stand."""
    given = os.environ.get("TERTULIA_HOME")
    variables = (
        ("XDG_CONFIG_HOME", "~/.config"), ("XDG_DATA_HOME", "~/.local/share"), ("XDG_STATE_HOME", "~/.local/state"),
        ("XDG_CACHE_HOME", "~/.cache"),
    )  # fmt: skip
    found = [os.path.join(os.environ.get(name) or default, "tertulia") for name, default in variables]
    return (*found, given) if given else tuple(found)


def environment(policy: Policy) -> dict[str, str]:
    """What a command sees of the environment."""
    extra = policy.environment
    names = {*ENVIRONMENT, *extra} | {name for name in os.environ if name.startswith("LC_")}
    found = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    found.setdefault("PATH", os.defpath)
    found["TMPDIR"] = "/tmp"
    if policy.network not in ("off", "on"):
        from .proxy import environment as of_proxy

        found |= of_proxy()
    return {**found, **extra} if isinstance(extra, Mapping) else found


def _folder(path: str, cwd: str) -> str:
    real = _real(path, cwd)
    if not os.path.isdir(real):
        raise SandboxError(f"{path} is no folder", hint="roots and read_only name folders that exist")
    return real


def _real(path: str, cwd: str) -> str:
    return os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))


def _innermost(real: str, folders: tuple[str, ...]) -> str | None:
    found = [folder for folder in folders if inside(real, folder)]
    return max(found, key=len) if found else None


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
