"""Devices as local ones in a stock kernel: each way there is, and loads that know what must be there."""

from peer.suite import Skip, check, require

from checks.host import MAKE

# Steps of fsx, workers of stress and changes of each: emulation is slow.
STEPS, WORKERS, CHANGES = 150, 2, 100
SEED = 9

# The kernel's own ways to a device that longhaul serves.
WAYS = {"nvme": "/dev/nvme-fabrics", "nbd": "/dev/nbd0", "ublk": "/dev/ublk-control"}


def serve(bench):
    target = bench.target(f"disk=file:{bench.new_file('disk.img')},size=512MiB")
    return target, target.export("disk")["nqn"], f"nvme+tcp://10.0.2.2:{target.port}/disk"


def torture(fs, mount, umount, device):
    """A script: loads a file system, checks it unmounted, and what is in it."""
    return f"""
        {mount}
        longhaul-torture fsx /mnt/file {SEED} {STEPS}
        mkdir /mnt/trees
        longhaul-torture stress /mnt/trees {SEED} {WORKERS} {CHANGES}
        {umount}
        repair {fs} {device}
        {mount}
        longhaul-torture stress-check /mnt/trees {SEED} {WORKERS} {CHANGES}
        {umount}
    """


def by_kernel(bench, fs):
    """On the kernel's own NVMe host."""
    target, nqn, _ = serve(bench)
    bench.install(bench.torture)
    bench.guest.run(f"""
        attach {nqn} {target.port}
        {MAKE[fs]} $DEV
        {torture(fs, 'mount $DEV /mnt', 'umount /mnt', '$DEV')}
        detach {nqn}
    """, 600)


def by_longhaul(bench, fs):
    """Through `longhaul mount`, as where there is nothing but FUSE."""
    _, _, uri = serve(bench)
    bench.install(bench.longhaul.binary, bench.torture)
    check_it = f"""
        longhaul attach {uri} --at /tmp/disk --via fuse
        repair {fs} /tmp/disk
        longhaul detach /tmp/disk
    """
    script = torture(fs, f"longhaul mount {uri} /mnt --via fuse", "longhaul umount /mnt", "DEVICE")
    bench.guest.run(f"longhaul mkfs --fs {fs} {uri}\n" + script.replace(f"repair {fs} DEVICE", check_it), 600)


def lacks(bench, way):
    """Whether this kernel has no such way; then it is to be said which, and with what to do."""
    bench.install(bench.longhaul.binary)
    if bench.guest.run(f"test -e {WAYS[way]} && echo there || true").strip() == "there":
        return False
    said = bench.guest.run(f"longhaul attach mem:16MiB --at /tmp/none --via {way} 2>&1 && exit 9 || true")
    require(WAYS[way] in said and "modprobe" in said, f"{way}: {said}")
    return True


def by_way(bench, fs, way):
    """Through `longhaul mount --via`: the kernel's NVMe host on a target of ours, its NBD client, or ublk."""
    if lacks(bench, way):
        raise Skip(f"this kernel has no {way}")
    _, _, uri = serve(bench)
    bench.install(bench.torture)
    check_it = f"""
        longhaul attach {uri} --at /tmp/disk --via {way}
        [ -b /tmp/disk ]
        repair {fs} /tmp/disk
        longhaul detach /tmp/disk
    """
    mount = f"longhaul mount {uri} /mnt --via {way}"
    script = torture(fs, mount, "longhaul umount /mnt", "DEVICE").replace(f"repair {fs} DEVICE", check_it)
    bench.guest.run(f"longhaul mkfs --fs {fs} {uri}\n{script}", 600)


def ends(bench, way):
    """Refused in use, told to end, unmounted by others, killed."""
    if lacks(bench, way):
        raise Skip(f"this kernel has no {way}")
    _, _, uri = serve(bench)
    out = bench.guest.run(f"""
        longhaul mkfs --fs ext4 --force {uri}
        longhaul attach {uri} --at /tmp/disk --via {way}
        DEV=$(readlink /tmp/disk)
        # In use by a file system that others mounted: refused, and named.
        mount $DEV /mnt
        echo content > /mnt/file
        if longhaul detach /tmp/disk; then exit 9; fi
        longhaul attach --list
        # Told to end, it goes out of sight and ends with its last user.
        kill -TERM $(pgrep -x longhaul)
        until_true 60 test ! -e /tmp/disk
        umount /mnt
        until_true 60 is_idle
        # Mounted by us and unmounted by others.
        longhaul mount {uri} /mnt --via {way}
        [ $(cat /mnt/file) = content ]
        umount /mnt
        until_true 60 is_idle
        # Killed: named, and cleared.
        longhaul attach {uri} --at /tmp/disk --via {way}
        kill -KILL $(pgrep -x longhaul)
        until_true 60 is_idle
        longhaul attach --list | grep lost
        longhaul detach /tmp/disk
        [ ! -L /tmp/disk ]
        longhaul attach {uri} --at /tmp/disk --via {way} --read-only
        [ $(cat /sys/block/$(basename $(readlink /tmp/disk))/ro) = 1 ]
        longhaul detach /tmp/disk
    """, 600)
    require("/mnt" in out, f"{way}: the list does not say who uses it:\n{out}")


def killed_under_a_file_system(bench, way):
    """SIGKILL of the process under a mounted XFS is as a power cut: what was synced is there."""
    if lacks(bench, way):
        raise Skip(f"this kernel has no {way}")
    _, _, uri = serve(bench)
    bench.install(bench.torture)
    bench.guest.run(f"""
        longhaul mkfs --fs xfs {uri}
        longhaul mount {uri} /mnt --via {way}
        longhaul-torture stress /mnt {SEED} {WORKERS} {CHANGES}
        sync -f /mnt
        dd if=/dev/zero of=/mnt/unsynced bs=64k count=16
        kill -KILL $(pgrep -x longhaul)
        # The kernel fails what it still has, and shuts the file system down.
        until_true 60 is_idle
        longhaul umount /mnt
        if grep -q ' /mnt ' /proc/mounts; then exit 9; fi
        longhaul mount {uri} /mnt --via {way}
        longhaul-torture stress-check /mnt {SEED} {WORKERS} {CHANGES}
        longhaul umount /mnt
        longhaul attach {uri} --at /tmp/disk --via {way}
        repair xfs /tmp/disk
        longhaul detach /tmp/disk
    """, 600)


def a_thousand_files(bench):
    """XFS on six striped devices, by the kernel's NVMe host on a target of ours: 1,000 files open at once."""
    if lacks(bench, "nvme"):
        raise Skip("this kernel has no nvme")
    target = bench.target(*(f"d{n}=file:{bench.new_file(f'd{n}.img')},size=128MiB" for n in range(6)))
    devices = "--layout stripe --stripe-unit 256KiB "
    devices += " ".join(f"nvme+tcp://10.0.2.2:{target.port}/d{n}" for n in range(6))
    bench.guest.run(f"""
        longhaul mkfs --fs xfs {devices}
        longhaul mount {devices} /mnt --via nvme
        fio --name=many --directory=/mnt --thread --numjobs=10 --nrfiles=100 --openfiles=100 --filesize=64k \
            --file_service_type=roundrobin --rw=write --bs=16k --ioengine=psync --direct=1 --verify=crc32c \
            --group_reporting
        [ $(ls /mnt | wc -l) = 1000 ]
        longhaul umount /mnt
        longhaul attach {devices} --at /tmp/disk --via nvme
        repair xfs /tmp/disk
        longhaul detach /tmp/disk
    """, 900)


for way in WAYS:
    check(f"attach: how a block device ends, --via {way}")(lambda bench, w=way: ends(bench, w))
    check(f"attach: xfs through longhaul mount --via {way}")(lambda bench, w=way: by_way(bench, "xfs", w))
    check(f"attach: ext4 through longhaul mount --via {way}")(lambda bench, w=way: by_way(bench, "ext4", w))

for way in WAYS:
    check(f"attach: a mounted XFS and SIGKILL, --via {way}")(lambda bench, w=way: killed_under_a_file_system(bench, w))
check("attach: a thousand files at once on six striped devices, --via nvme")(a_thousand_files)

for name in MAKE:
    check(f"attach: {name} on the kernel's host under fsx and stress")(lambda bench, fs=name: by_kernel(bench, fs))
    check(f"attach: {name} through longhaul mount under fsx and stress")(lambda bench, fs=name: by_longhaul(bench, fs))
