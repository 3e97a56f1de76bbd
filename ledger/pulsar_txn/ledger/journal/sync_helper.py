"""The sync helper: a process that does nothing but wait for the disk, so that the event loop never does.

Started as `python -S -E sync_helper.py FD`; FD is a Unix stream socket. Standard library only, nothing of ours is
imported: it must start in milliseconds and own its GIL. One byte comes in, one byte (an errno, 0: done) goes back:

    s   fdatasync the current file        d   fsync it (directories)        z   fill it with zeros to its size, then fsync

A capital letter says that a descriptor comes along (SCM_RIGHTS). It becomes the current file: the same open file
description as the writer's, so that the kernel reports a write-back error here, once. End of stream ends the process.
"""

import errno
import fcntl
import os
import socket
import sys

ZERO_FILL_STEP_BYTES = 1 << 20
FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""Of macOS, where fsync leaves what was written in the cache of the disk."""
NO_FULL_SYNC = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
"""Of file systems that do not know it."""


def sync_fully(fd: int) -> None:
    """Wait until everything of the file, or folder, is on the disk."""
    if FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, FULL_SYNC)
        except OSError as error:
            if error.errno not in NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(fd)


sync_data = getattr(os, "fdatasync", sync_fully)
"""As `sync_fully`, without times and the like where the system has a call for that."""


def zero_fill(fd: int) -> None:
    """Write zeros over the whole file, so that later writes change no metadata; then sync it."""
    size = os.fstat(fd).st_size
    zeros = bytes(min(ZERO_FILL_STEP_BYTES, size))
    at = 0
    while at < size:
        at += os.pwrite(fd, zeros[: size - at], at)
    sync_fully(fd)


ACTIONS = {b"s": sync_data, b"d": sync_fully, b"z": zero_fill}


def attempt(command: bytes, fd: int) -> int:
    """Carry out one command; the errno of what failed, or 0."""
    try:
        ACTIONS[command](fd)
    except OSError as error:
        return min(error.errno or errno.EIO, 255)
    return 0


def serve(channel: socket.socket) -> None:
    """Answer commands until the other end is gone."""
    current = -1
    while True:
        try:
            command, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            if not command:
                return
            if descriptors:
                if current >= 0:
                    os.close(current)
                current = descriptors[0]
            if command.isupper() and not descriptors:  # the kernel drops what this process has no number left for
                channel.sendall(bytes([errno.EMFILE]))
            else:
                channel.sendall(bytes([attempt(command.lower(), current)]))
        except ConnectionError:  # it is gone, and maybe with an answer that it has not read
            return


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
