"""The guest loses its power at random moments under write load: nothing that was durable is lost."""

import os
import random
import re
import time

from peer.guest import ScriptFailed
from peer.suite import check, free_port, require

from checks.host import MAKE

# How often the power is cut in each check, and the seed of the moments.
CUTS = int(os.environ.get("LONGHAUL_KERNEL_CUTS", "1"))
SEED = int(os.environ.get("LONGHAUL_KERNEL_SEED", "0")) or random.randrange(1, 1 << 32)

# Records that are durable before a cut, at most, and seconds on top of them.
RECORDS, SECONDS = 60, 1.0


class Kernel:
    """The guest's own NVMe host."""

    name = "on the kernel's host"

    def __init__(self, bench, fs, target):
        self.fs, self.port, self.nqn = fs, target.port, target.export("disk")["nqn"]
        self.programs = (bench.torture,)

    def make(self):
        return f"attach {self.nqn} {self.port}\n{MAKE[self.fs]} $DEV\ndetach {self.nqn}"

    def mount(self):
        return f"attach {self.nqn} {self.port}\nmount $DEV /mnt"

    def umount(self):
        return f"umount /mnt\ndetach {self.nqn}"

    def repair(self):
        return f"attach {self.nqn} {self.port}\nrepair {self.fs} $DEV\ndetach {self.nqn}"


class Longhaul:
    """`longhaul mount` in the guest, as where there is nothing but FUSE."""

    name = "through longhaul mount"

    def __init__(self, bench, fs, target):
        self.fs, self.uri = fs, f"nvme+tcp://10.0.2.2:{target.port}/disk"
        self.programs = (bench.longhaul.binary, bench.torture)

    def make(self):
        return f"longhaul mkfs --fs {self.fs} {self.uri}"

    def mount(self):
        return f"longhaul mount {self.uri} /mnt --via fuse"

    def umount(self):
        return "longhaul umount /mnt"

    def repair(self):
        attach = f"longhaul attach {self.uri} --at /tmp/disk --via fuse"
        return f"{attach}\nrepair {self.fs} /tmp/disk\nlonghaul detach /tmp/disk"


def durable(output):
    """The last record that was told to be durable."""
    told = re.findall(r"^durable (\d+)$", output.rpartition("\n")[0], re.M)
    return int(told[-1]) if told else 0


def cut(bench, way, number, moments):
    """Writes records until the power goes; returns the last one that was durable."""
    bench.install(*way.programs)
    job = bench.guest.start(f"set -e\n{way.mount()}\nexec longhaul-torture records /mnt/cut-{number} {number}")
    job.wait_output(f"durable {moments.randint(1, RECORDS)}\n")
    # The moment is the test: it is to have nothing to do with what is told.
    time.sleep(moments.uniform(0, SECONDS))
    bench.cut_power()
    return durable(job.output)


def survives(bench, fs, way):
    # The target keeps its port for every guest.
    target = bench.target(f"disk=file:{bench.new_file('disk.img')},size=512MiB", port=free_port())
    way = way(bench, fs, target)
    moments = random.Random(f"{SEED} {fs} {way.name}")
    bench.install(*way.programs)
    bench.guest.run(f"set -e\n{way.make()}")
    last = []
    for number in range(1, CUTS + 1):
        last.append(cut(bench, way, number, moments))
        bench.install(*way.programs)
        # The journal is replayed; then all must be well, and all records there.
        said = f"seed {SEED}, cut {number} after record {last[-1]}"
        checks = "\n".join(
            f"longhaul-torture records-check /mnt/cut-{n} {n} {record}" for n, record in enumerate(last, 1)
        )
        try:
            bench.guest.run(f"""
                {way.mount()}
                {way.umount()}
                {way.repair()}
                {way.mount()}
                {checks}
                {way.umount()}
            """)
        except ScriptFailed as failed:
            raise ScriptFailed(failed.status, f"{said}\n{failed.output}") from None
    require(all(last), f"a cut came before anything was durable: {last}")
    return f"{CUTS} cuts after {', '.join(map(str, last))} records, seed {SEED}"


for name in MAKE:
    for way in (Kernel, Longhaul):
        check(f"power: {name} {way.name}, cut under load")(lambda bench, fs=name, w=way: survives(bench, fs, w))
