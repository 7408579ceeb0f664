"""Devices as files."""

import errno
import io
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import longhaul
from conftest import Target


@pytest.fixture
def device(uri):
    with longhaul.open(uri, "r+") as file:
        file.write_at(0, bytes(1 << 20))
        yield file


def test_a_device_is_a_raw_file(device):
    assert isinstance(device, io.RawIOBase)
    assert (device.size, device.seekable(), device.readable(), device.writable()) == (
        64 << 20,
        True,
        True,
        True,
    )
    assert device.block_size in (512, 4096)
    assert device.write(b"hello") == 5 and device.tell() == 5
    assert device.seek(-4, io.SEEK_CUR) == 1
    assert device.read(3) == b"ell"
    assert device.seek(-2, io.SEEK_END) == device.size - 2
    assert device.read() == b"\0\0" and device.read(1) == b"" and device.readall() == b""
    device.seek(0)
    buffer = bytearray(10)
    assert device.readinto(memoryview(buffer)[2:8]) == 6
    assert buffer == b"\0\0hello\0\0\0"
    device.seek(0)
    assert io.BufferedReader(device).peek(5)[:5] == b"hello"
    with pytest.raises(ValueError):
        device.seek(-1)
    with pytest.raises(io.UnsupportedOperation):
        device.truncate(0)
    with pytest.raises(OSError):
        device.fileno()
    assert "mode='rb+'" in repr(device)


def test_any_offset_and_length_is_read_and_written(device):
    random.seed(7)
    model = bytearray(1 << 20)
    for _ in range(60):
        offset = random.randrange(len(model))
        data = random.randbytes(random.choice((1, 3, 511, 512, 4096, 5000, 70_000)))[: len(model) - offset]
        assert device.write_at(offset, data) == len(data)
        model[offset : offset + len(data)] = data
        offset, length = random.randrange(len(model)), random.randrange(100_000)
        assert device.read_at(offset, length) == model[offset : offset + length].ljust(
            min(length, device.size - offset), b"\0"
        )
    ranges = [(random.randrange(len(model)), random.randrange(9_000)) for _ in range(200)]
    ranges += [(0, 0), (device.size, 5), (device.size - 5, 10), (1 << 62, 1)]
    found = device.read_many(ranges)
    for (offset, length), data in zip(ranges, found):
        if offset + length <= len(model):
            assert data == model[offset : offset + length]
    assert [len(data) for data in found[-4:]] == [0, 0, 5, 0]


def test_more_than_is_in_flight_at_once(device):
    data = os.urandom((40 << 20) + 333)
    device.write_at(1, memoryview(data))
    device.flush()
    assert device.read_at(1, len(data)) == data
    whole = device.read_many([(1 + at, 1 << 20) for at in range(0, len(data), 1 << 20)])
    assert b"".join(whole)[: len(data)] == data


def test_what_is_flushed_is_seen_by_others(uri):
    with longhaul.open(uri, "r+") as one, longhaul.open(uri) as other:
        one.write_at(12_345, b"seen")
        one.flush()
        assert other.read_at(12_345, 4) == b"seen"
        assert not other.writable()
        with pytest.raises(io.UnsupportedOperation):
            other.write_at(0, b"x")


def test_threads_write_to_parts_of_one_block(device):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: device.write_at(n * 16, bytes([n]) * 16), range(64)))
    assert device.read_at(0, 1024) == b"".join(bytes([n]) * 16 for n in range(64))


def test_the_lock_of_the_interpreter_is_released(tmp_path):
    # A device whose reads take a second: while one waits, this thread goes on.
    with longhaul.open("mem:1MiB,delay=1s") as slow:
        reads = threading.Thread(target=slow.read_at, args=(0, 512))
        reads.start()
        turns = 0
        while reads.is_alive() and turns < 1000:
            turns += 1
        assert turns == 1000
        reads.join()


def test_a_signal_interrupts_a_wait():
    with longhaul.open("mem:1MiB,delay=1h") as stuck:

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                stuck.read_at(0, 512)
        finally:
            signal.signal(signal.SIGALRM, before)


def test_closing_waits_for_what_is_under_way():
    file = longhaul.open("mem:1MiB,delay=300ms")
    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(file.read_at, 0, 4096)
        while not reads.running():
            time.sleep(0.001)
        time.sleep(0.05)
        file.close()
        assert reads.result() == bytes(4096)
    file.close()
    for call in (file.read, file.flush, file.tell, lambda: file.read_at(0, 1), lambda: file.size):
        with pytest.raises(ValueError):
            call()


def test_files_and_paths_are_devices(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(bytes(1 << 20))
    with longhaul.open(f"file:{path}", "r+b") as file:
        file.write_at(700, b"written")
    assert path.read_bytes()[700:707] == b"written"
    with longhaul.open(path) as file:
        assert (file.mode, file.read_at(700, 7)) == ("rb", b"written")


@pytest.mark.parametrize(
    "name, kind, number, words",
    [
        ("nvme+tcp://127.0.0.1:1/x", "unreachable", errno.EHOSTUNREACH, "nothing listens there"),
        ("nvme+ftp://x/y", "invalid", errno.EINVAL, "no transport 'ftp'"),
        ("mem:12q", "invalid", errno.EINVAL, "is not a unit"),
        ("array:nothing-of-that-name", "invalid", errno.EINVAL, "no array"),
        ("volume:none/x", "invalid", errno.EINVAL, "no pool none"),
        ("/nowhere/at-all", "failed", errno.EIO, "No such file"),
    ],
)
def test_errors_have_the_words_of_the_command_line(name, kind, number, words):
    with pytest.raises(longhaul.Error) as caught:
        longhaul.open(name)
    assert (caught.value.kind, caught.value.errno) == (kind, number)
    assert words in str(caught.value) and isinstance(caught.value, OSError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kind) == (str(caught.value), kind)


def test_what_a_device_refuses(target, device):
    with pytest.raises(longhaul.Error, match="past the end") as caught:
        device.write_at(device.size - 2, b"xyz")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(longhaul.Error) as caught:
        longhaul.open(target.uris[1], "r+")
    assert caught.value.errno == errno.EROFS
    for mode in ("w", "a", "rw", ""):
        with pytest.raises(ValueError):
            longhaul.open("mem:1MiB", mode)
    with pytest.raises((TypeError, OverflowError)):
        device.read_at(-1, 1)
    with pytest.raises(longhaul.Error, match="connect_timeout"):
        longhaul.open("mem:1MiB", connect_timeout=-1)


def test_a_lost_target_is_an_error_in_time():
    target = Target("--export", "a=mem:1MiB")
    with longhaul.open(target.uris[0], ctrl_loss_timeout=1, connect_timeout=1) as file:
        assert file.read_at(0, 1) == b"\0"
        target.end()
        with pytest.raises(longhaul.Error) as caught:
            file.read_at(0, 1)
        assert caught.value.kind == "unreachable"


def _use_after_fork(file, answer):
    try:
        file.read_at(0, 1)
    except longhaul.Error as e:
        answer.put(str(e))


def test_a_forked_process_is_told(device):
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_use_after_fork, args=(device, answer))
    child.start()
    assert "forked" in answer.get(timeout=30)
    child.join(timeout=30)
    assert child.exitcode == 0


def test_keys_are_read_when_a_device_is_opened(tmp_path):
    with pytest.raises(longhaul.Error, match="cannot read keys"):
        longhaul.open("nvme+tcp://127.0.0.1:1/x", keys=tmp_path / "none")
