"""Our initiator on the kernel's target."""

import json

from peer.suite import GUEST_PORTS, check, require

NQN = "nqn.2014-08.org.example:kernel"

DIGESTS = {"no digests": "", "both digests": "?hdr_digest=true&data_digest=true"}

# (workload, block size, depth): every size on each side of the inline limit,
# and the largest one above the kernel's own transfer limits.
LOADS = [("randwrite", "4k", 32), ("write", "128k", 8), ("randrw", "1m", 4), ("rw", "12k", 16)]


def serve(bench, inline):
    port = GUEST_PORTS[0]
    bench.guest.run(f"nvmet serve {NQN} 128 {port} {inline}")
    return bench.port_to_guest(port)


@check("initiator: discover and info on the kernel's target")
def discovers(bench):
    port = serve(bench, 16384)
    out = bench.longhaul.run("discover", f"127.0.0.1:{port}")
    require(NQN in out, f"discover does not name the subsystem:\n{out}")
    out = bench.longhaul.run("discover", f"127.0.0.1:{port}", "--json")
    require(NQN in out, f"discover --json does not name the subsystem:\n{out}")
    out = bench.longhaul.run("info", f"nvme+tcp://127.0.0.1:{port}/{NQN}", "--json")
    require(str(128 << 20) in out, f"info does not say the size:\n{out}")


@check("initiator: several queues of the kernel's target in few round trips")
def few_round_trips(bench):
    port = serve(bench, 16384)
    uri = f"nvme+tcp://127.0.0.1:{port}/{NQN}"
    # No more at once: QEMU's forwarding of a port has a backlog of one.
    out = bench.longhaul.run("info", uri, "--path", "--connections", "4", "--json")
    summary = json.loads(out.splitlines()[-1])
    setup, granted = summary["setup"], summary["controller"]["queues"]
    # What was asked before it was known to be ready may cost one more.
    require(setup["round_trips"] in (5, 6), str(setup))
    require(setup["queues"] == min(4, granted), f"{setup} of {granted} queues")


@check("initiator: a subsystem that is not there is named, in one sentence")
def wrong_nqn(bench):
    port = serve(bench, 16384)
    said = bench.longhaul.run("info", f"nvme+tcp://127.0.0.1:{port}/{NQN}-not", status=1)
    require(f"{NQN}-not" in said and len(said.splitlines()) == 1, said)


def verifies(bench, inline, options):
    port = serve(bench, inline)
    uri = f"nvme+tcp://127.0.0.1:{port}/{NQN}{options}"
    for rw, size, depth in LOADS:
        result = bench.longhaul.json(
            "bench", uri, "--rw", rw, "--bs", size, "--iodepth", depth, "--size", "24m", "--verify", "crc32c"
        )
        job = result["jobs"][0]
        require(job.get("error", 0) == 0, f"{rw} {size}: error {job['error']}")
        require(job["write"]["io_bytes"] > 0, f"{rw} {size}: nothing was written")
    # The kernel agrees that all is well, and that the controllers are gone.
    out = bench.guest.run("dmesg | grep -iE 'nvmet.*(digest|error|invalid|bad)' || true")
    require(not out.strip(), out)


for inline in (16384, 0):
    for label, options in DIGESTS.items():
        check(f"initiator: bench --verify with {inline} bytes inline, {label}")(
            lambda bench, i=inline, o=options: verifies(bench, i, o)
        )


@check("initiator: what it writes the kernel reads")
def kernel_reads(bench):
    port = serve(bench, 16384)
    bench.longhaul.run(
        "bench", f"nvme+tcp://127.0.0.1:{port}/{NQN}", "--rw", "write", "--bs", "64k", "--size", "8m", "--json"
    )
    bench.guest.run("""
        dev=/dev/disk1; [ -b $dev ] || dev=/dev/nullb0
        # Content that does not compress, and so is not zeroes.
        [ $(head -c 8M $dev | gzip -1 | wc -c) -gt $((7 << 20)) ]
    """)
