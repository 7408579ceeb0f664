"""Captured traffic, decoded by tshark: what really was on the wire."""

import collections
import shutil
import subprocess

# PDU types of NVMe/TCP. Source: NVMe/TCP, figure "PDU types".
NAMES = {
    0x00: "ICReq", 0x01: "ICResp", 0x02: "H2CTermReq", 0x03: "C2HTermReq", 0x04: "CapsuleCmd",
    0x05: "CapsuleResp", 0x06: "H2CData", 0x07: "C2HData", 0x09: "R2T",
}  # fmt: skip

# How long decoding may take, in seconds.
DECODE_TIMEOUT = 600
# How often tshark is started for one capture.
ATTEMPTS = 5


class Undecodable(Exception):
    """tshark crashes on a capture, each time."""


def available():
    return shutil.which("tshark") is not None


class Capture:
    """The NVMe/TCP PDUs of a capture file, on `port`."""

    def __init__(self, path, port):
        self.path = str(path)
        self.port = port
        self.lengths = collections.defaultdict(list)
        rows = self._fields("nvme-tcp", "nvme-tcp.type", "nvme-tcp.plen")
        for types, lengths in rows:
            for t, n in zip(types, lengths, strict=True):
                self.lengths[NAMES.get(int(t, 0), t)].append(int(n, 0))

    def _tshark(self, *args):
        command = [
            "tshark", "-n", "-r", self.path, "-d", f"tcp.port=={self.port},nvme-tcp",
            "-o", "tcp.desegment_tcp_streams:TRUE", *args,
        ]  # fmt: skip
        # A crash of tshark says nothing of the traffic.
        for _ in range(ATTEMPTS):
            done = subprocess.run(command, capture_output=True, text=True, timeout=DECODE_TIMEOUT)
            if done.returncode >= 0:
                break
        if done.returncode < 0:
            raise Undecodable(f"tshark crashes on the capture, {ATTEMPTS} times by signal {-done.returncode}")
        done.check_returncode()
        return done.stdout

    def _fields(self, condition, *fields):
        wanted = [a for f in fields for a in ("-e", f)]
        out = self._tshark("-Y", condition, "-T", "fields", "-E", "separator=|", *wanted)
        return [[cell.split(",") if cell else [] for cell in line.split("|")] for line in out.splitlines()]

    def count(self, name):
        """How many PDUs of this kind there are."""
        return len(self.lengths[name])

    def malformed(self):
        """Frames that the dissector cannot make sense of, one line each."""
        return self._tshark("-Y", "_ws.malformed").splitlines()

    def summary(self):
        return ", ".join(f"{n} {len(v)}" for n, v in sorted(self.lengths.items()) if v)
