"""The pairs of hosts and targets that tests/kernel/peers compares: each one gives back what was written."""

from peer.columns import COLUMNS, Lab
from peer.suite import check, require


@check("peers: every pair of a host and a target verifies, over one emulated link")
def verifies(bench):
    bench.install(bench.longhaul.binary)
    lab = Lab(bench.guest, "1ms", "50Mbit", "512KiB")
    try:
        lab.serve()
        for column in COLUMNS:
            require(not lab.reason(column), f"{column.name}: {lab.reason(column)}")
            device = lab.attach(column)
            job = lab.bench(device, 2, "--rw", "randrw", "--bs", "64k", "--iodepth", 8, "--verify", "crc32c")
            require(job["read"]["io_bytes"] > 0 and job["write"]["io_bytes"] > 0, f"{column.name}: {job}")
            lab.detach(column)
    finally:
        lab.end()
