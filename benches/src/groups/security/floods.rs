//! What a host keeps of its rate while connections from another address flood the target.

use super::super::memory_backend;
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::fabrics::ConnectData;
use longhaul_wire::pdu::{CapsuleCmd, CapsuleResp, CommonHeader, Format, IcReq, IcResp, PduType};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

/// The least share of the rate without a flood.
const FLOOR: f64 = 0.8;
const RATE: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(1);
const BS: u64 = 128 << 10;
const DEPTH: u32 = 16;
/// Flooding threads, and how long one waits for an answer.
const THREADS: usize = 8;
const PATIENCE: Duration = Duration::from_millis(500);
/// Silent connections that each of these threads keeps open.
const KEPT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    None,
    /// Connections that say nothing.
    Silent,
    /// Whole ICReqs, after which the connection is closed.
    Requests,
    /// Connects to a subsystem that is not there.
    Connects,
    /// The beginning of a TLS handshake.
    Hellos,
}

const FLOODS: [(Flood, &str); 5] = [
    (Flood::None, "none"),
    (Flood::Silent, "connections that say nothing"),
    (Flood::Requests, "ICReqs without end"),
    (Flood::Connects, "Connects that are refused"),
    (Flood::Hellos, "what begins as a TLS handshake"),
];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("floods", &["flood", "a second", "host, MB/s", "of the rate without a flood", "≥ 0.8"]);
    let link = Link::start(Conditions::new(RTT, Some(RATE)), Some(1))?;
    let here =
        Setup { ramp: Duration::from_secs(1), runtime: Duration::from_secs(3), ..link.setup(setup, 1) };
    let engine = here.engines.first().context("no engine to measure with")?;
    let target = Target::start(&here, engine, &memory_backend(&here), &[])?;
    let at: SocketAddr = target.address().context("the target listens nowhere")?.parse()?;
    let there = link.server(1).clone();
    let measured = here.interleave(&FLOODS, |(flood, name)| {
        let (ended, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin = Instant::now();
        let measured = std::thread::scope(|scope| {
            if *flood != Flood::None {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        // In the namespace of the target, by an address that is not the host's.
                        there.run(|| flood_target(*flood, at, &ended, &done))
                    });
                }
            }
            let load = Load::new("read", BS, DEPTH);
            let result = program::load(&here, engine, &target.uri, &load, Some(&target), &[]);
            ended.store(true, Ordering::SeqCst);
            result
        })?;
        let rate = done.load(Ordering::SeqCst) as f64 / begin.elapsed().as_secs_f64();
        eprintln!("  {name}: {:.0} MB/s, {rate:.0} a second", measured.rate / 1e6);
        Ok((measured.rate, rate))
    })?;
    let plain = Samples::of(&measured[0], |(rate, _)| *rate);
    for ((flood, name), measured) in FLOODS.iter().zip(&measured) {
        let (rates, floods) = (Samples::of(measured, |m| m.0), Samples::of(measured, |m| m.1));
        let ratio = rates.ratio(&plain);
        let is_none = *flood == Flood::None;
        section.keep(name, "host", "bytes/s", &rates);
        section.row(vec![
            (*name).to_owned(),
            if is_none { "–".to_owned() } else { floods.show(1.0, 0) },
            rates.show(1e6, 0),
            if is_none { "–".to_owned() } else { ratio.show_ratio() },
            if is_none { "–" } else { ratio.at_least(FLOOR) }.to_owned(),
        ]);
    }
    section.notes.push(format!(
        "The host reads blocks of {} KiB, {DEPTH} at a time, over {} and {}; {THREADS} threads flood the target on \
         its own machine, from its own address, as fast as they can: they also take processor time of the two \
         that there are. Connections that say nothing are kept, {KEPT} by each thread",
        BS >> 10,
        link::rate(RATE),
        link::round_trip(RTT)
    ));
    section.commands = super::super::commands(
        &here,
        &memory_backend(&here),
        " --insecure",
        "--rw read --bs 128KiB --iodepth 16",
    );
    Ok(section)
}

/// Floods until the end.
fn flood_target(flood: Flood, at: SocketAddr, ended: &AtomicBool, done: &AtomicU64) {
    let mut kept = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let Ok(mut stream) = TcpStream::connect_timeout(&at, PATIENCE) else { continue };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let sent = match flood {
            Flood::None => return,
            Flood::Silent => Ok(()),
            Flood::Requests => stream.write_all(IcReq::new(0, 0, 0).as_bytes()),
            Flood::Connects => connect(&mut stream),
            // A record of a handshake, and half of a hello.
            Flood::Hellos => stream.write_all(&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]),
        };
        if sent.is_ok() {
            done.fetch_add(1, Ordering::Relaxed);
        }
        if flood == Flood::Silent {
            kept.push(stream);
            if kept.len() > KEPT {
                kept.remove(0);
            }
        }
    }
}

/// An ICReq, and a Connect that the target refuses: its data names no subsystem.
fn connect(stream: &mut TcpStream) -> std::io::Result<()> {
    let data = ConnectData::new(
        Uuid::nil(),
        0xFFFF,
        "nqn.2014-08.org.example:nothing",
        "nqn.2014-08.org.example:stranger",
    );
    let len = ConnectData::LEN as u32;
    let (common, _) = CommonHeader::build(PduType::CapsuleCmd, 0, len, Format::default());
    let sqe = Sqe::connect(0, 31, 0, 0).with_sgl(Sgl::in_capsule(0, len)).to_bytes();
    stream.write_all(IcReq::new(0, 0, 0).as_bytes())?;
    stream.read_exact(IcResp::new_zeroed().as_mut_bytes())?;
    stream.write_all(&[CapsuleCmd { common, sqe }.as_bytes(), data.as_bytes()].concat())?;
    stream.read_exact(CapsuleResp::new_zeroed().as_mut_bytes())
}
