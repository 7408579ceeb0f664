"""A device as a file."""

import io
import operator
import os
import threading
from typing import Any, Iterable, List, Optional, Tuple, Union

from . import _native
from ._connect import connect

Buffer = Union[bytes, bytearray, memoryview]


def _bytes(data: Any) -> bytes:
    """The bytes of any object with a buffer; a copy, unless they are ``bytes``."""
    return data if isinstance(data, bytes) else bytes(memoryview(data).cast("B"))


class File(io.RawIOBase):
    """A device as a raw binary file of a fixed size: see :func:`open`.

    ``read``, ``readinto``, ``write``, ``seek`` and ``tell`` use one position, as
    files do; ``read_at``, ``read_many`` and ``write_at`` do not touch it. Many
    threads may call these three at the same time, and their requests are in
    flight together; so are those of several files.

    Any offset and length is allowed. A write that covers a part of a block reads
    the block first, and no other write of this file is executed meanwhile: two
    threads may write to different parts of a block, but two processes, two hosts
    or two ``File`` objects may not. Whole blocks (``block_size``) are faster.
    """

    def __init__(self, native: "_native.Device", writable: bool) -> None:
        super().__init__()
        self._native = native
        self._writable = writable
        self._position = 0
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """The name that was opened."""
        return self._native.name

    @property
    def mode(self) -> str:
        """``"rb+"`` or ``"rb"``."""
        return "rb+" if self._writable else "rb"

    @property
    def size(self) -> int:
        """Bytes of the device, at this moment: a device may grow."""
        return self._native.size

    @property
    def block_size(self) -> int:
        """Bytes of a block: what is read or written at least."""
        return self._native.block_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads ``length`` bytes from ``offset``; fewer at the end of the device.

        Up to 16 MiB are in flight; :meth:`read_many` has no such bound.

        :raises longhaul.Error: the device cannot be read: ``kind`` is
            ``"unreachable"`` once a connection was lost for longer than
            ``ctrl_loss_timeout``, ``"mismatch"`` for wrong checksums.
        """
        self._check_open()
        return self._native.read_at(offset, length)

    def read_many(self, ranges: Iterable[Tuple[int, int]]) -> List[bytes]:
        """Reads all ``(offset, length)`` with their requests in flight at once.

        This is what fills a long link: it takes a round trip and the time of the
        bytes, where reads one after the other take a round trip each. The results
        are in the order of the ranges; those past the end of the device are
        shorter, or empty. It takes three times the memory of the results.

        :raises longhaul.Error: as for :meth:`read_at`; then nothing is returned.
        """
        self._check_open()
        return self._native.read_many([(operator.index(o), operator.index(n)) for o, n in ranges])

    def write_at(self, offset: int, data: Buffer) -> int:
        """Writes all of ``data`` at ``offset``, and returns its number of bytes.

        It is durable after :meth:`flush`. ``bytes`` are not copied by Python.

        :raises longhaul.Error: the range is past the end (``EINVAL``), the device
            is read-only (``EROFS``) or has no space below it (``ENOSPC``), or cannot
            be reached. A part may have been written.
        :raises io.UnsupportedOperation: the file was opened with mode ``"r"``.
        """
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("not writable: open it with mode 'r+'")
        data = _bytes(data)
        self._native.write_at(offset, data)
        return len(data)

    def flush(self) -> None:
        """Waits until everything that was written is durable, on the medium.

        :raises longhaul.Error: that is not so, or not known: a target may have lost
            with its power what it had acknowledged. Write it again then.
        """
        super().flush()
        if self._writable:
            self._native.flush()

    def close(self) -> None:
        """Flushes, and closes the device. Closing it again does nothing.

        :raises longhaul.Error: as for :meth:`flush`; it is closed all the same.
        """
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._native.close()

    def readable(self) -> bool:
        self._check_open()
        return True

    def writable(self) -> bool:
        self._check_open()
        return self._writable

    def seekable(self) -> bool:
        self._check_open()
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        with self._lock:
            if whence == io.SEEK_SET:
                position = offset
            elif whence == io.SEEK_CUR:
                position = self._position + offset
            elif whence == io.SEEK_END:
                position = self.size + offset
            else:
                raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
            if position < 0:
                raise ValueError(f"negative seek position {position}")
            self._position = position
            return position

    def read(self, size: Optional[int] = -1) -> bytes:
        """Reads ``size`` bytes from the position; all that follow it by default."""
        if size is None or size < 0:
            return self.readall()
        with self._lock:
            data = self.read_at(self._position, size)
            self._position += len(data)
            return data

    def readall(self) -> bytes:
        with self._lock:
            return self.read(max(0, self.size - self.tell()))

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Writes all of ``data`` at the position: see :meth:`write_at`."""
        with self._lock:
            written = self.write_at(self._position, data)
            self._position += written
            return written

    def truncate(self, size: Optional[int] = None) -> int:
        raise io.UnsupportedOperation("a device has a fixed size")

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a device has no file descriptor")

    def __repr__(self) -> str:
        return f"<longhaul.File name={self.name!r} mode={self.mode!r}>"

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def open(
    uri: str,
    mode: str = "r",
    *,
    keys: Optional[Union[str, "os.PathLike[str]"]] = None,
    hostnqn: Optional[str] = None,
    tls: bool = False,
    connect_timeout: Optional[float] = None,
    ctrl_loss_timeout: Optional[float] = None,
    congestion: Optional[str] = None,
) -> File:
    """Opens a device as a file.

    :param uri: what the command line takes for a device: ``nvme+tcp://HOST/SUBNQN``,
        ``array:NAME``, ``volume:POOL/NAME``, ``file:PATH``, ``block:PATH``,
        ``mem:SIZE``, or a path.
    :param mode: ``"r"`` to read, ``"r+"`` to read and write (``"rb"``, ``"rb+"`` and
        ``"r+b"`` are the same).
    :param keys: directory with this host's keys, for targets that ask for
        authentication (``longhaul key make``).
    :param hostnqn: NQN of this host; by default that of the command line.
    :param tls: use TLS 1.3; needs a build with the feature ``tls``.
    :param connect_timeout: seconds of each step of connection setup; 10 by default.
    :param ctrl_loss_timeout: seconds that I/O waits for a lost connection before it
        fails; 600 by default, ``float("inf")`` for ever.
    :param congestion: TCP congestion control, by the kernel's name.
    :raises longhaul.Error: it is not the name of a device (``kind`` is
        ``"invalid"``), cannot be reached (``"unreachable"``, ``"timed-out"``), or is
        refused (``"refused"``); for ``"r+"``, it is read-only (``EROFS``).
    :raises ValueError: the mode is another one.
    """
    plain = "".join(sorted(mode.replace("b", "", 1)))
    if plain not in ("r", "+r"):
        raise ValueError(f"invalid mode: {mode!r}; a device is opened with 'r' or 'r+'")
    options = connect(keys, hostnqn, tls, connect_timeout, ctrl_loss_timeout, congestion)
    native = _native.Device(os.fspath(uri), options)
    writable = plain == "+r"
    if writable and native.read_only:
        import errno

        from ._errors import Error

        native.close()
        raise Error(errno.EROFS, f"cannot open {uri} to write to it: the device is read-only")
    return File(native, writable)
