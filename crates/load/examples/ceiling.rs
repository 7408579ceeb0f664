//! How fast the load generator itself is: 4 KiB reads and writes on one
//! thread, of a device that does nothing.
//!
//! `cargo run --release -p longhaul-load --example ceiling`

use longhaul_block::{BlockDevice, NullDevice};
use longhaul_engine::Config;
use longhaul_load::{Job, Rw, Stop, Threads, run};
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(NullDevice::new(1 << 40, 4096)?)];
    for (rw, verify) in [(Rw::RandRead, false), (Rw::RandWrite, false), (Rw::RandWrite, true)] {
        // Verification keeps a number a block, so it looks at a part.
        let size = verify.then_some(1 << 30);
        let runtime = Some(Duration::from_secs(2));
        let job = Job { rw, iodepth: 32, runtime, time_based: true, verify, size, ..Job::default() };
        let results = run(&devices, &job, &Threads::Own(Config::default()), &Stop::new(), &mut |_| {})?;
        let job = &results.to_fio(true).jobs[0];
        println!(
            "{rw}{}: {:.0} IOPS on one core",
            if verify { " --verify crc32c" } else { "" },
            job.read.iops + job.write.iops
        );
    }
    Ok(())
}
