//! Targets that hosts of the same network find without their addresses. It needs root and `/dev/net/tun`.

mod common;

use common::{PROGRAM, Target, emulated, finish, longhaul, until, within};
use longhaul_wan::{Conditions, Namespace, Wan, WanPlan};
use std::cell::RefCell;
use std::time::Duration;

const TARGET: &str = "10.79.0.1";
const HOST: &str = "10.79.0.2";

fn ip(namespace: &Namespace, args: &str) -> bool {
    let args: Vec<&str> = args.split(' ').collect();
    let ran = finish(within(namespace, "ip", &args).spawn().expect("started"));
    if ran.code != Some(0) {
        longhaul_skip::skip!("ip {args:?}: {}", ran.stderr.trim());
    }
    ran.code == Some(0)
}

/// Two namespaces with an Ethernet link between them, beside the emulated one, which carries no multicasts.
fn network() -> Option<Wan> {
    let wan =
        emulated(WanPlan::new(WanPlan::unique_name("d"), Conditions::new(Duration::from_millis(1), None)))?;
    let (target, host) = (wan.server(1), wan.client());
    let made = ip(target, &format!("link add mdns0 type veth peer name mdns0 netns {}", host.name()))
        && [(target, TARGET), (host, HOST)].iter().all(|(namespace, address)| {
            ip(namespace, &format!("address add {address}/24 dev mdns0"))
                && ip(namespace, "link set mdns0 up")
        });
    made.then_some(wan)
}

#[test]
fn a_host_finds_the_exports_of_its_network() {
    let Some(wan) = network() else { return };
    let listen = format!("{TARGET}:4420");
    let args = ["target", "--listen", &listen, "--discovery", "none", "--insecure", "--json", "--mdns"];
    let target = Target::spawn(within(
        wan.server(1),
        PROGRAM,
        &[&args[..], &["--export", "scratch=mem:8MiB"]].concat(),
    ));
    let discover = || {
        let args = ["discover", "--mdns", "--mdns-time", "3s", "--json"];
        finish(within(wan.client(), PROGRAM, &args).spawn().expect("started"))
    };
    let found = RefCell::new(None);
    // Interfaces that have just come up are looked for every few seconds.
    until("an answer", || {
        let ran = discover();
        assert!(matches!(ran.code, Some(0 | 5)), "{ran:?}");
        let is_found = ran.code == Some(0);
        found.replace(Some(ran));
        is_found
    });
    let events = found.take().expect("it ran").events();
    let uris: Vec<&str> = events.iter().filter_map(|event| event["uri"].as_str()).collect();
    assert!(uris.iter().any(|uri| uri.contains(TARGET) && uri.ends_with(":scratch")), "{events:?}");
    // It says goodbye.
    target.stop();
    let gone = discover();
    assert!(gone.code == Some(5) && gone.stderr.contains("--mdns"), "{gone:?}");
}

#[test]
fn an_address_that_others_do_not_reach_is_not_announced() {
    let args =
        ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--mdns", "--export", "a=mem:1MiB"];
    let refused = longhaul(&args);
    assert!(refused.code == Some(2) && refused.stderr.contains("--mdns announces"), "{refused:?}");
}
