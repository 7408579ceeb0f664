"""Two heads of one array: the kernel's multipath goes on by itself at the one that takes over."""

from checks.restart import LOAD, PATIENT
from peer.suite import check, free_port, require

NQN = "nqn.2014-08.org.example:standby"

# Prints the ANA state of each path to the namespace, in one line.
STATES = "cat /sys/block/nvme*c*n*/ana_state | sort | tr '\\n' ' '"


@check("standby: a head is killed under load, and the host goes on at the other one without an error")
def goes_on(bench):
    names = ("a", "b", "c")
    members = bench.target(*(f"{name}=file:{bench.new_file(name)},size=64MiB" for name in names))
    devices = [word for name in names for word in ("--device", members.export(name)["uri"])]
    homes = [bench.new_file(host) for host in ("one", "two")]
    environments = [{"XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(home)} for home in homes]
    for home in homes:
        home.mkdir()
    bench.longhaul.run("array", "create", "s", "--layout", "parity", *devices, environment=environments[0])
    bench.longhaul.run("array", "assemble", *devices, environment=environments[1])
    ports = [free_port(), free_port()]
    heads = [
        bench.target(f"s=array:s,nqn={NQN},standby", port=port, options=("--discovery", "none"), environment=environment)
        for port, environment in zip(ports, environments)
    ]
    job = bench.guest.start(f"""
        set -e
        attach {NQN} {ports[0]} {PATIENT}
        nvme connect -t tcp -a 10.0.2.2 -s {ports[1]} -n {NQN} {PATIENT} > /dev/null
        both() {{ [ "$({STATES})" = "inaccessible optimized " ]; }}
        until_true 60 both
        echo "two paths"
        {LOAD}
        detach {NQN}
    """)
    try:
        job.wait_output("pass 1 done", 400)
        heads[0].kill()
        job.wait_output("pass 3 done", 400)
        states = bench.guest.run(STATES)
        require(states.split().count("optimized") >= 1, states)
    finally:
        if job.status is None:
            bench.guest.run("rm -f /tmp/go")
    out = job.wait(400)
    log = bench.guest.run("dmesg | grep -iE 'I/O error|Buffer I/O|critical|[Dd]uplicate' || true")
    require(not log.strip(), log)
    return f"{out.count('done')} passes"
