//! Benchmarks against a reference measured in the same run.
fn main() {}
