"""Reservations by two hosts of one kernel: every type, preempting, aborting, keys that change, clearing."""

import json

from peer.suite import check, free_port, require

# Two hosts, each with a controller of its own, at a port of its own: nvme-cli connects to one only once. The
# commands go to a controller and not to the disk, which has a path by either.
HOSTS = """
    host() { echo "--hostnqn=nqn.2014-08.org.example:$1 --hostid=00000000-0000-4000-8000-00000000000$2"; }
    live() { [ "$(cat /sys/class/nvme/${1##*/}/state)" = live ]; }
    other() {
        local c
        for c in /sys/class/nvme/nvme*; do
            [ "$(cat $c/subsysnqn)" = "$1" ] && [ "/dev/${c##*/}" != "$A" ] && B=/dev/${c##*/}
        done
        [ -n "$B" ] && live $B
    }
    # both NQN PORT PORT: sets A and B.
    both() {
        attach $1 $2 $(host a 1) > /dev/null
        A=$CTRL
        nvme connect -t tcp -a 10.0.2.2 -s $3 -n $1 --keep-alive-tmo=30 --reconnect-delay=1 $(host b 2) > /dev/null
        until_true 60 other $1
        LAST=$((4096 / $(blockdev --getss $DEV) - 1))
        head -c 4096 /dev/urandom > /tmp/block
    }
    io() { nvme io-passthru $1 --namespace-id=1 --data-len=4096 --cdw12=$LAST "${@:2}"; }
    writes() { io $1 --opcode=1 --write --input-file=/tmp/block > /tmp/out 2>&1; }
    reads() { io $1 --opcode=2 --read --raw-binary > /tmp/read 2> /tmp/out && cmp /tmp/read /tmp/block; }
    # conflicts COMMAND...: it ends with Reservation Conflict, and with no other error.
    conflicts() {
        if "$@" > /tmp/out 2>&1; then echo "no conflict: $*"; return 1; fi
        grep -qi 'reservation conflict' /tmp/out || { echo "$*:"; cat /tmp/out; return 1; }
    }
    # The words of nvme-cli, at a controller.
    register() { nvme resv-register $1 --namespace-id=1 "${@:2}"; }
    acquire() { nvme resv-acquire $1 --namespace-id=1 "${@:2}"; }
    release() { nvme resv-release $1 --namespace-id=1 "${@:2}"; }
    report() { nvme resv-report $1 --namespace-id=1 --eds -o json | tr -d '\\n'; echo; }
    # Kind of the oldest notice for a host: 1 its registration was preempted, 2 the reservation was
    # released, 3 its reservation was preempted.
    notice() { nvme get-log $1 --log-id=0x80 --log-len=64 --raw-binary | od -An -tu1 -j8 -N1 | tr -d ' '; }
    is() { [ "$1" = "$2" ] || { echo "$3: $1 instead of $2"; return 1; }; }
"""

# What a registrant, and a host that is none, may do: r(ead), w(rite).
ACCESS = {1: ("r", "r"), 2: ("", ""), 3: ("rw", "r"), 4: ("rw", ""), 5: ("rw", "r"), 6: ("rw", "")}


def tried(access):
    """The host B has this access."""
    read, write = ("" if way in access else "conflicts " for way in "rw")
    return f"{read}reads $B; {write}writes $B"


def reported(line):
    """Type, and the key of each registrant, and whether it holds the reservation, by its host."""
    said = json.loads(line)
    registrants = said.get("regctlext") or said.get("regctl_ext") or []
    hosts = {str(one["hostid"])[-1]: (one["rkey"], one["rcsts"] & 1) for one in registrants}
    return said["rtype"], hosts


@check("host: each type of reservation lets two hosts do what it says")
def types(bench):
    second = free_port()
    target = bench.target("disk=mem:64MiB", options=("--listen", f"127.0.0.1:{second}"))
    nqn = target.export("disk")["nqn"]
    steps = "\n".join(
        f"""
        acquire $A --crkey=17 --rtype={kind} --racqa=0 > /dev/null
        writes $A; reads $A
        {tried(stranger)}
        register $B --nrkey=34 --rrega=0 > /dev/null
        {tried(registrant)}
        register $B --crkey=34 --rrega=1 > /dev/null
        release $A --crkey=17 --rtype={kind} --rrela=0 > /dev/null
        writes $B; reads $B
        """
        for kind, (registrant, stranger) in ACCESS.items()
    )
    bench.guest.run(f"""
        set -e
        {HOSTS}
        both {nqn} {target.port} {second}
        register $A --nrkey=17 --rrega=0 > /dev/null
        {steps}
        detach {nqn}
    """)
    return f"{len(ACCESS)} types"


@check("host: preempts, preempts and aborts, replaces a key, and clears")
def two_hosts(bench):
    second = free_port()
    export = f"disk=file:{bench.new_file('reserved.img')},size=64MiB"
    target = bench.target(export, options=("--listen", f"127.0.0.1:{second}"))
    nqn = target.export("disk")["nqn"]
    out = bench.guest.run(f"""
        set -e
        {HOSTS}
        both {nqn} {target.port} {second}
        conflicts acquire $A --crkey=17 --rtype=1 --racqa=0
        register $A --nrkey=17 --rrega=0 > /dev/null
        acquire $A --crkey=17 --rtype=1 --racqa=0 > /dev/null
        register $B --nrkey=34 --rrega=0 > /dev/null
        conflicts acquire $B --crkey=34 --rtype=1 --racqa=0
        conflicts acquire $B --crkey=34 --prkey=99 --rtype=1 --racqa=1
        writes $A; conflicts writes $B
        echo "reserved $(report $A)"

        acquire $B --crkey=34 --prkey=17 --rtype=1 --racqa=1 > /dev/null
        is "$(notice $A)" 1 "the first notice"
        is "$(notice $A)" 3 "the second notice"
        is "$(notice $A)" 0 "a further notice"
        writes $B; conflicts writes $A
        conflicts release $A --crkey=17 --rtype=1 --rrela=0
        echo "preempted $(report $B)"

        register $A --nrkey=51 --rrega=0 > /dev/null
        acquire $A --crkey=51 --prkey=34 --rtype=2 --racqa=2 > /dev/null
        # Its queues have ended, and it makes new ones.
        until_true 90 live $B
        until_true 90 conflicts writes $B > /dev/null
        conflicts reads $B
        writes $A; reads $A
        echo "aborted $(report $A)"

        conflicts register $A --crkey=17 --nrkey=68 --rrega=2
        register $A --crkey=51 --nrkey=68 --rrega=2 > /dev/null
        conflicts release $A --crkey=51 --rtype=2 --rrela=0
        register $B --iekey --nrkey=85 --rrega=2 > /dev/null
        conflicts writes $B
        echo "replaced $(report $A)"

        conflicts release $B --crkey=34 --rtype=0 --rrela=1
        release $B --crkey=85 --rtype=0 --rrela=1 > /dev/null
        is "$(notice $A)" 3 "the notice of a clear"
        writes $A; writes $B; reads $A; reads $B
        echo "cleared $(report $A)"

        for sel in 0 1 2 3; do
            nvme get-feature $A --feature-id=0x82 --namespace-id=1 --sel=$sel > /dev/null
            nvme get-feature $A --feature-id=0x83 --namespace-id=1 --sel=$sel > /dev/null
        done
        nvme get-feature $A --feature-id=0x83 --namespace-id=1 --sel=3 | grep -qi '0x0*6'
        nvme set-feature $A --feature-id=0x83 --namespace-id=1 --value=1 > /dev/null
        echo "persists $(report $A)"
        detach {nqn}
    """)
    said = dict(line.split(" ", 1) for line in out.splitlines() if line.partition(" ")[2].startswith("{"))
    wanted = {
        "reserved": (1, {"1": (17, 1), "2": (34, 0)}),
        "preempted": (1, {"2": (34, 1)}),
        "aborted": (2, {"1": (51, 1)}),
        "replaced": (2, {"1": (68, 1), "2": (85, 0)}),
        "cleared": (0, {}),
    }
    for moment, expected in wanted.items():
        require(reported(said[moment]) == expected, f"{moment}: {said[moment]}")
    require(json.loads(said["persists"])["ptpls"] == 1, said["persists"])
