//! Files of a file system in a pool by their paths, without FUSE.
//!
//! ```text
//! cargo run -p longhaul-poolfs --example files -- POOL/NAME HOSTNQN
//! ```
//!
//! The pool has to be known on this host (`longhaul pool status`), and the file system has to be for HOSTNQN.

use longhaul_device::Opener;
use longhaul_initiator::Options;
use longhaul_pool::KnownPool;
use longhaul_poolfs::{Client, FsName, FsOptions};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(host)) = (arguments.next(), arguments.next()) else {
        return Err("name a file system, and the NQN of this host".into());
    };
    let name: FsName = name.parse()?;
    let options = Options { hostnqn: host, ..Options::default() };
    let pool = KnownPool::find(&name.pool)?.open(&options)?;
    let files = longhaul_poolfs::open(&pool, &name.name, &Opener::new(options), FsOptions::default())?;
    let client = Client::new(Arc::new(files));

    client.create_dir_all(b"results/today")?;
    client.write(b"results/today/numbers", b"1 2 3\n")?;
    client.sync()?;
    for entry in client.read_dir(b"results/today")? {
        println!("{} bytes  {}", entry.attributes.size, String::from_utf8_lossy(&entry.name));
    }
    Ok(())
}
