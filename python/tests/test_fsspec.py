"""File systems in pools, by fsspec."""

import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

import longhaul
import longhaul.fsspec
from conftest import run


def test_the_protocol_is_found_by_its_name():
    assert fsspec.get_filesystem_class("longhaul") is longhaul.fsspec.LonghaulFileSystem


def test_names(fs):
    files, top = fs.fs, fs.top
    files.mkdir(f"{top}/a/b")
    with pytest.raises(FileExistsError):
        files.mkdir(f"{top}/a/b")
    with pytest.raises(FileExistsError):
        files.makedirs(f"{top}/a/b")
    files.makedirs(f"{top}/a/b", exist_ok=True)
    files.pipe_file(f"{top}/a/one", b"1")
    files.pipe_file(f"{top}/made/by/itself/two", b"22")
    assert files.ls(top, detail=False) == [f"{top}/a", f"{top}/made"]
    assert sorted(files.find(top)) == [f"{top}/a/one", f"{top}/made/by/itself/two"]
    assert files.glob(f"{top}/**/two") == [f"{top}/made/by/itself/two"]
    (entry,) = files.ls(f"{top}/a/one")
    assert (entry["name"], entry["size"], entry["type"]) == (f"{top}/a/one", 1, "file")
    assert (
        files.info(f"{top}/a")["type"] == "directory" and files.isdir("pool") and files.isdir(fs.files.name)
    )
    assert not files.exists(f"{top}/none")
    assert abs(files.modified(f"{top}/a/one").timestamp() - os.stat(__file__).st_atime) < 1e9
    files.mv(f"{top}/a/one", f"{top}/a/b/uno")
    files.mv(f"{top}/a/b", f"{top}/made")
    assert files.cat(f"{top}/made/b/uno") == b"1"
    files.cp(f"{top}/made", f"{top}/copy", recursive=True)
    assert files.cat(f"{top}/copy/b/uno") == b"1"
    with pytest.raises(OSError):
        files.rmdir(f"{top}/made")
    files.rm(f"{top}/made", recursive=True)
    assert files.ls(top, detail=False) == [f"{top}/a", f"{top}/copy"]
    for call in (files.info, files.ls, files.cat, files.rm, files.rmdir, files.open):
        with pytest.raises(FileNotFoundError, match="none"):
            call(f"{top}/none")
    with pytest.raises(ValueError, match="longhaul://POOL/NAME/PATH"):
        files.cat("pool")


def test_content_and_ranges(fs):
    files, path = fs.fs, f"{fs.top}/file"
    data = os.urandom((5 << 20) + 77)
    files.pipe_file(path, memoryview(data))
    assert files.cat_file(path) == data
    ranges = [
        (None, None),
        (0, 1),
        (1 << 20, (1 << 20) + 5),
        (-50, None),
        (-50, -20),
        (100, -100),
        (9, 5),
        (1 << 40, None),
    ]
    for start, end in ranges:
        assert files.cat_file(path, start, end) == data[start:end], (start, end)
    starts, ends = [0, 777, 4 << 20], [10, 7_777, 9 << 20]
    assert files.cat_ranges([path] * 3, starts, ends) == [data[a:b] for a, b in zip(starts, ends)]
    many = {f"{fs.top}/many/{n}": os.urandom(1000 + n) for n in range(150)}
    files.pipe(many)
    assert files.cat(list(many)) == many
    with pytest.raises(FileExistsError):
        files.pipe_file(path, b"", mode="create")
    files.pipe_file(path, b"short")
    assert files.cat_file(path) == b"short"


def test_open_files(fs):
    files, path = fs.fs, f"{fs.top}/deep/file"
    data = os.urandom((40 << 20) + 5)
    with files.open(path, "wb") as file:
        for at in range(0, len(data), 3 << 20):
            file.write(data[at : at + (3 << 20)])
    assert files.size(path) == len(data)
    with files.open(path) as file:
        assert file.read(10) == data[:10]
        file.seek(20 << 20)
        assert file.read() == data[20 << 20 :]
        file.seek(-5, io.SEEK_END)
        assert file.read(100) == data[-5:]
    with files.open(path, "ab") as file:
        file.write(b"appended")
    assert files.cat_file(path, -8) == b"appended" and files.size(path) == len(data) + 8
    with files.open(path, "wb"):
        pass
    assert files.cat(path) == b""
    with pytest.raises(FileExistsError):
        with files.open(path, "xb") as file:
            file.write(b"x")
    with fsspec.open(f"{fs.url}/text", "w", **fs.options) as file:
        file.write("grüße\n" * 3)
    with files.open(f"{fs.top}/text", "rt") as file:
        assert file.readlines() == ["grüße\n"] * 3


def test_transactions(fs):
    files, path = fs.fs, f"{fs.top}/file"
    files.pipe_file(path, b"old")
    with files.transaction:
        with files.open(path, "wb") as file:
            file.write(b"new")
        assert files.cat(path) == b"old"
    assert files.cat(path) == b"new"
    with pytest.raises(RuntimeError):
        with files.transaction:
            with files.open(path, "wb") as file:
                file.write(b"never")
            raise RuntimeError
    assert files.cat(path) == b"new" and files.ls(fs.top, detail=False) == [path]


def test_files_of_this_machine_are_put_and_got(fs, tmp_path):
    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    (here / "below" / "big").write_bytes(os.urandom(34 << 20))
    (here / "small").write_bytes(b"small")
    fs.fs.put(str(here), f"{fs.top}/there", recursive=True)
    fs.fs.get(f"{fs.top}/there", str(tmp_path / "back"), recursive=True)
    for name in ("below/big", "small"):
        assert (tmp_path / "back" / name).read_bytes() == (here / name).read_bytes()


def test_threads(fs):
    def use(n):
        path = f"{fs.top}/{n % 7}/{n}"
        fs.fs.pipe_file(path, bytes([n]) * (1000 * n))
        return fs.fs.cat_file(path) == bytes([n]) * (1000 * n)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(use, range(100)))


def test_a_process_of_its_own_sees_what_was_written(fs):
    path = f"{fs.top}/file"
    fs.fs.pipe_file(path, b"seen by others")
    code = "import fsspec, sys; print(fsspec.filesystem('longhaul', hostnqn=sys.argv[2]).cat(sys.argv[1]).decode())"
    done = subprocess.run(
        [sys.executable, "-c", code, path, fs.files.host], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("seen by others\n", "")


def test_a_closed_file_system_is_mounted_again(fs):
    other = fsspec.filesystem("longhaul", memory=64 << 20, leases=True, **fs.options)
    other.pipe_file(f"{fs.top}/leased", b"kept")
    other.sync(fs.top)
    other.close()
    assert fs.fs.cat(f"{fs.top}/leased") == b"kept"
    assert other.cat(f"{fs.top}/leased") == b"kept"
    other.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "longhaul-fs"]


def test_what_cannot_be_mounted(fs):
    for path, words in (("nopool/x/y", "no pool nopool"), ("pool/nofs/y", "no file system called nofs")):
        with pytest.raises(longhaul.Error, match=words):
            fs.fs.cat(path)
    other = fsspec.filesystem("longhaul", hostnqn="nqn.2014-08.org.example:stranger")
    with pytest.raises(longhaul.Error):
        other.cat(f"{fs.top}/x")


def test_the_file_system_is_whole_after_that(files):
    run("fs", "check", files.name, "--hostnqn", files.host)
