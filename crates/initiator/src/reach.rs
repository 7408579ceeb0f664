//! Connections to a place that may be cut off for a moment.
//!
//! The kernel repeats a SYN that was lost after one second, then two, then
//! four: behind a link that was cut for 20 s it would stand idle for up to 16.
//! So another attempt is begun beside one that hangs, and the first to get
//! through wins.

use crate::error::Result;
use crate::options::Options;
use crate::setup::Endpoint;
use futures_util::stream::{FuturesUnordered, StreamExt};
use longhaul_conn::Channel;
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::sleep;
use std::time::Duration;

/// Time between the beginnings of two attempts: a fraction of the second
/// within which I/O must continue.
const INTERVAL: Duration = Duration::from_millis(50);
/// Attempts under way at a time. When there are so many, the first is older
/// than any round trip (2 s), and it is time to look at the name again.
const ATTEMPTS_MAX: usize = 40;

/// Connects to the first address that answers. Ends with an error once every
/// address has refused; the caller limits the time.
pub(crate) async fn reach(endpoint: &Endpoint, options: &Options) -> Result<Channel> {
    if let Some((transport, address)) = &endpoint.own {
        let stream = transport.connect(address).await.map_err(|e| endpoint.not_connected(&e))?;
        return Ok(stream.into());
    }
    let socket = &SocketOptions { congestion: options.congestion.clone() };
    let mut attempts = FuturesUnordered::new();
    let mut addrs = endpoint.addrs.iter().cycle();
    let mut begun = 0;
    let mut failed = 0;
    loop {
        // At a place that was there before, every address over and over again.
        let more = begun < endpoint.addrs.len() || endpoint.again;
        if more && let Some(addr) = addrs.next() {
            attempts.push(TcpStream::connect(*addr, socket));
            begun += 1;
        }
        let mut pause = std::pin::pin!(futures_util::FutureExt::fuse(sleep(INTERVAL)));
        futures_util::select_biased! {
            result = attempts.select_next_some() => match result {
                Ok(stream) => return Ok(stream.into()),
                Err(e) => {
                    failed += 1;
                    if failed >= endpoint.addrs.len() {
                        return Err(endpoint.not_connected(&e));
                    }
                }
            },
            () = pause => if attempts.len() >= ATTEMPTS_MAX {
                return Err(endpoint.unreachable("there is no answer"));
            },
        }
    }
}
