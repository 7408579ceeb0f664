//! Writes the seeds to `corpus/`, one file each.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for seed in longhaul_fuzz::seeds::all() {
        let dir = corpus.join(seed.target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(&seed.name), &seed.bytes)?;
    }
    Ok(())
}
