//! Opens any device by its name, and reads its first block.
//!
//! ```text
//! cargo run -p longhaul-device --example read_a_device -- DEVICE
//! ```
//!
//! DEVICE is what the `longhaul` program takes for one: `nvme+tcp://HOST/SUBNQN`, `array:NAME`, a
//! path, `mem:1GiB`. Without an argument it is 64 MiB of memory.

use longhaul_engine::{BufMut, Config, Engine};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "mem:64MiB".into());
    Engine::new(&Config::default())?.block_on(async {
        let device = longhaul_device::open(&name).await?;
        let block_device = device.block();
        let info = block_device.info();
        println!("{name}: {} bytes in blocks of {}", info.size, info.block_size);

        let io = block_device.open().await?;
        let block = io.read(0, BufMut::zeroed(info.block_size as usize)).await?;
        let first: Vec<String> = block.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        println!("the first block begins with {}", first.join(" "));

        drop(io);
        device.close().await?;
        Ok(())
    })
}
