"""The filter as the kernel reads it, on machines that this one is not."""

import errno
import os
import struct
from types import SimpleNamespace

import pytest

from tertulia.sandbox import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def decide(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """What the kernel would do with a call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x06:
            return int(constant)
        else:
            holds = value == constant if operation == 0x15 else value >= constant
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_refused_and_what_is_not(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    program, own = seccomp.program(), ARCHITECTURES[machine]
    assert program is not None
    socket, ioctl, read = (41, 16, 0) if machine == "x86_64" else (198, 29, 63)
    assert decide(program, read, own) == ALLOW
    assert decide(program, read, own ^ 1) == KILL
    assert decide(program, read, 0x40000003) == KILL  # i386
    for family in range(50):
        expected = ALLOW if family in (2, 10, 16) else EPERM
        assert decide(program, socket, own, family, 1) == expected
    assert decide(program, socket, own, (1 << 32) | 2) == ALLOW  # the kernel looks at the low half alone
    for request, expected in ((0x5412, EPERM), (0x541C, EPERM), (0x5401, ALLOW), ((1 << 32) | 0x5412, EPERM)):
        assert decide(program, ioctl, own, 0, request) == expected
    for number in (425, 426, 427):
        assert decide(program, number, own) == ENOSYS
    column = 0 if machine == "x86_64" else 1
    for numbers in seccomp.DENIED.values():
        assert decide(program, numbers[column], own) == EPERM


def test_the_calls_of_x32_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    program = seccomp.program()
    assert program is not None
    for number in (0, 39, 512, 0x3FFFFFFF):
        assert decide(program, 0x40000000 | number, ARCHITECTURES["x86_64"]) == ENOSYS


def test_a_machine_whose_calls_are_not_known_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    assert seccomp.program() is None
