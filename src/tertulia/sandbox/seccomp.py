"""The system calls that a command may not make, as the small program that the kernel runs on each of them.

What it closes and nothing else here does: Unix sockets of the host (they are reached by path or by name, whatever the
network namespace), sockets to the hypervisor, the session's keyring, io_uring (which makes sockets behind a filter's
back), tracing, typing into the terminal, and the 32-bit calls that would go past these numbers.
"""

import errno
import os
import struct

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST, SECOND = (
    0,
    4,
    16,
    24,
)  # offsets into struct seccomp_data; the low halves of arguments
X32 = 0x40000000

FAMILIES = (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK
TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# Each with its number on x86_64 and on aarch64.
DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "open_by_handle_at": (304, 265),
}
ABSENT = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}  # programs then do without
SOCKET, IOCTL = (41, 198), (16, 29)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the tables above, and how the kernel names the architecture."""


def program() -> bytes | None:
    """The filter for this machine; None where the numbers of its calls are not known here."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return None
    column, architecture = machine
    code = [_load(ARCHITECTURE), _jump(EQUAL, architecture, 1, 0), _return(KILL), _load(NUMBER)]
    if column == 0:
        code += [_jump(AT_LEAST, X32, 0, 1), _return(FAIL | errno.ENOSYS)]
    for number in ABSENT.values():
        code += [_jump(EQUAL, number, 0, 1), _return(FAIL | errno.ENOSYS)]
    for numbers in DENIED.values():
        code += [_jump(EQUAL, numbers[column], 0, 1), _return(FAIL | errno.EPERM)]
    code += _only(SOCKET[column], FIRST, FAMILIES)
    code += _none_of(IOCTL[column], SECOND, TERMINAL)
    return b"".join([*code, _return(ALLOW)])


def _only(call: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """A call whose argument has to be one of these."""
    tests = [_jump(EQUAL, value, len(values) - n, 0) for n, value in enumerate(values)]
    body = [_load(argument), *tests, _return(FAIL | errno.EPERM), _return(ALLOW)]
    return [_jump(EQUAL, call, 0, len(body)), *body]


def _none_of(call: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """A call whose argument may be none of these."""
    tests = [_jump(EQUAL, value, len(values) - n, 0) for n, value in enumerate(values)]
    body = [_load(argument), *tests, _return(ALLOW), _return(FAIL | errno.EPERM)]
    return [_jump(EQUAL, call, 0, len(body)), *body]


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", LOAD, 0, 0, offset)


def _jump(test: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", test, if_true, if_false, value)


def _return(action: int) -> bytes:
    return struct.pack("=HBBI", RETURN, 0, 0, action)
