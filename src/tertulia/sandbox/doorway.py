"""Opens a listening socket inside of a network namespace, and hands it to the process that started this.

Run as a script of its own (`python -I -S doorway.py NAMESPACE CHANNEL PORT`), with the standard library only: a user
namespace is entered by a whole process, which must have one thread, and for good. The socket belongs to the namespace
wherever its descriptor goes; so nothing of ours has to run inside, and no socket of the host's has to be shown there.
"""

import ctypes
import fcntl
import os
import socket
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
WAITING = 64


def main(arguments: list[str]) -> None:
    namespace, channel, port = map(int, arguments)
    if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino:
        raise SystemExit("this is the host's own network")
    owner = fcntl.ioctl(namespace, NS_GET_USERNS)
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
        enter(owner, CLONE_NEWUSER)
    enter(namespace, CLONE_NEWNET)
    with socket.socket() as listening, socket.socket(fileno=channel) as parent:
        listening.bind(("127.0.0.1", port))
        listening.listen(WAITING)
        socket.send_fds(parent, [b"here"], [listening.fileno()])


def enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        raise OSError(ctypes.get_errno(), f"a namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1:])
