"""Copies."""

import os
import signal

import pytest

import longhaul


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    (top / "below").mkdir(parents=True)
    for n in range(20):
        (top / "below" / f"file{n}").write_bytes(os.urandom(10_000 + n))
    (top / "link").symlink_to("below/file1")
    return top


def content(top):
    return {path.relative_to(top): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def test_a_tree_is_copied_here(tree, tmp_path):
    done = longhaul.cp(tree, tmp_path / "copy", recursive=True, exclude=["file3"], checksum="blake3")
    expected = content(tree)
    del expected[next(path for path in expected if path.name == "file3")]
    assert content(tmp_path / "copy") == expected
    assert (tmp_path / "copy" / "link").is_symlink()
    assert (done.files, done.connections, done.resumed) == (19, 0, False)


def test_a_tree_is_copied_to_an_agent_and_back(tree, tmp_path, agent):
    there = longhaul.cp(
        [tree / "below", tree / "link"], f"{agent.url}/in", recursive=True, key_file=agent.key
    )
    assert there.files == 20 and there.connections >= 1 and there.seconds > 0
    assert content(agent.directory / "in" / "below") == content(tree / "below")
    longhaul.cp(f"{agent.url}/in", tmp_path / "back", recursive=True, key_file=agent.key, fsync="none")
    assert content(tmp_path / "back" / "below") == content(tree / "below")


def test_errors_of_copies(tree, tmp_path):
    with pytest.raises(longhaul.Error, match="No such file"):
        longhaul.cp(tmp_path / "none", tmp_path / "copy")
    with pytest.raises(longhaul.Error) as caught:
        longhaul.cp(tree, "lh://127.0.0.1:1/x", recursive=True, connect_timeout=5)
    assert caught.value.kind == "unreachable"
    for wrong in ({"checksum": "md5"}, {"fsync": "never"}, {"exclude": ["["]}, {"connections": 1000}):
        with pytest.raises(longhaul.Error) as caught:
            longhaul.cp(tree, tmp_path / "copy", recursive=True, **wrong)
        assert caught.value.kind == "invalid", wrong
    (tree / "below" / "file5").chmod(0)
    if os.geteuid() == 0:
        # Root reads everything: a directory in place of a file cannot be replaced.
        (tmp_path / "copy" / "below" / "file5").mkdir(parents=True)
        (tmp_path / "copy" / "below" / "file5" / "x").touch()
        source = f"{tree}/."
    else:
        source = tree
    with pytest.raises(longhaul.Error, match="file5") as caught:
        longhaul.cp(source, tmp_path / "copy", recursive=True)
    assert caught.value.kind == "incomplete"


def test_a_signal_ends_a_copy(tmp_path):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Stop):
            # An hour at this rate.
            longhaul.cp("zero:450MB", tmp_path / "zeroes", rate_limit=1_000_000, fsync="none")
    finally:
        signal.signal(signal.SIGALRM, before)
