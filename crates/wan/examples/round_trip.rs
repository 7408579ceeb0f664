//! How exact emulated round trips are: small datagrams, sent one at a time with
//! pauses, and one right after the other.
//!
//! `cargo run --release -p longhaul-wan --example round_trip` (needs root)

use longhaul_wan::{Conditions, Namespace, Wan, WanPlan};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Round trips for each row.
const COUNT: usize = 200;

/// Pause between those that are sent one at a time.
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:>9}  {:<12} {:>9} {:>9} {:>9} {:>9}  (ms)", "set", "", "least", "median", "mean", "p99");
    for micros in [0, 150, 1_000, 5_000, 15_000, 100_000] {
        let rtt = Duration::from_micros(micros);
        let plan = WanPlan::new(WanPlan::unique_name("rtt"), Conditions::new(rtt, Some(1_000_000_000)));
        let wan = Wan::start(plan)?;
        for (name, pause) in [("with pauses", PAUSE), ("in a row", Duration::ZERO)] {
            row(rtt, name, measure(&wan, pause)?);
        }
        let late = wan.statistics()?.late_p99();
        println!("{:>9}  handed over at most {:.1} µs late (p99)", "", late.as_secs_f64() * 1e6);
    }
    Ok(())
}

fn measure(wan: &Wan, pause: Duration) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let client = socket(wan.client(), wan.client_address(1))?;
    let server = socket(wan.server(1), wan.server_address(1))?;
    client.connect(server.local_addr()?)?;
    let echo = std::thread::spawn(move || -> io::Result<()> {
        let mut buf = [0; 64];
        for _ in 0..COUNT {
            let (len, from) = server.recv_from(&mut buf)?;
            server.send_to(&buf[..len], from)?;
        }
        Ok(())
    });
    let (mut all, mut buf) = (Vec::new(), [0; 64]);
    for _ in 0..COUNT {
        let begin = Instant::now();
        client.send(&buf)?;
        client.recv(&mut buf)?;
        all.push(begin.elapsed());
        std::thread::sleep(pause);
    }
    echo.join().map_err(|_| "the echo failed")??;
    all.sort();
    Ok(all)
}

fn socket(namespace: &Namespace, address: Ipv4Addr) -> Result<UdpSocket, Box<dyn std::error::Error>> {
    let socket = namespace.run(|| UdpSocket::bind((address, 0)))??;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(socket)
}

fn row(rtt: Duration, name: &str, all: Vec<Duration>) {
    let ms = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
    let mean = all.iter().sum::<Duration>() / all.len() as u32;
    let at = |percent: usize| ms(all[(all.len() - 1) * percent / 100]);
    println!("{:>9}  {name:<12} {:>9} {:>9} {:>9} {:>9}", ms(rtt), at(0), at(50), ms(mean), at(99));
}
