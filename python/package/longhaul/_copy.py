"""Copies of trees of files."""

import os
import shlex
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Union

from . import _native

Path = Union[str, bytes, "os.PathLike[str]"]


@dataclass(frozen=True)
class CopySummary:
    """What a copy has done."""

    #: Files that were written.
    files: int
    #: Directories and links that were made.
    others: int
    #: Bytes of content that were written.
    bytes: int
    #: Objects that were there already.
    same: int
    #: Duration, without the start of agents over ssh.
    seconds: float
    #: Whether it continued a copy that was interrupted.
    resumed: bool
    #: Data connections used; 0 for a local copy and one between two agents.
    connections: int


def cp(
    src: Union[Path, Sequence[Path]],
    dst: Path,
    *,
    recursive: bool = False,
    exclude: Iterable[str] = (),
    include: Iterable[str] = (),
    owner: bool = False,
    xattrs: bool = False,
    checksum: str = "xxh3",
    fsync: str = "end",
    verify_after: bool = False,
    rate_limit: Optional[int] = None,
    connections: Optional[int] = None,
    key_file: Optional[Path] = None,
    ssh: Union[str, List[str]] = "ssh",
    remote_program: str = "longhaul",
    congestion: Optional[str] = None,
    connect_timeout: float = 30.0,
    timeout: float = 60.0,
) -> CopySummary:
    """Copies files and directories, as ``longhaul cp`` does.

    A copy that was interrupted is resumed when the same call is made again;
    Ctrl-C interrupts it at once.

    :param src: one or several of: a path, ``HOST:PATH`` (over ssh, which starts an
        agent there), ``lh://HOST:PORT/PATH`` (at a running ``longhaul agent``), and
        the synthetic sources of the command line.
    :param dst: the same; ``null:`` verifies the data and drops it. An existing
        directory is copied into; otherwise it becomes the copy.
    :param recursive: copy directories.
    :param exclude, include: patterns of names, as of the command line.
    :param owner, xattrs: keep owner and group (as root), extended attributes.
    :param checksum: ``"xxh3"`` or ``"blake3"``, of all data sent.
    :param fsync: ``"none"``, ``"end"`` (all files before this returns) or ``"file"``.
    :param verify_after: read all files again after they are written.
    :param rate_limit: bits a second.
    :param connections: data connections; measured by default.
    :param key_file: file with the key of the agent, which encrypts.
    :param ssh, remote_program: the command of ssh, and that of Longhaul on HOST.
    :param congestion: TCP congestion control, by the kernel's name.
    :param connect_timeout: seconds for connecting.
    :param timeout: seconds that the other side may leave sent data unacknowledged.
    :raises longhaul.Error: the copy could not begin or ended early; or files could
        not be copied (``kind`` is ``"incomplete"``, or ``"mismatch"`` for wrong
        content), of which the message names the first five.
    """
    sources = [src] if isinstance(src, (str, bytes, os.PathLike)) else list(src)
    arguments = {
        "recursive": recursive,
        "exclude": list(exclude),
        "include": list(include),
        "owner": owner,
        "xattrs": xattrs,
        "checksum": checksum,
        "fsync": fsync,
        "verify_after": verify_after,
        "rate_limit": rate_limit,
        "connections": connections,
        "key_file": None if key_file is None else os.fsdecode(key_file),
        "ssh": shlex.split(ssh) if isinstance(ssh, str) else list(ssh),
        "remote_program": remote_program,
        "congestion": congestion,
        "connect_timeout": connect_timeout,
        "timeout": timeout,
    }
    done = _native.cp([os.fsdecode(path) for path in sources], os.fsdecode(dst), arguments)
    return CopySummary(**done)
