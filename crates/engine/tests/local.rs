//! Control sockets of a process without free descriptors. A program of its own, since its limit is lowered.

use longhaul_engine::net::connections;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;

fn limit(current: u64) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) })
        .expect("set");
}

#[test]
fn a_socket_without_descriptors_waits_for_some() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).expect("bound");
    let mut client = UnixStream::connect(&path).expect("the kernel takes it");
    let (told, until_told) = channel();
    let usual = getrlimit(Resource::Nofile).current.expect("a limit");
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            limit(0);
            listener.accept().expect_err("there is no descriptor");
            told.send(()).expect("the test waits");
            let mut accepted = connections(&listener);
            accepted.next().expect("a connection").write_all(b"x").expect("written");
            // The listener is shut down.
            assert!(accepted.next().is_none());
        });
        until_told.recv().expect("it tried");
        limit(usual);
        let mut byte = [0];
        client.read_exact(&mut byte).expect("answered");
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("shut down");
        accepting.join().expect("it ends");
    });
    let _ = client.shutdown(Shutdown::Both);
}
