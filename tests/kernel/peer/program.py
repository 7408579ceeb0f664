"""The program under test, as a process beside the guest."""

import ctypes
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

# How long the program may take for anything short, in seconds. Generous: the
# guest's emulation takes both CPUs of a small machine.
SHORT = 120


PR_SET_PDEATHSIG = 1


def end_with_parent():
    """For `preexec_fn`: the process ends with its parent, however that one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class ProgramError(Exception):
    """The program did not do what it was asked."""


def built(package, given):
    """A program of this workspace: what the environment names, or what cargo builds."""
    if os.environ.get(given):
        return Path(os.environ[given])
    # Features are chosen as for other tests.
    named = os.environ.get("LONGHAUL_FEATURES", "").replace(",", " ").split()
    wanted = [f for f in named if f.startswith(package + "/")]
    features = ["--features", ",".join(wanted)] if wanted else []
    built = subprocess.run(
        ["cargo", "build", "--quiet", "-p", package, *features, "--message-format=json"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if built.returncode:
        return None
    artifacts = (json.loads(line) for line in built.stdout.splitlines())
    return next(
        (Path(a["executable"]) for a in artifacts if a.get("target", {}).get("name") == package and a.get("executable")),
        None,
    )


class Longhaul:
    """The program, run to its end."""

    def __init__(self, binary):
        self.binary = str(binary)

    def run(self, *args, timeout=SHORT, status=0, environment=None):
        """Runs it; returns its standard output, or what it says on standard error where it is
        to fail. Another exit status than `status` is an error; with None every one is right, and all that it
        says is returned. `environment` is added to this one's."""
        done = subprocess.run(
            [self.binary, *map(str, args)], capture_output=True, text=True, timeout=timeout,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        if status is None:
            return done.stdout + done.stderr
        if done.returncode != status:
            raise ProgramError(
                f"`longhaul {' '.join(map(str, args))}` ended with {done.returncode}, not {status}\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        return done.stderr if status else done.stdout

    def json(self, *args, timeout=SHORT):
        """Runs it with `--json`; returns its last (or only) document."""
        out = self.run(*args, "--json", timeout=timeout)
        try:
            return json.loads(out)
        except ValueError:
            return json.loads(out.strip().splitlines()[-1])

    def hostnqn(self):
        """The NQN by which targets know this machine."""
        return self.json("show-hostnqn")["hostnqn"]


class Target:
    """`longhaul target`, serving until told otherwise."""

    def __init__(self, binary, port, exports, options, environment=None):
        self.port = port
        self.environment = {**os.environ, **(environment or {})}
        self.command = [str(binary), "target", "--listen", f"127.0.0.1:{port}", "--json", *map(str, options)]
        for e in exports:
            self.command += ["--export", e]
        self.process = None
        self.ready = None

    def start(self):
        """Starts it and waits for its `ready` event."""
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            start_new_session=True, preexec_fn=end_with_parent, env=self.environment,
        )  # fmt: skip
        events = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process.stdout, events), daemon=True).start()
        while True:
            try:
                event = events.get(timeout=SHORT)
            except queue.Empty:
                raise ProgramError("the target did not get ready\n" + self.said()) from None
            if event is None:
                raise ProgramError(f"the target ended with {self.process.wait()}\n" + self.said())
            if event.get("event") == "ready":
                self.ready = event
                return self

    @staticmethod
    def _listen(stream, events):
        for line in stream:
            try:
                events.put(json.loads(line))
            except ValueError:
                events.put({"event": "not JSON", "line": line})
        events.put(None)

    def said(self):
        """What the target wrote to standard error."""
        self.errors.seek(0)
        return self.errors.read()[-3000:]

    def export(self, name):
        """The `ready` event's entry for an export: its `nqn` and `uri`."""
        return next(e for e in self.ready["exports"] if e["name"] == name)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        """Ends it the hard way."""
        self.process.kill()
        self.process.wait()

    def term(self):
        """Asks it to end; returns its exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(SHORT)

    def end(self):
        if self.process and self.process.poll() is None:
            self.kill()
