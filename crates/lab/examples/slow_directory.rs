//! Mounts a directory with planted delays, until its input ends, and prints `ready` once it is
//! mounted. Delays are those of `Slow`, in milliseconds.
//!
//! `cargo run --release -p longhaul-lab --example slow_directory DIR AT open=17 close=17`

use longhaul_lab::slowfs::{Slow, SlowFs};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, at, delays @ ..] = &arguments[..] else {
        return Err("usage: slow_directory DIR AT [open=MS] [create=MS] [close=MS] [crowd=MS]".into());
    };
    let mut slow = Slow::default();
    for delay in delays {
        let (name, ms) = delay.split_once('=').ok_or_else(|| format!("{delay} is not NAME=MS"))?;
        let time = Duration::try_from_secs_f64(ms.parse::<f64>()? / 1e3)?;
        match name {
            "open" => slow.open = time,
            "create" => slow.create = time,
            "close" => slow.close = time,
            "crowd" => slow.crowd = time,
            _ => return Err(format!("{name} is no delay: open, create, close or crowd").into()),
        }
    }
    let _mounted = SlowFs::mount(Path::new(directory), Path::new(at), slow)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
