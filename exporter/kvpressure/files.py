"""Reading small files that a user names, without being held up or filled by what is no such file."""

import errno
import os
import stat

LARGEST = 1024 * 1024
"""Bytes; a configuration, a token or a certificate is far smaller."""


def read(path: str, largest: int = LARGEST) -> bytes:
    """
    All of a small file.

    Args:
        path: the file.
        largest: bytes that are read at most.

    Raises:
        OSError: it cannot be read, is not a regular file (a pipe would hold us up for ever), or is larger than that.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as fault:
        raise OSError(errno.EINVAL, "the name cannot be that of a file") from fault
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "is not a regular file")
    with os.fdopen(handle, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"is larger than {largest // 1024} KiB")
    return content
