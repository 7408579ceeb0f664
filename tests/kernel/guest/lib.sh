# Words for the scripts that tests run in the guest. Sourced before each.

# until_true SECONDS COMMAND...: waits until COMMAND succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "waited in vain for: $*"; return 1; }
        sleep 0.1
    done
}

# block_device NQN [NSID]: prints the block device of a connected namespace.
block_device() {
    local b
    for b in /sys/block/nvme*; do
        [ "$(cat "$b/device/subsysnqn" 2> /dev/null)" = "$1" ] || continue
        [ "$(cat "$b/nsid" 2> /dev/null || echo "${b##*n}")" = "${2:-1}" ] || continue
        [ "$(cat "$b/hidden" 2> /dev/null)" = 1 ] && continue
        [ -b "/dev/${b##*/}" ] && echo "/dev/${b##*/}" && return 0
    done
    return 1
}

# no_schedulers: remote disks get their I/O as it comes.
no_schedulers() {
    local s
    for s in /sys/block/nvme*/queue/scheduler /sys/block/sd*/queue/scheduler; do
        [ ! -e "$s" ] || [ "$(cat "$s")" = none ] || echo none > "$s"
    done
}

# controller NQN: prints the controller's character device.
controller() {
    local c
    for c in /sys/class/nvme/nvme*; do
        [ "$(cat "$c/subsysnqn" 2> /dev/null)" = "$1" ] && echo "/dev/${c##*/}" && return 0
    done
    return 1
}

# attach NQN PORT [nvme-connect options]: connects to the test's machine, and
# sets DEV and CTRL when the namespace is there.
attach() {
    local nqn=$1 port=$2
    shift 2
    nvme connect -t tcp -a 10.0.2.2 -s "$port" -n "$nqn" --keep-alive-tmo=30 "$@" || return 1
    until_true 60 block_device "$nqn" > /dev/null || return 1
    DEV=$(block_device "$nqn")
    CTRL=$(controller "$nqn")
}

# detach NQN: disconnects, and waits until the device is gone.
detach() {
    nvme disconnect -n "$1" > /dev/null
    until_true 60 gone "$1"
}
gone() { ! block_device "$1" > /dev/null; }

# state_is NQN STATE: whether the controller is in STATE (live, connecting, …).
state_is() { [ "$(cat "/sys/class/nvme/$(basename "$(controller "$1")")/state" 2> /dev/null)" = "$2" ]; }

# failed_reconnects: prints how often a host found no target since the kernel's log was cleared.
failed_reconnects() { dmesg | grep -c 'Failed reconnect attempt'; }
failed_reconnects_are() { [ "$(failed_reconnects)" -ge "$1" ]; }

# sectors_are DEV N: whether the device has N sectors of 512 bytes.
sectors_are() { [ "$(cat "/sys/block/${1##*/}/size")" = "$2" ]; }

# repair FS DEVICE: says whether a file system is clean; changes nothing.
repair() {
    case $1 in
    xfs) if [ -b "$2" ]; then xfs_repair -n "$2"; else xfs_repair -n -f "$2"; fi ;;
    ext4) e2fsck -f -n "$2" ;;
    esac
}

# running NAME: whether such a process runs; zombies of background jobs do not count.
running() {
    local pid
    for pid in $(pgrep -x "$1"); do
        grep -q '^State:.*zombie' "/proc/$pid/status" || return 0
    done
    return 1
}

# is_idle: whether no longhaul runs.
is_idle() { ! running longhaul; }

# tls_tool PROGRAM [ARGUMENT...]: runs nvme or tlshd of a release that knows TLS.
tls_tool() { /opt/tls/ld.so --library-path /opt/tls/lib "/opt/tls/$1" "${@:2}"; }

# with_tls: starts tlshd, which goes through the handshakes of TLS for the kernel; its log is /tmp/tlshd.log.
# From then on, nvme is one that knows TLS.
with_tls() {
    nvme() { tls_tool nvme "$@"; }
    [ ! -e /run/tlshd.pid ] || return 0
    # As the package has it, but for the log: the kernel names the keyring.
    printf '[debug]\nloglevel=3\ntls=0\nnl=0\n[authenticate]\n' > /etc/tlshd.conf
    setsid /opt/tls/ld.so --library-path /opt/tls/lib /opt/tls/tlshd -s -c /etc/tlshd.conf \
        > /tmp/tlshd.log 2>&1 < /dev/null &
    echo $! > /run/tlshd.pid
    disown
    until_true 60 tlshd_listens
}
# tlshd_listens: whether a process listens on generic netlink, whose number is 16.
tlshd_listens() { awk '$2 == 16 && $4 !~ /^0*$/ { found = 1 } END { exit !found }' /proc/net/netlink; }

# without_tls: ends tlshd, and forgets all keys.
without_tls() {
    kill -KILL -- "-$(cat /run/tlshd.pid)"
    rm /run/tlshd.pid
    keyctl clear %keyring:.nvme
}

# add_psk IDENTITY HEX: adds a derived key to the keyring of NVMe.
add_psk() {
    # shellcheck disable=SC2059
    printf "$(sed 's/../\\x&/g' <<< "$2")" | keyctl padd psk "$1" %keyring:.nvme > /dev/null
}

# clean_up: what one check leaves is not there for the next.
clean_up() {
    local m
    pkill -KILL -x 'longhaul|iperf3'
    for m in $(grep -o ' /mnt[^ ]*' /proc/mounts); do umount -l "$m"; done
    nvme disconnect-all > /dev/null 2>&1
    nvmet clear
    [ ! -e /run/tlshd.pid ] || without_tls
    if running 'tgtd|iscsid'; then iscsi clear > /dev/null 2>&1; fi
    rm -rf /tmp/* /root/*
    dmesg --clear
}
