"""The kernel with itself: does the peer that judges us work at all?"""

from peer import capture
from peer.suite import GUEST_PORTS, Skip, check, require

NQN = "nqn.2014-08.org.example:alone"


@check("peer: the kernel's host and target in one guest")
def loopback(bench):
    bench.guest.run(f"""
        nvmet serve {NQN} 384 4420 16384
        nvme discover -t tcp -a 127.0.0.1 -s 4420 | grep -q {NQN}
        nvme connect -t tcp -a 127.0.0.1 -s 4420 -n {NQN}
        until_true 60 block_device {NQN}
        DEV=$(block_device {NQN})
        fio --name=v --filename=$DEV --rw=randwrite --bs=4k --size=16m --direct=1 --ioengine=libaio \\
            --iodepth=16 --verify=crc32c --verify_fatal=1
        detach {NQN}
    """)
    return f"kernel {bench.guest.release}, booted in {bench.guest.boot_seconds:.0f} s"


@check("peer: a check that must fail does fail")
def failure_is_seen(bench):
    from peer.guest import ScriptFailed

    try:
        bench.guest.run("echo before; false; echo after")
    except ScriptFailed as failed:
        require(failed.status == 1, f"status {failed.status}")
        require("before" in failed.output and "after" not in failed.output, failed.output)
        return
    require(False, "a failing script passed")


@check("peer: a capture is decoded, and tells solicited from inline writes")
def decoding(bench):
    if not capture.available():
        raise Skip("tshark is not installed")
    # The guest's host reaches the guest's own target by way of the machine's
    # loopback, so that its traffic crosses the recorded wire.
    port = bench.port_to_guest(GUEST_PORTS[0])
    pcap = bench.new_file("alone.pcap")
    bench.guest.run(f"nvmet serve {NQN} 64 {GUEST_PORTS[0]} 16384")
    stop = bench.guest.record(pcap)
    bench.guest.run(f"""
        attach {NQN} {port} --nr-io-queues=1
        dd if=/dev/zero of=$DEV bs=64k count=4 oflag=direct
        dd if=/dev/zero of=$DEV bs=8k count=4 oflag=direct
        detach {NQN}
    """)
    stop()
    seen = capture.Capture(pcap, port)
    # Every byte crosses the wire twice: to the machine's loopback and back.
    require(seen.count("R2T") >= 4, f"no R2T for writes above the inline size: {seen.summary()}")
    inline = sum(n >= 8192 for n in seen.lengths["CapsuleCmd"])
    require(inline >= 4, f"8 KiB writes did not arrive inline: {seen.summary()}")
    require(not seen.malformed(), "the dissector found malformed PDUs")
    return seen.summary()
