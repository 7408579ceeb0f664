"""What is on the wire: inline writes, and PDUs that another implementation can read."""

from peer import capture
from peer.suite import GUEST_PORTS, Skip, check, require

MIB = 1 << 20


def recorded(bench, port, work):
    """Runs `work` while the guest's traffic is recorded; returns the decoded capture."""
    if not capture.available():
        raise Skip("tshark is not installed")
    pcap = bench.new_file("wire.pcap")
    stop = bench.guest.record(pcap)
    try:
        work()
    finally:
        stop()
    seen = capture.Capture(pcap, port)
    bad = seen.malformed()
    require(not bad, f"{len(bad)} malformed frames, the first: {bad[:3]}")
    require(seen.count("ICReq") > 0, f"no connection was recorded: {seen.summary()}")
    for term in ("H2CTermReq", "C2HTermReq"):
        require(seen.count(term) == 0, f"a connection was terminated: {seen.summary()}")
    return seen


def written(bench, target, options, bs, count):
    """Writes `count` blocks of `bs` bytes directly, reads them back, compares."""
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port} --nr-io-queues=1 {options}
        queue=/sys/block/${{DEV##*/}}/queue
        [ $(cat $queue/max_hw_sectors_kb) -ge {bs // 1024} ]
        echo {bs // 1024} > $queue/max_sectors_kb
        dd if=/dev/urandom of=/tmp/a bs={bs} count={count}
        dd if=/tmp/a of=$DEV bs={bs} oflag=direct
        dd if=$DEV bs={bs} count={count} iflag=direct | cmp - /tmp/a
        detach {nqn}
    """)


def inline(bench, options):
    target = bench.target("disk=mem:64MiB")
    seen = recorded(bench, target.port, lambda: written(bench, target, options, MIB, 8))
    require(seen.count("R2T") == 0, f"writes had to be asked for: {seen.summary()}")
    require(seen.count("H2CData") == 0, f"data came outside of capsules: {seen.summary()}")
    whole = sum(n > MIB for n in seen.lengths["CapsuleCmd"])
    require(whole == 8, f"{whole} capsules of more than 1 MiB, not 8: {seen.summary()}")
    require(seen.count("C2HData") > 0, f"nothing was read: {seen.summary()}")
    return seen.summary()


@check("wire: the kernel's 1 MiB writes arrive inline, R2T count 0")
def inline_plain(bench):
    return inline(bench, "")


@check("wire: the same with both digests")
def inline_digests(bench):
    return inline(bench, "--hdr-digest --data-digest")


@check("wire: with --in-capsule 0 each write is asked for, and well-formed")
def solicited(bench):
    target = bench.target("disk=mem:64MiB", options=("--in-capsule", "0"))
    seen = recorded(bench, target.port, lambda: written(bench, target, "", MIB, 4))
    require(seen.count("R2T") >= 4, f"fewer R2T than writes: {seen.summary()}")
    require(sum(n > MIB for n in seen.lengths["CapsuleCmd"]) == 0, f"inline data against the offer: {seen.summary()}")
    return seen.summary()


@check("wire: a file system's traffic is well-formed")
def file_system(bench):
    target = bench.target("disk=mem:512MiB")
    nqn = target.export("disk")["nqn"]

    def work():
        bench.guest.run(f"""
            nvme discover -t tcp -a 10.0.2.2 -s {target.port}
            attach {nqn} {target.port} --data-digest
            mkfs.xfs -q $DEV
            mount $DEV /mnt
            cp -r /usr/share/terminfo /usr/sbin /mnt/ 2> /dev/null || cp -r /usr/sbin /mnt/
            sync
            fstrim /mnt
            umount /mnt
            nvme smart-log $DEV
            detach {nqn}
        """)

    return recorded(bench, target.port, work).summary()


@check("wire: our initiator's traffic is well-formed")
def ours(bench):
    nqn, guest_port = "nqn.2014-08.org.example:wire", GUEST_PORTS[0]
    bench.guest.run(f"nvmet serve {nqn} 64 {guest_port} 16384")
    port = bench.port_to_guest(guest_port)

    def work():
        bench.longhaul.run("discover", f"127.0.0.1:{port}")
        for options in ("", "?hdr_digest=true&data_digest=true"):
            for bs in ("4k", "256k"):
                bench.longhaul.run(
                    "bench", f"nvme+tcp://127.0.0.1:{port}/{nqn}{options}", "--rw", "randrw", "--bs", bs,
                    "--iodepth", 8, "--size", "4m", "--verify", "crc32c", "--json",
                )  # fmt: skip

    seen = recorded(bench, guest_port, work)
    require(seen.count("R2T") > 0 and seen.count("H2CData") > 0, f"no solicited write: {seen.summary()}")
    return seen.summary()
