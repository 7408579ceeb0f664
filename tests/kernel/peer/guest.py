"""One running guest: boots, runs scripts, loses and regains its cable, ends.

Invariants:
- only this guest's own process is ever signalled, and it ends with its owner,
  however that one ends;
- nothing written in the guest outlives it: its disk is a snapshot;
- every wait has a deadline and wakes at the event, not at the next poll.
"""

import io
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from .image import Cpio
from .program import end_with_parent

GUEST_FILES = Path(__file__).resolve().parent.parent / "guest"

# The emulated CPU without what costs emulation much and tests nothing.
CPU = "max,-la57"

# MiB of memory and number of CPUs of the guest.
MEMORY = 1024
CPUS = 2

# How long a boot may take, in seconds: 5 on a quiet machine, but the machine
# may be busy with all the other tests.
BOOT_TIMEOUT = 180

# How long a script may run unless told otherwise, in seconds.
SCRIPT_TIMEOUT = 240

# What a healthy kernel never logs.
TROUBLE = re.compile(
    r"BUG:|WARNING: CPU|Oops|general protection fault|blocked for more than|soft lockup|"
    r"rcu.*(stall|starved)|refcount_t|Kernel panic|list_(add|del) corruption|use-after-free"
)
# Stalls that only say that the emulator was not given the CPU for a while.
STARVED = re.compile(r"blocked for more than|soft lockup|rcu.*(stall|starved)")

class GuestError(Exception):
    """The guest did not boot, or ended."""


class EmulatorError(GuestError):
    """The emulator crashed before the guest had booted: nothing was tested yet."""


class ScriptFailed(Exception):
    """A script ended with a status other than 0, or not in time."""

    def __init__(self, status, output):
        super().__init__(f"the guest's script ended with {status}:\n{output}")
        self.status = status
        self.output = output


class Job:
    """A script that runs in the guest."""

    def __init__(self, guest, ident):
        self.guest = guest
        self.ident = ident
        self.output = ""
        self.status = None

    def wait(self, timeout=SCRIPT_TIMEOUT):
        """Waits for the end; returns the output. Anything but exit 0 in time is an error."""
        with self.guest.changed:
            ended = self.guest.changed.wait_for(
                lambda: self.status is not None or self.guest.dead, self.guest.scaled(timeout)
            )
            if self.status is None:
                if self.guest.dead:
                    raise GuestError("the guest ended under a script\n" + self.guest.last_words())
                assert not ended
                self.guest.send(kill=self.ident)
                raise ScriptFailed(f"no status within {timeout} s", self.output)
            if self.status != 0:
                raise ScriptFailed(self.status, self.output)
            return self.output

    def wait_output(self, text, timeout=SCRIPT_TIMEOUT):
        """Waits until the script has printed `text`."""
        with self.guest.changed:
            self.guest.changed.wait_for(
                lambda: text in self.output or self.status is not None or self.guest.dead, self.guest.scaled(timeout)
            )
            if text not in self.output:
                raise ScriptFailed(f"{self.status} without printing {text!r}", self.output)


class Guest:
    """A guest of `image`; `forwards` maps ports of the host's loopback to the guest's."""

    def __init__(self, image, forwards=None):
        self.image = image
        self.forwards = forwards or {}
        self.slowness = float(os.environ.get("LONGHAUL_KERNEL_SLOWNESS", "1"))
        self.dir = Path(tempfile.mkdtemp(prefix="longhaul-guest-"))
        self.console = self.dir / "console"
        self.changed = threading.Condition()
        self.jobs = {}
        self.ids = itertools.count(1)
        self.release = None
        self.dead = False
        self.process = None

    def scaled(self, seconds):
        return seconds * self.slowness

    # --- life ---------------------------------------------------------------

    def _first_root(self):
        path = self.dir / "initrd"
        with open(path, "wb") as out:
            with open(self.image.boot, "rb") as boot:
                shutil.copyfileobj(boot, out)
            extra = io.BytesIO()
            cpio = Cpio(extra)
            cpio.directory("guest")
            for f in sorted(GUEST_FILES.iterdir()):
                body = f.read_bytes()
                cpio.file("init" if f.name == "init" else f"guest/{f.name}", body, 0o755)
            cpio.end()
            out.write(extra.getvalue())
        return path

    def _command(self):
        user = "user,id=net0,net=10.0.2.0/24,host=10.0.2.2,ipv6=off,restrict=off"
        for host, guest in self.forwards.items():
            user += f",hostfwd=tcp:127.0.0.1:{host}-10.0.2.15:{guest}"
        accel = os.environ.get("LONGHAUL_KERNEL_ACCEL", "tcg,thread=multi,tb-size=256")
        cpu = CPU if accel.startswith("tcg") else "host"
        return [
            *self.image.qemu,
            "-accel", accel, "-cpu", cpu, "-smp", str(CPUS), "-m", str(MEMORY), "-M", "q35",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-serial", f"file:{self.console}",
            "-kernel", str(self.image.kernel), "-initrd", str(self._first_root()),
            "-append", "console=ttyS0 panic=-1 oops=panic loglevel=5 mitigations=off "
                       "audit=0 tsc=reliable no_timer_check rcupdate.rcu_cpu_stall_timeout=120",
            "-drive", f"if=none,id=root,file={self.image.root},format=raw,snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=root",
            "-netdev", user, "-device", "virtio-net-pci,netdev=net0,romfile=",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=control,path={self.dir}/control,server=on,wait=on",
            "-device", "virtserialport,chardev=control,name=longhaul",
            "-qmp", f"unix:{self.dir}/qmp,server=on,wait=off",
        ]  # fmt: skip

    def boot(self):
        """Starts the guest and waits until its agent answers."""
        began = time.monotonic()
        log = open(self.dir / "qemu.log", "w")
        self.process = subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=end_with_parent, env=dict(os.environ, TMPDIR=str(self.dir)),
        )  # fmt: skip
        log.close()
        self.control = self._connect("control")
        threading.Thread(target=self._listen, daemon=True).start()
        with self.changed:
            self.changed.wait_for(lambda: self.release or self.dead, self.scaled(BOOT_TIMEOUT))
        if not self.release:
            words, dead = self.last_words(), self.dead
            self.end()
            # A guest that powers off ends the emulator with 0.
            if dead and self.process.returncode < 0:
                raise EmulatorError(f"the emulator ended by signal {-self.process.returncode}\n{words}")
            raise GuestError(f"the guest did not boot within {self.scaled(BOOT_TIMEOUT):.0f} s\n{words}")
        self.boot_seconds = time.monotonic() - began
        return self

    @classmethod
    def booted(cls, image, forwards):
        """A guest that has booted; an emulator that crashes on the way is started once more."""
        try:
            return cls(image, forwards).boot()
        except EmulatorError as error:
            print(f"note: {error}", flush=True)
            return cls(image, forwards).boot()

    def _connect(self, name):
        """Opens one of the emulator's sockets, which appear shortly after its start."""
        deadline = time.monotonic() + 60
        while True:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(str(self.dir / name))
                return s
            except OSError as error:
                s.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    words = self.last_words()
                    raise GuestError(f"the emulator did not start: {error}\n{words}") from None
                time.sleep(0.02)

    def alive(self):
        return not self.dead and self.process is not None and self.process.poll() is None

    def end(self):
        """Powers off, or kills what does not; removes what the guest left."""
        if self.alive():
            try:
                self.send(off=True)
                self.process.wait(20)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
        if self.process:
            self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def cut_power(self):
        """Ends it without a warning, and waits until nothing more comes from it."""
        self.process.kill()
        self.process.wait()
        with self.changed:
            self.changed.wait_for(lambda: self.dead, self.scaled(60))

    def last_words(self):
        """The ends of the emulator's and the kernel's logs."""
        lines = []
        for name in ("qemu.log", "console"):
            try:
                lines += (self.dir / name).read_text(errors="replace").splitlines()[-15:]
            except OSError:
                pass
        return "\n".join(lines)

    def trouble(self):
        """Lines of the kernel's log that no healthy kernel writes."""
        try:
            log = self.console.read_text(errors="replace")
        except OSError:
            return []
        return [s for s in log.splitlines() if TROUBLE.search(s) and not STARVED.search(s)]

    # --- scripts ------------------------------------------------------------

    def send(self, **message):
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self):
        try:
            for line in self.control.makefile("rb"):
                message = json.loads(line)
                with self.changed:
                    if "ready" in message:
                        self.release = message["ready"]
                    else:
                        # A job that was killed and forgotten may still say something.
                        job = self.jobs.get(message["id"])
                        if job:
                            job.output += message.get("out", "")
                            job.status = message.get("exit", job.status)
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass
        with self.changed:
            self.dead = True
            self.changed.notify_all()

    def start(self, script):
        """Starts `script` with bash; returns its [`Job`]."""
        with self.changed:
            ident = next(self.ids)
            job = self.jobs[ident] = Job(self, ident)
        self.send(run=ident, script=script)
        return job

    def run(self, script, timeout=SCRIPT_TIMEOUT):
        """Runs `script` with bash, stopping at the first error; returns its output."""
        return self.start("set -e -o pipefail\n" + script).wait(timeout)

    def clean_up(self):
        """Ends what still runs, and takes down connections, mounts and targets of the guest."""
        for job in list(self.jobs.values()):
            if job.status is None:
                self.send(kill=job.ident)
        self.start("clean_up").wait()
        self.jobs.clear()

    # --- the machine around it ----------------------------------------------

    def qmp(self, command, **arguments):
        """Runs one command of the emulator's monitor."""
        with self._connect("qmp") as s:
            s.settimeout(self.scaled(60))
            f = s.makefile("rw")
            f.readline()
            for execute, args in (("qmp_capabilities", {}), (command, arguments)):
                f.write(json.dumps({"execute": execute, "arguments": args}) + "\n")
                f.flush()
                while "event" in (answer := json.loads(f.readline())):
                    pass
                if "error" in answer:
                    raise GuestError(f"{command}: {answer['error']['desc']}")
            return answer["return"]

    def cable(self, plugged):
        """Plugs or pulls the network cable."""
        self.qmp("set_link", name="net0", up=plugged)

    def record(self, path):
        """Starts to write the guest's network traffic to `path`; returns a function that stops it."""
        self.qmp(
            "object-add", **{"qom-type": "filter-dump", "id": "dump", "netdev": "net0", "file": str(path),
                             "maxlen": 1 << 17},
        )  # fmt: skip
        return lambda: self.qmp("object-del", id="dump")
