"""Exceptions."""


class Error(OSError):
    """Why a device or a copy failed: an ``OSError`` in the words of the command line.

    ``kind`` is its class, as the exit statuses of ``longhaul`` are: ``"failed"``
    (1), ``"invalid"`` (2), ``"incomplete"`` (3), ``"mismatch"`` (4),
    ``"unreachable"`` (5), ``"refused"`` (6), ``"timed-out"`` (7). ``errno`` is the
    nearest number of the system: ``EIO``, ``EINVAL``, ``EBADMSG``,
    ``EHOSTUNREACH``, ``EACCES``, ``ETIMEDOUT``; ``EROFS`` and ``ENOSPC`` for
    devices that cannot be written to or have no space below them.
    """

    kind: str

    def __init__(self, errno: int, message: str, kind: str = "failed") -> None:
        super().__init__(errno, message)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.strerror)
