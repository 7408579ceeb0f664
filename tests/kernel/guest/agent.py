"""Process 1 of the guest: runs the scripts that the tests send.

Each line on the control port is one JSON object. From the host:
    {"run": ID, "script": TEXT}   run TEXT with bash in a session of its own
    {"kill": ID}                  end that session
    {"off": true}                 power off
To the host:
    {"ready": KERNEL_RELEASE}
    {"id": ID, "out": TEXT}       output, as it comes
    {"id": ID, "exit": STATUS}    after the last output
"""

import ctypes
import glob
import json
import os
import selectors
import signal
import subprocess
import time

ENV = {"PATH": "/opt/longhaul:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C", "TERM": "dumb"}
READ = 1 << 16


def sh(text):
    subprocess.run(["bash", "-c", text], env=ENV)


def control_port():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for name in glob.glob("/sys/class/virtio-ports/*/name"):
            with open(name) as f:
                if f.read().strip() == "longhaul":
                    return os.open("/dev/" + name.split("/")[-2], os.O_RDWR)
        time.sleep(0.05)
    raise SystemExit("no control port")


class Agent:
    def __init__(self, port):
        self.port = port
        self.pending = b""
        self.jobs = {}
        self.select = selectors.DefaultSelector()
        self.select.register(port, selectors.EVENT_READ, self.on_command)

    def tell(self, **message):
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self.port, line) :]

    def on_command(self):
        data = os.read(self.port, READ)
        if not data:
            time.sleep(0.1)  # the host has not opened its end
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "run" in message:
                self.start(message["run"], message["script"])
            elif "kill" in message and message["kill"] in self.jobs:
                os.killpg(self.jobs[message["kill"]].pid, signal.SIGKILL)
            elif "off" in message:
                os.sync()
                ctypes.CDLL(None).reboot(0x4321FEDC)

    def start(self, ident, script):
        job = subprocess.Popen(
            ["bash", "-c", ". /opt/longhaul/lib.sh\n" + script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=ENV, cwd="/root", start_new_session=True,
        )  # fmt: skip
        self.jobs[ident] = job
        self.select.register(job.stdout, selectors.EVENT_READ, lambda: self.on_output(ident, job))

    def on_output(self, ident, job):
        data = os.read(job.stdout.fileno(), READ)
        if data:
            self.tell(id=ident, out=data.decode("utf-8", "replace"))
            return
        self.select.unregister(job.stdout)
        job.stdout.close()
        del self.jobs[ident]
        self.tell(id=ident, exit=job.wait())

    def serve(self):
        self.tell(ready=os.uname().release)
        while True:
            for key, _ in self.select.select():
                key.data()


def main():
    os.environ.clear()
    os.environ.update(ENV)
    sh(
        """
        mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; mkdir -p /dev/shm /dev/pts
        mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
        mount -t configfs config /sys/kernel/config; mount -t tracefs trace /sys/kernel/tracing
        ln -sf /proc/self/fd /dev/fd; ln -sf fd/1 /dev/stdout; ln -sf fd/2 /dev/stderr
        echo guest > /proc/sys/kernel/hostname
        ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0
        """
    )
    Agent(control_port()).serve()


main()
