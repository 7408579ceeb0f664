"""nvme-cli and the kernel's host in a space of our target: namespaces made, attached, used, removed."""

from peer.suite import check, require

# The host NQN of the guest (peer/image.py).
GUEST = "nqn.2014-08.org.nvmexpress:uuid:5f4c0d3e-6c1a-4d55-9a0e-1f2b3c4d5e6f"
OTHER = "nqn.2014-08.org.example:other"


@check("space: a namespace is made, attached, used, detached and removed by nvme-cli")
def by_nvme_cli(bench):
    directory = bench.new_file("space")
    target = bench.target(options=("--space", f"fast=dir:{directory},size=1GiB", "--admin", GUEST))
    nqn = target.ready["spaces"][0]["nqn"]
    out = bench.guest.run(f"""
        nvme connect -t tcp -a 10.0.2.2 -s {target.port} -n {nqn} --keep-alive-tmo=30 > /dev/null
        CTRL=$(controller {nqn})
        cntlid=$(cat /sys/class/nvme/${{CTRL##*/}}/cntlid)
        nvme create-ns $CTRL --nsze=16384 --ncap=16384 --flbas=1 --nmic=1
        echo "allocated: $(nvme list-ns $CTRL --all | tr '\\n' ' ')"
        echo "active: $(nvme list-ns $CTRL | tr '\\n' ' ')"
        nvme attach-ns $CTRL -n 1 -c $cntlid
        until_true 60 block_device {nqn} > /dev/null
        DEV=$(block_device {nqn})
        until_true 60 sectors_are $DEV 131072
        echo "controllers: $(nvme list-ctrl $CTRL -n 1 | tr '\\n' ' ')"
        dd if=/dev/urandom of=/tmp/a bs=1M count=8 status=none
        dd if=/tmp/a of=$DEV bs=1M oflag=direct status=none
        dd if=$DEV bs=1M count=8 iflag=direct status=none | cmp - /tmp/a
        nvme detach-ns $CTRL -n 1 -c $cntlid
        until_true 60 gone {nqn}
        nvme attach-ns $CTRL -n 1 -c $cntlid
        until_true 60 block_device {nqn} > /dev/null
        DEV=$(block_device {nqn})
        dd if=$DEV bs=1M count=8 iflag=direct status=none | cmp - /tmp/a
        echo "too large: $(nvme create-ns $CTRL --nsze=1048576 --ncap=1048576 --flbas=1 2>&1 | tr '\\n' ' ')"
        nvme delete-ns $CTRL -n 1
        until_true 60 gone {nqn}
        echo "left: $(nvme list-ns $CTRL --all | tr '\\n' ' ')."
        nvme disconnect -n {nqn} > /dev/null
    """)
    answers = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    require("0x1" in answers.get("allocated", "") or "1" in answers.get("allocated", "").split(":")[-1], out)
    require(":0x1" not in answers.get("active", ""), f"seen before it was attached\n{out}")
    require("apacity" in answers.get("too large", "") or "CAPACITY" in answers.get("too large", ""), out)
    require(":0x1" not in answers.get("left", "") and "1" not in answers.get("left", ""), out)
    left = sorted(path.name for path in directory.iterdir())
    require(left == ["longhaul-space"], f"left in the directory: {left}")


@check("space: a namespace for another host is not seen, and one for this host comes and goes by event")
def masked(bench):
    directory = bench.new_file("space")
    admin = "nqn.2014-08.org.example:admin"
    target = bench.target(options=("--space", f"fast=dir:{directory}", "--admin", admin))
    nqn = target.ready["spaces"][0]["nqn"]
    space = f"nvme+tcp://127.0.0.1:{target.port}/{nqn}"
    who = ("--hostnqn", admin)
    bench.longhaul.run("ns", "create", space, "--size", "16MiB", "--thin", "--host", OTHER, *who)
    bench.guest.run(f"""
        nvme connect -t tcp -a 10.0.2.2 -s {target.port} -n {nqn} --keep-alive-tmo=30 > /dev/null
        CTRL=$(controller {nqn})
        nvme list-ns $CTRL > /tmp/none
        ! grep -q 0x /tmp/none
        ! nvme create-ns $CTRL --nsze=16 --ncap=16 --flbas=1
        ! nvme delete-ns $CTRL -n 1
    """)
    bench.longhaul.run("ns", "create", space, "--size", "32MiB", "--thin", "--host", GUEST, *who)
    bench.guest.run(f"until_true 60 block_device {nqn} 2 > /dev/null; ! block_device {nqn} 1")
    bench.longhaul.run("ns", "grow", f"{space}?nsid=2", "--size", "64MiB", *who)
    bench.guest.run(f"until_true 60 sectors_are $(block_device {nqn} 2) 131072")
    bench.longhaul.run("ns", "rm", f"{space}?nsid=2", *who)
    bench.guest.run(f"""
        none() {{ ! block_device {nqn} 2 > /dev/null; }}
        until_true 60 none
        nvme disconnect -n {nqn} > /dev/null
    """)
