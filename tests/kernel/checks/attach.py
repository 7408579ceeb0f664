"""Devices as local ones in a stock kernel: each way there is, and loads that know what must be there."""

from peer.suite import check

from checks.host import MAKE

# Steps of fsx, workers of stress and changes of each: emulation is slow.
STEPS, WORKERS, CHANGES = 150, 2, 100
SEED = 9


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
    """Through `longhaul mount`."""
    _, _, uri = serve(bench)
    bench.install(bench.longhaul.binary, bench.torture)
    check_it = f"""
        longhaul attach {uri} --at /tmp/disk
        repair {fs} /tmp/disk
        longhaul detach /tmp/disk
    """
    script = torture(fs, f"longhaul mount {uri} /mnt", "longhaul umount /mnt", "DEVICE")
    bench.guest.run(f"longhaul mkfs --fs {fs} {uri}\n" + script.replace(f"repair {fs} DEVICE", check_it), 600)


for name in MAKE:
    check(f"attach: {name} on the kernel's host under fsx and stress")(lambda bench, fs=name: by_kernel(bench, fs))
    check(f"attach: {name} through longhaul mount under fsx and stress")(lambda bench, fs=name: by_longhaul(bench, fs))
