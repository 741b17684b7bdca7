"""What a command might try to get out, each tried for real."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.path.realpath(sys.executable)  # a virtual environment below /tmp is hidden in the sandbox
HARMLESS = "/proc/sys/kernel/printk_ratelimit"


@pytest.mark.parametrize(
    "command",
    [
        "mount -o remount,rw /",
        "mount -o remount,rw,bind / /",
        "mount -t tmpfs none /mnt",
        "umount /proc/sys",
        "umount -l /tmp",
        "unshare -U true",
        "unshare -m true",
        "chroot / true",
        "mknod disk b 254 0",
        "nsenter -t 1 -m true",
    ],
)
async def test_no_mount_namespace_or_device_is_made(run: Any, command: str) -> None:
    ran = await run(command)
    assert ran.status not in (0, 127), ran.text


@pytest.mark.parametrize(
    "place", ["/", "/etc", "/usr/bin", "/var/tmp", "/dev", "/proc", "/sys", str(Path.home())]
)
async def test_nothing_outside_of_the_roots_is_written(run: Any, place: str) -> None:
    ran = await run(f"touch {place}/tertulia-was-here")
    assert ran.status == 1
    assert "tertulia-was-here" not in os.listdir(place)


async def test_kernel_settings_and_cgroups_are_read_only(run: Any) -> None:
    ran = await run(f"v=$(cat {HARMLESS}); echo $v > {HARMLESS}")
    assert ran.status == 1
    assert "Read-only" in ran.text
    files = "/proc/sysrq-trigger /sys/power/state /sys/kernel/mm/ksm/run"
    ran = await run(f"for f in {files}; do (: >> $f) && echo open $f; done; true")
    assert "open" not in ran.text
    ran = await run("mkdir /sys/fs/cgroup/pids/x")
    assert ran.status == 1


@pytest.fixture
def unix_server(root: Path) -> Iterator[tuple[str, str, list[bytes]]]:
    """Servers of the host on a path that the command can see, and on an abstract name."""
    heard: list[bytes] = []
    path, name = str(root / "host.sock"), f"tertulia-test-{os.getpid()}"
    servers = []
    for address in (path, "\0" + name):
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        server.settimeout(0.2)
        servers.append(server)
    yield path, name, heard
    for server in servers:
        try:
            client, _ = server.accept()
        except TimeoutError:
            pass
        else:
            client.close()
            heard.append(b"connected")
        server.close()
    assert heard == []


@pytest.mark.parametrize("network", ["off", "on"])
async def test_unix_sockets_of_the_host_are_not_reached(run: Any, unix_server: Any, network: str) -> None:
    path, name, _ = unix_server
    code = f"""
import socket
for address in ({path!r}, "\\0{name}"):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("connected")
    except OSError as error:
        print(error.errno)
a, b = socket.socketpair()
a.send(b"pairs work")
print(b.recv(99))
"""
    ran = await run(PYTHON, "-c", code, network=network)
    assert ran.text.split("\n")[:3] == ["1", "1", "b'pairs work'"]


async def test_sockets_beside_the_internet_are_not_made(run: Any) -> None:
    code = """
import socket
for family in (1, 17, 38, 40, 44):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM)
        print("made", family)
    except OSError as error:
        print(error.errno)
"""
    ran = await run(PYTHON, "-c", code, network="on")
    assert ran.text.split() == ["1"] * 5


async def test_the_network_is_off_unless_it_is_on(run: Any) -> None:
    accepted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    async with server:
        ran = await run(PYTHON, "-c", code)
        assert ran.status == 1
        assert not accepted.is_set()
        ran = await run(PYTHON, "-c", code, network="on")
        assert ran.status == 0, ran.text
        async with asyncio.timeout(5):
            await accepted.wait()


async def test_what_a_command_leaves_running_ends_with_it(run: Any) -> None:
    mark = f"8{os.getpid()}.5"
    ran = await run(
        f"setsid sleep {mark} & (sleep {mark} &) ; nohup sleep {mark} >/dev/null 2>&1 & disown -a; echo done"
    )
    assert ran.text == "done\n"
    assert _running(mark) == []


async def test_the_processes_of_the_host_are_neither_seen_nor_traced(run: Any) -> None:
    ran = await run("ls /proc | grep -c '^[0-9]*$'")
    assert int(ran.text) < 10
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
intel, arm = (101, 310, 311, 425, 321, 250, 298), (117, 270, 271, 425, 280, 219, 241)
for call in intel if os.uname().machine == "x86_64" else arm:
    libc.syscall(call, 0, 0, 0, 0, 0, 0)
    print(ctypes.get_errno())
"""
    ran = await run(PYTHON, "-c", code)
    assert ran.text.split() == ["1", "1", "1", "38", "1", "1", "1"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only there are calls with other numbers")
async def test_calls_under_other_numbers_do_not_pass_the_filter(run: Any) -> None:
    x32 = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(0x40000000 + 39), ctypes.get_errno())  # getpid
"""
    ran = await run(PYTHON, "-c", x32)
    assert ran.text.split() == ["-1", "38"]
    i386 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, getpid; int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""
    ran = await run(PYTHON, "-c", i386)
    assert ran.status in (-31, 128 + 31), ran.text  # SIGSYS


async def test_nothing_is_typed_into_a_terminal(run: Any) -> None:
    """On a terminal of its own, where the kernel would allow it."""
    code = """
import fcntl, os, pty
pid, terminal = pty.fork()
if pid == 0:
    try:
        fcntl.ioctl(0, 0x5412, b"x")
        os.write(1, b"typed")
    except OSError as error:
        os.write(1, str(error.errno).encode())
    os._exit(0)
print(os.read(terminal, 99).decode())
"""
    ran = await run(PYTHON, "-c", code)
    assert ran.text.strip() == "1", ran.text


async def test_a_command_is_in_a_session_of_its_own_and_changes_nothing_in_proc(run: Any) -> None:
    ran = await run(PYTHON, "-c", "import os; print(os.getsid(0) > 0)")
    assert ran.text == "True\n"  # 0 is one outside of its namespace
    ran = await run("echo 1000 > /proc/self/oom_score_adj")
    assert ran.status == 1


async def test_secrets_of_the_environment_are_not_handed_down(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    monkeypatch.setenv("MY_SETTING", "sk-very-open")
    ran = await run("env; cat /proc/*/environ | tr '\\0' '\\n'; cat /proc/*/cmdline")
    assert "PATH=" in ran.text
    assert "sk-very" not in ran.text
    ran = await run("env", environment=("MY_SETTING",))
    assert "sk-very-open" in ran.text
    ran = await run("echo $MY_SETTING $OTHER", environment={"OTHER": "given", "MY_SETTING": "changed"})
    assert ran.text == "changed given\n"


async def test_keys_and_our_own_files_are_not_read(run: Any, home: Path) -> None:
    for path in (home / ".ssh" / "id_ed25519", home / ".config" / "tertulia" / "token", Path("/etc/shadow")):
        ran = await run(f"cat {path}")
        assert ran.status == 1, ran.text
        assert "the " not in ran.text
    ran = await run(f"ls -A {home}/.ssh; ln {home}/.ssh/id_ed25519 key; mv {home}/.ssh ssh; cat key ssh/*")
    assert "the private" not in ran.text


async def test_folders_can_be_denied_and_more_shown(run: Any, root: Path, tmp_path: Path) -> None:
    (root / "private").mkdir()
    (root / "private" / "diary").write_text("dear diary")
    (root / "secret.txt").write_text("dear diary")
    ran = await run("cat private/diary secret.txt; echo x > private/y", denied=("private", "secret.txt"))
    assert "dear" not in ran.text
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").write_text("numbers")
    ran = await run(f"cat {other}/data; echo x > {other}/data", read_only=(str(other),))
    assert ran.text.startswith("numbers")
    assert (other / "data").read_text() == "numbers"
    ran = await run(f"echo x > {other}/data", roots=(str(root), str(other)))
    assert (other / "data").read_text() == "x\n"


async def test_no_descriptor_of_ours_is_inherited(run: Any, root: Path) -> None:
    secret = root.parent / "open"
    secret.write_text("still open")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        ran = await run(PYTHON, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    assert json.loads(ran.text) == [0, 1, 2, 3]  # the last is the listing's own


def _running(mark: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in file.read_text():
                found.append(str(file))
        except OSError:
            continue
    return found
