"""nvme-cli on our target: what it asks and what it must be told."""

import json

from peer.suite import check, require

BLOCK = 4096


def connected(bench, script, export="disk=mem:64MiB", **options):
    """Runs `script` with the namespace connected; returns its output."""
    target = bench.target(export, **options)
    nqn = target.export("disk")["nqn"]
    return target, bench.guest.run(f"attach {nqn} {target.port} > /dev/null\n{script}\ndetach {nqn}")


@check("admin: Identify Controller says what we support")
def identify_controller(bench):
    target, out = connected(bench, "nvme id-ctrl $DEV -o json")
    c = json.loads(out)
    require(c["subnqn"] == target.export("disk")["nqn"], f"subnqn {c['subnqn']}")
    require(c["ioccsz"] * 16 - 64 == 1 << 20, f"in-capsule data of {c['ioccsz'] * 16 - 64} bytes by default, not 1 MiB")
    require(c["mdts"] == 0 or 1 << c["mdts"] << 12 >= 1 << 20, f"mdts {c['mdts']}: less than 1 MiB")
    require(c["cntrltype"] == 1, f"cntrltype {c['cntrltype']}")
    require(c["ver"] >= 0x10300, f"ver {c['ver']:#x}")
    for bit, name in ((0, "Compare"), (2, "Dataset Management"), (3, "Write Zeroes"), (7, "Verify")):
        require(c["oncs"] >> bit & 1, f"oncs {c['oncs']:#x} does not offer {name}")
    require(c["kas"] > 0, "no granularity of keep alive")
    require(c["oaes"] >> 8 & 1, "no namespace attribute notices")
    return f"mdts {c['mdts']}, ioccsz {c['ioccsz']}, oncs {c['oncs']:#x}"


@check("admin: Identify with --in-capsule 0 offers no more than the command")
def identify_without_in_capsule(bench):
    _, out = connected(bench, "nvme id-ctrl $DEV -o json", options=("--in-capsule", "0"))
    require(json.loads(out)["ioccsz"] == 4, f"ioccsz {json.loads(out)['ioccsz']}")


@check("admin: Identify Namespace, its descriptors and the lists")
def identify_namespace(bench):
    _, out = connected(bench, f"""
        nvme id-ns $DEV -o json > /tmp/ns
        nvme ns-descs $DEV -o json > /tmp/descs
        nvme list-ns $DEV -o json > /tmp/list
        nvme cmdset-ind-id-ns $DEV -n 1 -o json > /tmp/independent
        nvme nvm-id-ctrl $DEV > /tmp/nvm || true
        cat /sys/block/${{DEV##*/}}/wwid /sys/block/${{DEV##*/}}/uuid
        cat /tmp/ns; echo; echo ====; cat /tmp/descs; echo; echo ====; cat /tmp/list
    """)
    ids, rest = out.split("{", 1)
    namespace, descriptors, listed = ("{" + rest).split("====\n")
    ns = json.loads(namespace)
    lba = ns["lbafs"][ns["flbas"] & 0xF]["ds"]
    require(ns["nsze"] << lba == 64 << 20, f"nsze {ns['nsze']} blocks of 2^{lba} bytes is not 64 MiB")
    require(ns["nguid"].strip("0"), "no NGUID")
    wwid, uuid = ids.split()
    require(wwid.startswith("uuid.") and uuid in wwid, f"the kernel names it {wwid}, its UUID is {uuid}")
    require(uuid in descriptors, f"no UUID descriptor: {descriptors}")
    require("csi" in descriptors.lower(), f"no descriptor of the command set: {descriptors}")
    require("1" in listed, listed)
    return wwid


@check("admin: every log page that a host asks for")
def logs(bench):
    _, out = connected(bench, """
        nvme smart-log $DEV -o json > /tmp/smart
        nvme error-log $DEV -o json > /tmp/error
        nvme fw-log $DEV -o json
        nvme effects-log $DEV --csi=0 -o json > /tmp/effects
        nvme ana-log $DEV -o json > /tmp/ana
        nvme changed-ns-list-log $DEV -o json
        nvme supported-log-pages $DEV > /tmp/supported
        dd if=/dev/urandom of=$DEV bs=1M count=4 oflag=direct 2> /dev/null
        nvme smart-log $DEV -o json > /tmp/smart2
        echo ====; cat /tmp/smart; echo ====; cat /tmp/smart2; echo ====; cat /tmp/effects; echo ====; cat /tmp/ana
    """)
    _, smart, smart2, effects, ana = out.split("====\n")
    before, after = json.loads(smart), json.loads(smart2)
    require(before["critical_warning"] == 0 or before["critical_warning"].get("value") == 0, f"{before}")
    grown = int(after["host_write_commands"]) - int(before["host_write_commands"])
    require(grown >= 4, f"host_write_commands grew by {grown} after 4 writes")
    require("ADMIN_CMD" in effects.upper() or "ACS" in effects.upper(), effects)
    require("optimized" in ana.lower() or "ANA" in ana, ana)


@check("admin: Get and Set Features")
def features(bench):
    _, out = connected(bench, """
        nvme get-feature $CTRL -f 7
        nvme get-feature $CTRL -f 0x0b
        nvme get-feature $CTRL -f 0x0f
        nvme set-feature $CTRL -f 0x0b -v 0x100
        nvme get-feature $CTRL -f 0x0b
        # A feature that there is not is refused, and costs nothing.
        ! nvme get-feature $CTRL -f 0x7f
        # CAP, VS, CC and CSTS.
        for offset in 0 8 0x14 0x1c; do nvme get-property $CTRL -o $offset; done
        state_is $(cat /sys/class/nvme/${CTRL##*/}/subsysnqn) live
    """)
    require("0x000100" in out.lower() or "0x00000100" in out.lower(), out)


@check("admin: what there is not is refused with a status, and the connection lives")
def refused(bench):
    _, out = connected(bench, """
        status() { "$@" 2>&1 | grep -oE 'INVALID_[A-Z_]*|Invalid [A-Za-z ]*' | head -n 1; }
        echo "opcode: $(status nvme admin-passthru $CTRL --opcode=0xc1)"
        echo "io opcode: $(status nvme io-passthru $DEV --opcode=0x91 -n 1)"
        echo "log: $(status nvme get-log $CTRL --log-id=0xdf --log-len=512)"
        echo "cns: $(status nvme admin-passthru $CTRL --opcode=6 --cdw10=0x7f --data-len=4096 -r)"
        echo "namespace: $(status nvme admin-passthru $CTRL --opcode=6 -n 0xfffffff0 --data-len=4096 -r)"
        size=$(cat /sys/block/${DEV##*/}/queue/logical_block_size)
        echo "range: $(nvme read $DEV -s $((1 << 40)) -c 0 -z $size 2>&1 | head -n 2 | tr '\\n' ' ')"
        dd if=$DEV of=/dev/null bs=1M count=1 iflag=direct 2> /dev/null
    """)
    answers = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    for key, word in (("opcode", "opcode"), ("io opcode", "opcode"), ("cns", "field"), ("namespace", "namespace")):
        require(word in answers.get(key, "").lower(), f"{key}: {answers.get(key)!r}\n{out}")
    require("log" in answers["log"].lower() or "field" in answers["log"].lower(), out)
    require("range" in answers["range"].lower() or "LBA" in answers["range"], out)


@check("admin: list-subsys and list name us")
def lists(bench):
    target, out = connected(bench, "nvme list-subsys; nvme list -o json")
    require(target.export("disk")["nqn"] in out, out)
    require("live" in out, out)


@check("data: flush, write-zeroes, dsm, verify, fua")
def data_commands(bench):
    connected(bench, f"""
        size=$(cat /sys/block/${{DEV##*/}}/queue/logical_block_size)
        dd if=/dev/urandom of=/tmp/a bs={BLOCK} count=16
        dd if=/tmp/a of=$DEV bs={BLOCK} oflag=direct
        nvme flush $DEV -n 1
        blocks=$(({BLOCK} * 4 / size))
        nvme write-zeroes $DEV -n 1 -s $blocks -c $((blocks - 1))
        dd if=$DEV bs={BLOCK} skip=4 count=4 iflag=direct | cmp -n $((4 * {BLOCK})) - /dev/zero
        dd if=$DEV bs={BLOCK} count=4 iflag=direct | cmp -n $((4 * {BLOCK})) - /tmp/a
        nvme verify $DEV -n 1 -s 0 -c $((blocks - 1))
        nvme dsm $DEV -n 1 --ad --slbs=0 --blocks=$blocks
        dd if=$DEV bs={BLOCK} skip=8 count=8 iflag=direct > /tmp/b
        cmp -n $((8 * {BLOCK})) /tmp/b <(tail -c +$((8 * {BLOCK} + 1)) /tmp/a)
        nvme write $DEV -s 0 -c $((blocks - 1)) -z $((4 * {BLOCK})) --force-unit-access -d /tmp/a
        nvme read $DEV -s 0 -c $((blocks - 1)) -z $((4 * {BLOCK})) --force-unit-access -d /tmp/c
        cmp -n $((4 * {BLOCK})) /tmp/a /tmp/c
    """)


@check("data: compare tells equal from different")
def compares(bench):
    _, out = connected(bench, f"""
        size=$(cat /sys/block/${{DEV##*/}}/queue/logical_block_size)
        dd if=/dev/urandom of=/tmp/a bs={BLOCK} count=8
        dd if=/tmp/a of=$DEV bs={BLOCK} oflag=direct
        blocks=$((8 * {BLOCK} / size))
        nvme compare $DEV -s 0 -c $((blocks - 1)) -z $((8 * {BLOCK})) -d /tmp/a
        # One bit in the last block.
        head -c $((8 * {BLOCK} - 1)) /tmp/a > /tmp/b
        tail -c 1 /tmp/a | tr '\\000-\\377' '\\001-\\377\\000' >> /tmp/b
        if nvme compare $DEV -s 0 -c $((blocks - 1)) -z $((8 * {BLOCK})) -d /tmp/b; then exit 9; fi
    """)
    require("compare" in out.lower(), out)


@check("abort: a command that takes too long is aborted, and says so")
def abort(bench):
    # The tracepoint gives the queue and the identifier of the command that the
    # abort is to name. A Flush, for the kernel sends none of its own here.
    _, out = connected(bench, """
        cd /sys/kernel/tracing
        echo 1 > events/nvme/nvme_setup_cmd/enable
        (nvme flush $DEV -n 1 > /tmp/flush 2>&1; echo "flush ended with $?" >> /tmp/flush) &
        until_true 30 grep -q 'qid=[1-9].*nvme_cmd_flush' trace
        line=$(grep 'qid=[1-9].*nvme_cmd_flush' trace | tail -n 1)
        echo 0 > events/nvme/nvme_setup_cmd/enable
        qid=$(echo "$line" | grep -oE 'qid=[0-9]+' | cut -d= -f2)
        cid=$(echo "$line" | grep -oE 'cmdid=[0-9]+' | cut -d= -f2)
        began=$SECONDS
        nvme admin-passthru $CTRL --opcode=0x08 --cdw10=$((cid << 16 | qid))
        wait
        echo "took $((SECONDS - began)) s"
        cat /tmp/flush
        echo "a command that is not there:"
        nvme admin-passthru $CTRL --opcode=0x08 --cdw10=$((0xfff0 << 16 | qid))
    """, export="disk=mem:64MiB,delay=20s:ops=flush")
    require("ABORT" in out.upper() and "flush ended with 0" not in out, out)
    took = int(out.split("took ")[1].split()[0])
    require(took < 15, f"the Flush ended after {took} s, with its delay and not with the abort:\n{out}")
    results = [line.rsplit(":", 1)[1].strip() for line in out.splitlines() if "result" in line.lower()]
    require(len(results) == 2 and int(results[0], 16) & 1 == 0 and int(results[1], 16) & 1 == 1, f"{results}\n{out}")
    return f"ended {took} s after the abort"
