"""A bad night: the target dies, the cable is pulled, and no program sees an I/O error."""

from peer.suite import check, free_port, require

# Reconnect soon and for long; notice a dead path soon.
PATIENT = "--reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5"

# A verifying load that runs until the file it is told about is gone.
LOAD = """
    touch /tmp/go
    pass=0
    while [ -e /tmp/go ] || [ $pass -lt 2 ]; do
        fio --direct=1 --ioengine=libaio --filename=$DEV --name=v --rw=randwrite --bs=16k \\
            --size=24m --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_backlog=64 --randseed=$pass \\
            --output=/tmp/fio.$pass || { cat /tmp/fio.$pass; exit 1; }
        grep -q 'err= 0' /tmp/fio.$pass
        pass=$((pass + 1))
        echo "pass $pass done"
    done
"""


def survives(bench, disturb, export=None):
    """Runs the load while `disturb(target, restart)` happens twice."""
    image = bench.new_file("disk.img")
    export = export or f"disk=file:{image},size=64MiB"
    port = free_port()
    target = bench.target(export, port=port)
    nqn = target.export("disk")["nqn"]
    job = bench.guest.start(f"set -e\nattach {nqn} {port} {PATIENT}\n{LOAD}\ndetach {nqn}")
    try:
        for n in (1, 2):
            job.wait_output(f"pass {n} done", 300)
            target = disturb(bench, target, export, port, nqn)
    finally:
        if job.status is None:
            bench.guest.run("rm -f /tmp/go")
    out = job.wait(400)
    log = bench.guest.run("dmesg | grep -iE 'I/O error|Buffer I/O|critical' || true")
    require("I/O error" not in log, log)
    return f"{out.count('done')} passes"


def restarted(stop):
    """A disturbance: `stop` the target, start it on the same port once it was missed."""

    def disturb(bench, target, export, port, nqn):
        missed = bench.guest.run("failed_reconnects || true")
        stop(target)
        stay_away(bench, int(missed))
        new = bench.target(export, port=port)
        bench.guest.run(f"until_true 90 state_is {nqn} live")
        return new

    return disturb


def stay_away(bench, missed):
    """Waits until the host, that has `missed` a target so often, has done so twice more."""
    bench.guest.run(f"until_true 120 failed_reconnects_are {missed + 2}")


def terminate(target):
    require(target.term() == 0, f"the target did not end with 0 on SIGTERM: {target.said()}")


@check("restart: SIGKILL under load, without an I/O error")
def killed(bench):
    return survives(bench, restarted(lambda target: target.kill()))


@check("restart: SIGTERM under load, without an I/O error")
def terminated(bench):
    return survives(bench, restarted(terminate))


@check("restart: the cable pulled and plugged under load, without an I/O error")
def unplugged(bench):
    def disturb(bench, target, export, port, nqn):
        bench.guest.cable(False)
        bench.guest.run(f"until_true 90 state_is {nqn} connecting")
        bench.guest.cable(True)
        bench.guest.run(f"until_true 90 state_is {nqn} live")
        return target

    return survives(bench, disturb)


@check("restart: a mounted XFS lives through SIGKILL of the target")
def mounted(bench):
    image = bench.new_file("disk.img")
    export, port = f"disk=file:{image},size=512MiB", free_port()
    target = bench.target(export, port=port)
    nqn = target.export("disk")["nqn"]
    bench.guest.run(f"""
        attach {nqn} {port} {PATIENT}
        mkfs.xfs -q $DEV
        mount $DEV /mnt
        head -c 16M /dev/urandom > /mnt/before
        sync
    """)
    target.kill()
    job = bench.guest.start("""
        set -e
        head -c 16M /dev/urandom > /mnt/during
        (cd /mnt && sha256sum before during) > /tmp/sums
        sync
        echo synced
    """)
    stay_away(bench, 0)
    bench.target(export, port=port)
    require("synced" in job.wait(), "the write did not end")
    bench.guest.run(f"""
        DEV=$(block_device {nqn})
        umount /mnt
        echo 3 > /proc/sys/vm/drop_caches
        xfs_repair -n $DEV
        mount $DEV /mnt
        (cd /mnt && sha256sum -c /tmp/sums)
        umount /mnt
        detach {nqn}
    """)
