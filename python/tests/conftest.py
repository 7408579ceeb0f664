"""Targets, pools and file systems that the tests use, made by the program that the variable LONGHAUL names."""

import json
import os
import subprocess
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest


def program() -> str:
    path = os.environ.get("LONGHAUL")
    if not path:
        pytest.skip("LONGHAUL names no program to test with")
    return path


def run(*arguments: str) -> str:
    """Runs the program; its output."""
    done = subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Target:
    """A running `longhaul target` on a free port."""

    def __init__(self, *arguments: str) -> None:
        command = [program(), "target", "--json", "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line, f"{command} has ended: {self.process.wait(timeout=30)}"
        ready = json.loads(line)
        self.address = ready["listen"][0]
        self.uris = [export["uri"] for export in ready["exports"]]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """State and records of this run, not those of the user."""
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        os.environ[name] = str(tmp_path_factory.mktemp(name.lower()))


@pytest.fixture(scope="session")
def target():
    """A target with the export `a` of 64 MiB, and `fixed`, which is read-only."""
    target = Target("--export", "a=mem:64MiB", "--export", "fixed=mem:1MiB,ro")
    yield target
    target.end()


@pytest.fixture
def uri(target: Target) -> str:
    return target.uris[0]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory):
    """A file system with parity over three spaces: its name, and the host NQN that it is for."""
    host = f"nqn.2014-08.org.nvmexpress:uuid:{uuid.uuid4()}"
    directory = tmp_path_factory.mktemp("spaces")
    spaces = [word for name in "abc" for word in ("--space", f"{name}=dir:{directory / name},size=1GiB")]
    target = Target(*spaces, "--admin", host)
    members = [f"{target.address}/{name},domain={name}" for name in "abc"]
    run("pool", "create", "pool", "--hostnqn", host, "--target", *members)
    run("fs", "create", "pool/files", "--size", "512MiB", "--layout", "parity", "--thin", "--hostnqn", host)
    yield SimpleNamespace(name="pool/files", host=host, options={"hostnqn": host}, target=target)
    target.end()


@pytest.fixture
def fs(files: SimpleNamespace, request: pytest.FixtureRequest):
    """The file system by fsspec, and an empty directory of it for each test."""
    fsspec = pytest.importorskip("fsspec")
    made = fsspec.filesystem("longhaul", **files.options)
    top = f"{files.name}/{request.node.name}"
    made.makedirs(top)
    yield SimpleNamespace(fs=made, top=top, url=f"longhaul://{top}", options=files.options, files=files)
    made.rm(top, recursive=True)


@pytest.fixture
def agent(tmp_path: Path):
    """A directory that a running `longhaul agent` serves, and its URL."""
    served = tmp_path / "served"
    served.mkdir()
    key = tmp_path / "key"
    command = [program(), "agent", "--listen", "127.0.0.1:0", "--root", str(served), "--key-file", str(key)]
    if os.geteuid() == 0:
        # Else it could not write to what this test has made.
        command += ["--user", "root"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ready = process.stdout.readline()
    assert "127.0.0.1:" in ready, ready
    address = "127.0.0.1:" + ready.split("127.0.0.1:")[1].split()[0].split("/")[0]
    yield SimpleNamespace(directory=served, url=f"lh://{address}", key=key)
    process.terminate()
    process.wait(timeout=30)
    process.stdout.close()


def pytest_terminal_summary(terminalreporter) -> None:
    """The counts in the form that `.ci/run` reads."""
    count = lambda *kinds: sum(len(terminalreporter.stats.get(kind, ())) for kind in kinds)  # noqa: E731
    numbers = (count("passed"), count("failed", "error"), count("skipped"))
    terminalreporter.write_line("{} passed, {} failed, {} skipped".format(*numbers))
