"""The kernel's host on our target: discovery, digests, file systems, trim, resize."""

import json
import signal

from peer.suite import check, free_port, require

MIB = 1 << 20

# How the kernel may be asked to protect a connection, and what each is called.
DIGESTS = {
    "no digests": "",
    "header digest": "--hdr-digest",
    "data digest": "--data-digest",
    "both digests": "--hdr-digest --data-digest",
}


@check("host: discovery on the I/O port")
def discover_on_io_port(bench):
    target = bench.target("one=mem:16MiB", "two=mem:16MiB")
    out = bench.guest.run(f"nvme discover -t tcp -a 10.0.2.2 -s {target.port}")
    for name in ("one", "two"):
        require(target.export(name)["nqn"] in out, f"the log does not name {name}:\n{out}")


@check("host: discovery on a port of its own")
def discover_on_discovery_port(bench):
    # Another target of this machine may serve discovery on 8009, the default.
    port = free_port()
    target = bench.target("one=mem:16MiB", options=("--discovery", f"127.0.0.1:{port}"))
    out = bench.guest.run(f"nvme discover -t tcp -a 10.0.2.2 -s {port} -o json")
    entries = json.loads(out)["records"]
    ours = [e for e in entries if e["subnqn"] == target.export("one")["nqn"]]
    require(len(ours) == 1 and ours[0]["trsvcid"] == str(target.port), out)
    # What tools would take for an offer of TLS.
    require(ours[0]["sectype"] == "none" and "not specified" in ours[0]["treq"], out)


@check("host: a central discovery controller lists what registers, and notifies of what comes")
def central_discovery(bench):
    central = bench.target(options=("--registrar", "*"))
    register = ("--register", f"127.0.0.1:{central.port}", "--hostnqn")
    one = bench.target("one=mem:16MiB", options=(*register, "nqn.2014-08.org.example:dtn1"))
    listed = f"""
        until nvme discover -t tcp -a 10.0.2.2 -s {central.port} > /tmp/log && grep -q NQN /tmp/log; do sleep 1; done
        cat /tmp/log"""
    found = bench.guest.run(listed.replace("NQN", one.export("one")["nqn"]))
    require("nvme subsystem" in found, found)
    kind = bench.guest.run(f"""
        nvme discover -t tcp -a 10.0.2.2 -s {central.port} --persistent > /dev/null
        CTRL=$(basename $(dirname $(grep -l discovery /sys/class/nvme/nvme*/cntrltype)))
        cat /sys/class/nvme/$CTRL/dctype
        nvme dim --device=$CTRL --task=register
    """)
    require("cdc" in kind.split(), kind)
    events = bench.guest.start("exec stdbuf -oL udevadm monitor --kernel --property --subsystem-match=nvme")
    events.wait_output("KERNEL")
    two = bench.target("two=mem:16MiB", options=(*register, "nqn.2014-08.org.example:dtn2"))
    # The discovery log has changed (NVMe Base 2.1, Asynchronous Event Information, Notice).
    events.wait_output("NVME_AEN=0x70f002")
    found = bench.guest.run(listed.replace("NQN", two.export("two")["nqn"]))
    require(one.export("one")["nqn"] in found, found)


@check("host: a host that may only read has a read-only disk, and mounts what another one wrote")
def reader(bench):
    writer, reader = ("nqn.2014-08.org.example:" + name for name in ("writer", "reader"))
    target = bench.target(f"disk=mem:64MiB,allow-host={writer},read-only-host={reader}")
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port} --hostnqn={writer} --hostid=00000000-0000-4000-8000-000000000001
        [ "$(blockdev --getro $DEV)" = 0 ]
        mkfs.ext4 -q -F $DEV
        mkdir -p /tmp/shared; mount $DEV /tmp/shared
        echo published > /tmp/shared/results; umount /tmp/shared
        detach {nqn}
        attach {nqn} {target.port} --hostnqn={reader} --hostid=00000000-0000-4000-8000-000000000002
        [ "$(blockdev --getro $DEV)" = 1 ]
        ! dd if=/dev/zero of=$DEV bs=4k count=1 oflag=direct 2> /dev/null
        ! nvme resv-register $CTRL --namespace-id=1 --nrkey=17 --rrega=0 2> /tmp/said
        grep -qi denied /tmp/said
        mount -o ro $DEV /tmp/shared
        grep -qx published /tmp/shared/results; umount /tmp/shared
        detach {nqn}
    """)


def exercise(bench, digests):
    """Connects, writes and verifies blocks of several sizes, disconnects."""
    target = bench.target("disk=mem:128MiB")
    nqn = target.export("disk")["nqn"]
    out = bench.guest.run(f"""
        attach {nqn} {target.port} {digests}
        fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --randseed=7 \\
            --name=small --rw=randwrite --bs=4k --offset=0 --size=2m --iodepth=32 \\
            --name=odd --rw=randwrite --bs=12k --offset=24m --size=6m --iodepth=8 \\
            --name=large --rw=write --bs=1m --offset=48m --size=16m --iodepth=4 --group_reporting
        detach {nqn}
    """)
    require("err= 0" in out, out)


for label, options in DIGESTS.items():
    check(f"host: fio verifies with {label}")(lambda bench, o=options: exercise(bench, o))


MAKE = {"xfs": "mkfs.xfs -q -f", "ext4": "mkfs.ext4 -q -F -E lazy_itable_init=1"}
REPAIR = {"xfs": "xfs_repair -n", "ext4": "e2fsck -f -n"}

# Files of sizes around what matters: empty, sub-block, one block, the
# capsule's limits, and large.
FILL = """
    mkdir -p /mnt/a/b
    for size in 0 1 511 512 4095 4096 4097 8192 65537 1048575 1048576 1048577 3000000; do
        head -c $size /dev/urandom > /mnt/a/f$size
        head -c $size /dev/urandom > /mnt/a/b/g$size
    done
    for i in $(seq 200); do echo $i > /mnt/a/b/small$i; done
    head -c 24M /dev/urandom > /mnt/big
    rm /mnt/a/b/small?5
"""


def file_system(bench, fs, digests):
    """Makes, fills, remounts, reads back, checks."""
    image = bench.new_file("disk.img")
    target = bench.target(f"disk=file:{image},size=512MiB")
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port} {digests}
        {MAKE[fs]} $DEV
        mount $DEV /mnt
        {FILL}
        (cd /mnt && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /tmp/sums
        sync
        umount /mnt
        detach {nqn}
        # A new connection, and nothing left in the guest's memory to read it from.
        echo 3 > /proc/sys/vm/drop_caches
        attach {nqn} {target.port} {digests}
        mount $DEV /mnt
        (cd /mnt && sha256sum --quiet -c /tmp/sums)
        [ $(wc -l < /tmp/sums) -gt 200 ]
        umount /mnt
        {REPAIR[fs]} $DEV
        detach {nqn}
    """)
    require(target.term() == 0, f"the target did not end with 0 on SIGTERM: {target.said()}")


for name in MAKE:
    for label in ("no digests", "both digests"):
        check(f"host: {name} made, filled, remounted, read back, checked, with {label}")(
            lambda bench, fs=name, o=DIGESTS[label]: file_system(bench, fs, o)
        )


def trims(bench, fs):
    """fstrim gives space in the backing file back."""
    image = bench.new_file("disk.img")
    target = bench.target(f"disk=file:{image},size=512MiB")
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port}
        {MAKE[fs]} $DEV
        mount $DEV /mnt
        head -c 64M /dev/urandom > /mnt/keep
        head -c 64M /dev/urandom > /mnt/drop
        sha256sum /mnt/keep > /tmp/sums
        sync
    """)
    full = allocated(image)
    require(full >= 128 * MIB, f"only {full} bytes are allocated after 128 MiB were written")
    out = bench.guest.run(f"""
        rm /mnt/drop
        sync
        fstrim -v /mnt
        umount /mnt
        DEV=$(block_device {nqn})
        echo 3 > /proc/sys/vm/drop_caches
        mount $DEV /mnt
        sha256sum -c /tmp/sums
        umount /mnt
        {REPAIR[fs]} $DEV
        detach {nqn}
    """)
    left = allocated(image)
    require(full - left >= 60 * MIB, f"{full} bytes were allocated before fstrim, {left} after:\n{out}")
    return f"{full // MIB} MiB allocated, {left // MIB} MiB after fstrim"


def allocated(path):
    """Bytes that the file takes on its disk."""
    return path.stat().st_blocks * 512


for name in MAKE:
    check(f"host: {name} trims, and the backing file shrinks")(lambda bench, fs=name: trims(bench, fs))


@check("host: blkdiscard gives everything back, and reads zeroes")
def discards(bench):
    image = bench.new_file("disk.img")
    target = bench.target(f"disk=file:{image},size=64MiB")
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port}
        dd if=/dev/urandom of=$DEV bs=1M count=64 oflag=direct
    """)
    require(allocated(image) >= 64 * MIB, "the write did not reach the file")
    bench.guest.run(f"""
        DEV=$(block_device {nqn})
        blkdiscard $DEV
        cmp -n $((64 << 20)) $DEV /dev/zero
        dd if=/dev/urandom of=$DEV bs=1M count=8 oflag=direct
        blkdiscard --zeroout --offset $((2 << 20)) --length $((4 << 20)) $DEV
        dd if=$DEV bs=1M skip=2 count=4 iflag=direct | cmp -n $((4 << 20)) - /dev/zero
        ! dd if=$DEV bs=1M count=1 iflag=direct | cmp -n $((1 << 20)) - /dev/zero
        detach {nqn}
    """)
    require(allocated(image) <= 16 * MIB, f"{allocated(image)} bytes are left after everything was discarded")


@check("host: sees a namespace grow, told by an asynchronous event")
def grows(bench):
    image = bench.new_file("disk.img")
    target = bench.target(f"disk=file:{image},size=64MiB")
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port}
        sectors_are $DEV $((64 << 11))
    """)
    with open(image, "r+b") as f:
        f.truncate(96 * MIB)
    target.signal(signal.SIGHUP)
    bench.guest.run(f"""
        DEV=$(block_device {nqn})
        until_true 60 sectors_are $DEV $((96 << 11))
        dd if=/dev/urandom of=/tmp/x bs=1M count=8
        dd if=/tmp/x of=$DEV bs=1M seek=88 oflag=direct
        dd if=$DEV bs=1M skip=88 count=8 iflag=direct | cmp - /tmp/x
        detach {nqn}
    """)


@check("host: reserves a namespace against other hosts, and gives it back")
def reserves(bench):
    target = bench.target("disk=mem:64MiB")
    nqn = target.export("disk")["nqn"]
    out = bench.guest.run(f"""
        attach {nqn} {target.port} > /dev/null
        nvme resv-register $DEV --nrkey=17 --rrega=0 > /dev/null
        nvme resv-acquire $DEV --crkey=17 --rtype=1 --racqa=0 > /dev/null
        dd if=/dev/urandom of=$DEV bs=1M count=8 oflag=direct status=none
        nvme resv-report $DEV --eds -o json
    """)
    report = json.loads(out)
    require(report["rtype"] == 1 and report["regctl"] == 1, f"resv-report: {report}")
    # Another host: ours, which may read and not write.
    uri = f"nvme+tcp://127.0.0.1:{target.port}/{nqn}"
    load = ("--bs", "4KiB", "--size", "64KiB")
    bench.longhaul.run("bench", uri, "--rw", "read", *load)
    refused = bench.longhaul.run("bench", uri, "--rw", "write", *load, status=6)
    require("another host has reserved the device" in refused, f"a write beside a reservation: {refused}")
    bench.guest.run(f"""
        DEV=$(block_device {nqn})
        nvme resv-release $DEV --crkey=17 --rtype=1 --rrela=0 > /dev/null
        nvme resv-register $DEV --crkey=17 --rrega=1 > /dev/null
        detach {nqn}
    """)
    bench.longhaul.run("bench", uri, "--rw", "write", *load)


@check("host: a reservation that persists outlives a target that is killed")
def reservation_persists(bench):
    export = f"disk=file:{bench.new_file('reserved.img')},size=64MiB"
    target = bench.target(export)
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {target.port} --reconnect-delay=1 --ctrl-loss-tmo=600 > /dev/null
        nvme resv-register $DEV --nrkey=17 --rrega=0 --cptpl=3 > /dev/null
        nvme resv-acquire $DEV --crkey=17 --rtype=1 --racqa=0 > /dev/null
    """)
    target.kill()
    target = bench.target(export, port=target.port)
    uri = f"nvme+tcp://127.0.0.1:{target.port}/{nqn}"
    load = ("--bs", "4KiB", "--size", "64KiB")
    refused = bench.longhaul.run("bench", uri, "--rw", "write", *load, status=6)
    require("another host has reserved the device" in refused, f"a write beside a reservation: {refused}")
    out = bench.guest.run(f"""
        until_true 90 state_is {nqn} live
        DEV=$(block_device {nqn})
        dd if=/dev/urandom of=$DEV bs=1M count=8 oflag=direct status=none
        nvme resv-report $DEV --eds -o json
    """)
    report = json.loads(out)
    held = (report["rtype"], report["regctl"], report["ptpls"])
    require(held == (1, 1, 1), f"resv-report: {report}")
    bench.guest.run(f"""
        DEV=$(block_device {nqn})
        nvme resv-register $DEV --crkey=17 --rrega=1 > /dev/null
        detach {nqn}
    """)
    bench.longhaul.run("bench", uri, "--rw", "write", *load)


@check("host: two subsystems, many deep queues, at once")
def many_queues(bench):
    target = bench.target("one=mem:64MiB", "two=mem:64MiB")
    names = [target.export(n)["nqn"] for n in ("one", "two")]
    bench.guest.run(f"""
        for nqn in {' '.join(names)}; do
            attach $nqn {target.port} --nr-io-queues=2 --nr-write-queues=2 --nr-poll-queues=1 --queue-size=128
            fio --direct=1 --ioengine=libaio --filename=$DEV --verify=crc32c --verify_fatal=1 --name=v \\
                --rw=randwrite --bs=4k --size=2m --iodepth=128 --numjobs=2 --offset_increment=16m > /tmp/fio$DEV_N 2>&1 &
            jobs="$jobs $!"
        done
        for job in $jobs; do wait $job || {{ cat /tmp/fio*; exit 1; }}; done
    """.replace("$DEV_N", ".${DEV##*/}"))
