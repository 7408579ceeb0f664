"""File systems in pools on namespaces of the kernel's target."""

from peer.suite import GUEST_PORTS, check, require

NQN = "nqn.2014-08.org.example:kernel"
HOST = "nqn.2014-08.org.example:host"


@check("files: a file system on three namespaces of the kernel's target")
def on_nvmet(bench):
    state = bench.new_file("state")
    environment = {"XDG_STATE_HOME": str(state), "XDG_RUNTIME_DIR": str(state)}
    state.mkdir()

    def run(*args, status=0):
        return bench.longhaul.run(*args, "--hostnqn", HOST, status=status, environment=environment)

    ports = GUEST_PORTS[:3]
    for port in ports:
        bench.guest.run(f"nvmet serve {NQN}{port} 128 {port}")
    at = [f"127.0.0.1:{bench.port_to_guest(port)}/{NQN}{port}?nsid=1,domain={port}" for port in ports]
    catalog = f"file:{state}/catalog"
    run("pool", "create", "p", "--target", *at, "--catalog", catalog)
    run("fs", "create", "p/f", "--size", "64MiB", "--layout", "parity")
    source, back = bench.new_file("source"), bench.new_file("back")
    content = bytes((at * at >> 5) & 255 for at in range(1 << 16)) * 200
    source.write_bytes(content)
    run("cp", source, "fs:p/f/one")
    run("cp", source, "fs:p/f/two")
    run("cp", "fs:p/f/one", back)
    require(back.read_bytes() == content, "it reads something else than was written")
    # Parity makes up for one that is not served.
    subsystem, port = f"/sys/kernel/config/nvmet/subsystems/{NQN}{ports[1]}", f"/sys/kernel/config/nvmet/ports/{ports[1]}"
    bench.guest.run(f"rm {port}/subsystems/*")
    back.unlink()
    run("cp", "fs:p/f/two", back)
    require(back.read_bytes() == content, "it reads something else without one of them")
    bench.guest.run(f"ln -s {subsystem} {port}/subsystems/")
    run("fs", "scrub", "p/f")
    run("fs", "check", "p/f")
    run("fs", "rm", "p/f")
    run("pool", "destroy", "p")
