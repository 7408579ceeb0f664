"""Checks: how they are named, run, counted and reported."""

import fnmatch
import os
import shutil
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import deliver
from .capture import Undecodable
from .guest import Guest, GuestError, ScriptFailed
from .program import Longhaul, Target

# Ports of the guest on which its own target serves, each forwarded from a
# free port of the host's loopback.
GUEST_PORTS = (4420, 4421, 4422, 4423)


class Skip(Exception):
    """This check does not apply here, for the reason given."""


class NewerKernel(Skip):
    """This check is for a newer kernel than the guest's. No CI has to have it."""


class Failed(Exception):
    """What a check required was not so."""


def require(truth, why):
    """Ends the check with `why` unless `truth`."""
    if not truth:
        raise Failed(why)


CHECKS = []


def check(name):
    """Registers a function of one argument, the [`Bench`], as a check."""

    def register(function):
        CHECKS.append((name, function))
        return function

    return register


def free_port():
    """A TCP port of the loopback that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    """What checks work with: the guest, the program, a directory, targets that end with the check."""

    def __init__(self, image, binary, torture=None):
        self.image = image
        self.binary = binary
        self._torture = torture
        self.forwards = {free_port(): port for port in GUEST_PORTS}
        self.trouble = []
        self._guest = None
        self._targets = []
        self.files = 0
        self._dir = tempfile.TemporaryDirectory(prefix="longhaul-kernel-")
        self.dir = Path(self._dir.name)

    @property
    def guest(self):
        """The running guest; a new one where the last has died."""
        if self._guest is None or not self._guest.alive():
            self._drop_guest()
            self._guest = Guest.booted(self.image, self.forwards)
        return self._guest

    def port_to_guest(self, guest_port):
        """The port of the host's loopback that leads to the guest's `guest_port`."""
        return next(h for h, g in self.forwards.items() if g == guest_port)

    @property
    def longhaul(self):
        """The program under test, to run to its end."""
        if self.binary is None:
            raise Skip("the program is not built")
        return Longhaul(self.binary)

    @property
    def torture(self):
        """The program that loads file systems."""
        if self._torture is None:
            raise Skip("longhaul-torture is not built")
        return self._torture

    def install(self, *binaries):
        """Puts programs into the guest, once for each guest."""
        for binary in map(Path, binaries):
            deliver.into(self.guest, binary, f"/bin/{binary.name}")

    def cut_power(self):
        """Takes the guest's power away: what it had not written is lost. The next use boots another."""
        new = self._guest.trouble()[len(self.trouble) :]
        self._guest.cut_power()
        self._drop_guest()
        require(not new, "the guest's kernel complained:\n" + "\n".join(new))

    def target(self, *exports, port=None, options=(), environment=None):
        """Starts `longhaul target` with these exports; it ends with the check."""
        binary = self.longhaul.binary
        t = Target(binary, port or free_port(), exports, options, environment)
        self._targets.append(t)
        return t.start()

    def new_file(self, name, size=None):
        """A path in the check's directory, where no file has been before (a target that finds
        another medium in the place of one that it has served refuses it); a sparse file of
        `size` bytes where given."""
        self.files += 1
        path = self.dir / f"{self.files}-{name}"
        if size is not None:
            with open(path, "wb") as f:
                f.truncate(size)
        return path

    def after_check(self):
        """Takes down what the check left, for the next one to start from nothing."""
        try:
            if self._guest and self._guest.alive():
                self._guest.clean_up()
        except ScriptFailed:
            # A guest that cannot be cleaned is no place for the next check.
            self._drop_guest()
            raise
        finally:
            for t in self._targets:
                t.end()
            self._targets.clear()
            for f in self.dir.iterdir():
                shutil.rmtree(f) if f.is_dir() else f.unlink()
            if self._guest:
                new = self._guest.trouble()[len(self.trouble) :]
                self.trouble += new
                require(not new, "the guest's kernel complained:\n" + "\n".join(new))

    def _drop_guest(self):
        if self._guest:
            self._guest.end()
            self._guest = None
            self.trouble = []

    def end(self):
        self._drop_guest()
        for t in self._targets:
            t.end()
        self._dir.cleanup()


def _indent(text):
    return "\n".join("      " + line for line in str(text).rstrip().splitlines()[-60:])


def run(bench, patterns):
    """Runs the checks that match one of `patterns` (all if there are none); returns the number that failed."""
    passed = failed = skipped = missing = 0
    for name, function in CHECKS:
        if patterns and not any(fnmatch.fnmatch(name, f"*{p}*") for p in patterns):
            continue
        began, word, detail, note = time.monotonic(), "PASS", "", None
        try:
            try:
                note = function(bench)
            finally:
                bench.after_check()
        except (Skip, Undecodable) as why:
            word, detail = "SKIP", str(why)
            missing += not isinstance(why, (NewerKernel, Undecodable))
        except (Failed, ScriptFailed, GuestError) as why:
            word, detail = "FAIL", str(why)
        except Exception:
            word, detail = "FAIL", traceback.format_exc()
        note = f"  {note}" if note and word == "PASS" else ""
        print(f"{word}  {name}  ({time.monotonic() - began:.1f} s){note}", flush=True)
        if detail:
            print(_indent(detail), flush=True)
        if word == "FAIL" and os.environ.get("LONGHAUL_KERNEL_LOG") and bench._guest:
            print(_indent(bench._guest.last_words()), flush=True)
        passed += word == "PASS"
        failed += word == "FAIL"
        skipped += word == "SKIP"
    if skipped:
        print(f"{skipped} skipped", flush=True)
    if os.environ.get("LONGHAUL_KERNEL_REQUIRED"):
        failed += missing
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.stdout.flush()
    return failed
