"""File systems in pools for fsspec: ``longhaul://POOL/NAME/PATH``.

Everything that takes URLs of fsspec reads and writes them: pandas, xarray, zarr,
dask, pyarrow. The protocol is found by itself once the package is installed.
"""

import atexit
import asyncio
import os
import threading
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Optional, Tuple

from fsspec.asyn import AsyncFileSystem, _run_coros_in_chunks
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile

from . import _native
from ._connect import connect

__all__ = ["LonghaulFile", "LonghaulFileSystem"]

#: Bytes that are read or written at a time of a file that does not fit into one buffer: they fill 10 Gb/s at
#: 25 ms.
_PIECE = 32 << 20

#: The mounts of this process, which all instances share: a second mount would take memory and threads again.
_mounts: "weakref.WeakValueDictionary[Any, _native.Mount]" = weakref.WeakValueDictionary()
_mounting = threading.Lock()


@atexit.register
def _unmount() -> None:
    """Ends all sessions in order, so that other hosts need not wait until they run out."""
    for mount in list(_mounts.values()):
        mount.close()


def _mount(
    name: str, catalog: Optional[str], memory: int, leases: bool, options: Dict[str, Any]
) -> "_native.Mount":
    key = (os.getpid(), name, catalog, memory, leases, tuple(sorted(options.items())))
    with _mounting:
        mount = _mounts.get(key)
        if mount is None:
            mount = _mounts[key] = _native.Mount(name, catalog, memory, leases, options)
        return mount


class LonghaulFileSystem(AsyncFileSystem):
    """File systems in pools, as ``longhaul fs create`` makes them.

    A file system is mounted when the first path of it is used, for the whole
    process, and unmounted by :meth:`close` or when the process ends. Its pool has to
    be known on this host (``longhaul pool status``), or ``catalog`` be given. No
    FUSE, no root and no mount point are needed.

    Many calls at once are what fills a long link: ``cat``, ``cat_ranges``, ``pipe``,
    ``get`` and ``put`` of many paths run together, and each file is read and written
    in pieces of 1 MiB of which 64 are in flight.

    :param catalog: ``file:PATH`` or ``etcd:HOST:PORT…``; by default the one that this
        host knows the pool by.
    :param keys, hostnqn, tls, connect_timeout, congestion: as of ``longhaul.open``.
    :param memory: bytes for read-ahead and write-behind; 256 MiB by default.
    :param leases: closing a file does not wait until it is durable, as with ``mount
        --close lease``; :meth:`sync` waits.
    :param auto_mkdir: directories that are missing above a file that is written are
        made.
    :param threads: calls that wait at the same time, at most.

    Errors are ``FileNotFoundError`` and its like for paths, ``longhaul.Error`` for a
    file system that cannot be mounted, and ``OSError`` with ``EIO`` for content that
    cannot be reached.
    """

    protocol = "longhaul"
    root_marker = ""

    def __init__(
        self,
        catalog: Optional[str] = None,
        keys: Optional[str] = None,
        hostnqn: Optional[str] = None,
        tls: bool = False,
        connect_timeout: Optional[float] = None,
        congestion: Optional[str] = None,
        memory: int = 256 << 20,
        leases: bool = False,
        auto_mkdir: bool = True,
        threads: int = 64,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._catalog = catalog
        self._memory = memory
        self._leases = leases
        self._options = connect(keys, hostnqn, tls, connect_timeout, None, congestion)
        self._threads = threads
        self._pool: Optional[ThreadPoolExecutor] = None
        self._mounted: Dict[str, "_native.Mount"] = {}
        self.auto_mkdir = auto_mkdir

    # --- paths and mounts ---

    @staticmethod
    def _parts(path: str) -> Tuple[str, Optional[str]]:
        """``POOL/NAME`` and the path in it; no path for what is above a file system."""
        parts = path.strip("/").split("/", 2)
        if len(parts) < 2:
            return path.strip("/"), None
        return "/".join(parts[:2]), parts[2] if len(parts) > 2 else ""

    def _at(self, path: str) -> Tuple["_native.Mount", str]:
        name, inner = self._parts(self._strip_protocol(path))
        if inner is None:
            raise ValueError(f"'{path}' is in no file system: the form is longhaul://POOL/NAME/PATH")
        mount = self._mounted.get(name)
        if mount is None:
            mount = _mount(name, self._catalog, self._memory, self._leases, self._options)
            mount = self._mounted.setdefault(name, mount)
        return mount, inner

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls what waits on a thread of its own, so that many wait at the same time."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="longhaul")
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    def _making_parents(self, path: str, call: Callable[[], Any]) -> Any:
        """Calls what makes a file, again with the directories above it if these are missing."""
        try:
            return call()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        mount, inner = self._at(self._parent(path))
        mount.makedirs(inner)
        return call()

    def close(self) -> None:
        """Unmounts the file systems of this instance; files that are open keep theirs. They are mounted again
        when they are used."""
        mounted, self._mounted = self._mounted, {}
        for mount in mounted.values():
            mount.close()
            with _mounting:
                for key in [key for key, one in _mounts.items() if one is mount]:
                    del _mounts[key]

    def sync(self, path: str) -> None:
        """Waits until all that was made so far in the file system of ``path`` is durable.

        :raises OSError: that is not known (``EIO``).
        """
        self._at(path)[0].sync()

    # --- calls on names ---

    def _info_now(self, path: str) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        if self._parts(path)[1] is None:
            return {"name": path, "size": 0, "type": "directory"}
        mount, inner = self._at(path)
        return {"name": path, **mount.info(inner)}

    async def _info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        return await self._run(self._info_now, path)

    def _ls_now(self, path: str) -> List[Dict[str, Any]]:
        path = self._strip_protocol(path).rstrip("/")
        mount, inner = self._at(path)
        try:
            listed = mount.ls(inner)
        except NotADirectoryError:
            return [self._info_now(path)]
        return [{"name": f"{path}/{name}", **entry} for name, entry in listed]

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        entries = await self._run(self._ls_now, path)
        return entries if detail else [entry["name"] for entry in entries]

    def _mkdir_now(self, path: str, create_parents: bool) -> None:
        mount, inner = self._at(path)
        if create_parents and "/" in inner:
            mount.makedirs(inner.rpartition("/")[0])
        mount.mkdir(inner)

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        await self._run(self._mkdir_now, path, create_parents)

    def _makedirs_now(self, path: str, exist_ok: bool) -> None:
        mount, inner = self._at(path)
        if not exist_ok:
            return self._mkdir_now(path, True)
        mount.makedirs(inner)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._run(self._makedirs_now, path, exist_ok)

    def _remove_now(self, path: str) -> None:
        mount, inner = self._at(path)
        mount.remove(inner)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._run(self._remove_now, path)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self._remove_now(path)

    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        batch_size: Optional[int] = None,
        maxdepth: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        paths = await self._expand_path(path, recursive=recursive, maxdepth=maxdepth)
        # What is in a directory goes before it.
        levels: Dict[int, List[str]] = {}
        for one in paths:
            levels.setdefault(one.rstrip("/").count("/"), []).append(one)
        for level in sorted(levels, reverse=True):
            removals = [self._rm_file(one) for one in levels[level]]
            await _run_coros_in_chunks(removals, batch_size=batch_size or self.batch_size, nofiles=True)

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: Optional[int] = None, **kwargs: Any
    ) -> None:
        """Moves a file or directory: one rename within a file system, else a copy."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 == path2:
            return
        (mount, old), (other, new) = self._at(path1), self._at(path2)
        if mount is not other or maxdepth is not None:
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        if self.isdir(path2):
            new = f"{new}/{old.rpartition('/')[2]}"
        mount.rename(old, new)

    def created(self, path: str) -> datetime:
        """When the file or its attributes were changed last."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        """When the content was changed last."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    # --- calls on content ---

    def _cat_now(self, path: str, start: Optional[int], end: Optional[int]) -> bytes:
        mount, inner = self._at(path)
        return mount.read(inner, start, end)

    async def _cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any
    ) -> bytes:
        return await self._run(self._cat_now, path, start, end)

    def _pipe_now(self, path: str, value: Any, is_new: bool) -> None:
        mount, inner = self._at(path)
        data = value if isinstance(value, bytes) else bytes(memoryview(value).cast("B"))
        self._making_parents(path, lambda: mount.write(inner, data, is_new))

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        await self._run(self._pipe_now, path, value, mode == "create")

    def _copy_now(self, path1: str, path2: str) -> None:
        if self._info_now(path1)["type"] == "directory":
            return self._makedirs_now(path2, True)
        mount, inner = self._at(path1)
        source = mount.open(inner, "r")
        try:
            self._fill(path2, "w", lambda at: source.read_at(at, _PIECE))
        finally:
            source.close()

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        await self._run(self._copy_now, path1, path2)

    def _fill(self, path: str, mode: str, read: Callable[[int], bytes]) -> None:
        """Writes a file in pieces, until ``read`` of an offset has no more."""
        mount, inner = self._at(path)
        file = self._making_parents(path, lambda: mount.open(inner, mode))
        try:
            at = 0
            while True:
                data = read(at)
                if not data:
                    break
                file.write_at(at, data)
                at += len(data)
        finally:
            file.close()

    def _put_now(self, lpath: str, rpath: str, mode: str, callback: Any) -> None:
        if os.path.isdir(lpath):
            return self._makedirs_now(rpath, True)
        callback.set_size(os.path.getsize(lpath))
        with open(lpath, "rb") as local:

            def read(at: int) -> bytes:
                data = local.read(_PIECE)
                callback.relative_update(len(data))
                return data

            self._fill(rpath, "x" if mode == "create" else "w", read)

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        await self._run(self._put_now, lpath, rpath, mode, callback)

    def _get_now(self, rpath: str, lpath: str, callback: Any) -> None:
        if self._info_now(rpath)["type"] == "directory":
            return os.makedirs(lpath, exist_ok=True)
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        mount, inner = self._at(rpath)
        source = mount.open(inner, "r")
        callback.set_size(source.size)
        try:
            with open(lpath, "wb") as local:
                while True:
                    data = source.read_at(local.tell(), _PIECE)
                    if not data:
                        break
                    local.write(data)
                    callback.relative_update(len(data))
        finally:
            source.close()

    async def _get_file(
        self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        await self._run(self._get_now, rpath, lpath, callback)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> "LonghaulFile":
        return LonghaulFile(
            self,
            path,
            mode,
            block_size=block_size,
            autocommit=autocommit,
            cache_options=cache_options,
            **kwargs,
        )


class LonghaulFile(AbstractBufferedFile):
    """An open file: what ``LonghaulFileSystem.open`` returns. Modes ``rb``, ``wb``, ``xb`` and ``ab``.

    It is read in blocks of 16 MiB (``block_size``), and read ahead by the mount. What
    is written is durable when the file is closed (with ``leases``: after ``sync``).
    In a transaction it has a name of its own until the end.
    """

    DEFAULT_BLOCK_SIZE = 16 << 20

    def __init__(self, fs: LonghaulFileSystem, path: str, mode: str = "rb", **kwargs: Any) -> None:
        self._native: Optional["_native.MountFile"] = None
        self._mount, self._inner = fs._at(path)
        if mode == "rb":
            self._native = self._mount.open(self._inner, "r")
            kwargs["size"] = self._native.size
        super().__init__(fs, path, mode, **kwargs)
        directory, slash, name = path.rpartition("/")
        hidden = f"{directory}{slash}.{name}.{uuid.uuid4().hex[:12]}"
        #: What is written to: the file, or one that gets its name with the transaction.
        self._written = path if self.autocommit else hidden
        self._end = 0

    def _opened(self) -> "_native.MountFile":
        if self._native is None:
            raise ValueError("I/O operation on closed file")
        return self._native

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._opened().read_at(start, end - start)

    def _initiate_upload(self) -> None:
        mode, inner = self.mode[0], self.fs._at(self._written)[1]
        if mode == "a" and not self.autocommit:
            self.fs._copy_now(self.path, self._written)
        self._native = self.fs._making_parents(self._written, lambda: self._mount.open(inner, mode))
        self._end = self._native.size if mode == "a" else 0

    def _upload_chunk(self, final: bool = False) -> bool:
        data = self.buffer.getvalue()
        if data:
            self._opened().write_at(self._end, data)
            self._end += len(data)
        if final:
            self._opened().close()
        return True

    def commit(self) -> None:
        """Gives a file of a transaction its name."""
        if self._written != self.path:
            self._mount.rename(self.fs._at(self._written)[1], self._inner)

    def discard(self) -> None:
        """Drops a file of a transaction."""
        if self._written != self.path:
            self.fs._remove_now(self._written)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._native is not None:
                self._native.close()
