//! Makes the Rust of `proto/csi.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let files = protox::compile(["csi.proto"], ["proto"])?;
    // The client is for the tests.
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
