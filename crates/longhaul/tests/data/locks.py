"""Locks of two mounts of one file system, as programs of Linux use them: locks.py DIRECTORY DIRECTORY [sqlite].

Each check says what it finds wrong, and the program then ends with 1."""

import errno, fcntl, os, signal, struct, sys, time

here, there = sys.argv[1:3]
PATIENCE = 30


def path(directory, name):
    return os.path.join(directory, name)


def opened(directory, name):
    return os.open(path(directory, name), os.O_RDWR | os.O_CREAT, 0o644)


def refused(call):
    try:
        call()
    except OSError as e:
        assert e.errno in (errno.EWOULDBLOCK, errno.EACCES), e
        return True
    return False


def child(body):
    """A process that tells that it begins, does `body`, and tells its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            body(lambda text: os.write(write, text.encode() + b"\n"))
            os._exit(0)
        except BaseException as e:
            os.write(write, f"failed: {e!r}\n".encode())
            os._exit(1)
    os.close(write)
    return pid, os.fdopen(read, "rb", buffering=0)


def said(pipe, text):
    line = pipe.readline().decode().strip()
    assert line == text, f"{line!r} instead of {text!r}"


def ended(pid):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    raise AssertionError(f"process {pid} does not end")


def is_blocked(pid):
    """Waits until a process waits in the kernel for an answer of the file system."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with open(f"/proc/{pid}/syscall") as f:
            # flock or fcntl, of x86-64 and of others.
            if f.read().split()[0] in ("73", "72", "32", "25"):
                return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} does not wait")


def flocks():
    a, b = opened(here, "flock"), opened(there, "flock")
    fcntl.flock(a, fcntl.LOCK_EX)
    assert refused(lambda: fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)), "exclusive excludes"
    fcntl.flock(a, fcntl.LOCK_SH)
    fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert refused(lambda: fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)), "shared excludes an exclusive one"
    # A copy of the descriptor has the lock until the last one is closed.
    copy = os.dup(b)
    os.close(b)
    assert refused(lambda: fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)), "the copy has it"
    os.close(copy)
    fcntl.flock(a, fcntl.LOCK_EX)
    os.close(a)


def waits():
    for how, kind in (("unlock", None), ("close", None), ("INT", signal.SIGINT), ("KILL", signal.SIGKILL)):
        for posix in (False, True):
            lock = fcntl.lockf if posix else fcntl.flock
            a = opened(here, "waits")
            lock(a, fcntl.LOCK_EX)

            def body(tell):
                # A copy would keep the lock of flock(2).
                os.close(a)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                b = opened(there, "waits")
                tell("begins")
                try:
                    lock(b, fcntl.LOCK_EX)
                    tell("had")
                except KeyboardInterrupt:
                    tell("interrupted")

            pid, pipe = child(body)
            said(pipe, "begins")
            is_blocked(pid)
            if how == "unlock":
                lock(a, fcntl.LOCK_UN)
                said(pipe, "had")
            elif how == "close":
                os.close(a)
                said(pipe, "had")
                a = opened(here, "waits")
            else:
                os.kill(pid, kind)
                if kind == signal.SIGINT:
                    said(pipe, "interrupted")
            status = ended(pid)
            assert os.WTERMSIG(status) == (9 if how == "KILL" else 0), (how, status)
            # The file is free for the other mount once the first gives it up.
            lock(a, fcntl.LOCK_UN)
            b = opened(there, "waits")
            lock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(b)
            os.close(a)


def ranges():
    a, b = opened(here, "ranges"), opened(there, "ranges")
    fcntl.lockf(a, fcntl.LOCK_EX, 100, 0)
    fcntl.lockf(a, fcntl.LOCK_UN, 20, 40)
    fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 40)
    assert refused(lambda: fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 60))
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 50, 100, 0)
    kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(b, fcntl.F_GETLK, asked))
    assert (kind, start, length) == (fcntl.F_WRLCK, 60, 40), (kind, start, length)
    # Closing any descriptor of the file ends the process's locks of it.
    os.close(opened(here, "ranges"))
    fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
    os.close(a)
    os.close(b)


def counter(times=200):
    with open(path(here, "counter"), "w") as f:
        f.write("0")

    def count(directory):
        def body(tell):
            for _ in range(times):
                fd = os.open(path(directory, "counter"), os.O_RDWR)
                fcntl.flock(fd, fcntl.LOCK_EX)
                value = int(os.read(fd, 32))
                os.pwrite(fd, str(value + 1).encode(), 0)
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)
            tell("done")

        return child(body)

    begun = time.monotonic()
    children = [count(here), count(there)]
    for pid, pipe in children:
        said(pipe, "done")
        assert ended(pid) == 0
    print(f"{2 * times} increments in {time.monotonic() - begun:.1f} s")
    for directory in (here, there):
        with open(path(directory, "counter")) as f:
            value = f.read()
        assert value == str(2 * times), f"{directory}: {value}"


def database(times=30):
    import sqlite3

    def connect(directory):
        return sqlite3.connect(path(directory, "db"), timeout=PATIENCE, isolation_level=None)

    db = connect(here)
    db.execute("create table t (host text, n integer)")
    db.close()

    def insert(directory):
        def body(tell):
            db = connect(directory)
            for n in range(times):
                db.execute("begin immediate")
                (before,) = db.execute("select count(*) from t").fetchone()
                db.execute("insert into t values (?, ?)", (directory, before))
                db.execute("commit")
            db.close()
            tell("done")

        return child(body)

    children = [insert(here), insert(there)]
    for pid, pipe in children:
        said(pipe, "done")
        assert ended(pid) == 0
    for directory in (here, there):
        db = connect(directory)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        numbers = [n for (n,) in db.execute("select n from t order by n")]
        assert numbers == list(range(2 * times)), numbers
        db.close()


for test in (flocks, waits, ranges, counter) + ((database,) if sys.argv[3:] == ["sqlite"] else ()):
    test()
    print(f"{test.__name__}: as wanted", flush=True)
