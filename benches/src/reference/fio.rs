//! `fio` with io_uring and direct I/O.

use crate::machine::first_line;
use crate::program::{Load, Measured, finish};
use crate::setup::Setup;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// fio's version, if it is installed.
pub(crate) fn available() -> Option<String> {
    first_line(Command::new("fio").arg("--version"))
}

/// Runs a load on a file.
pub(crate) fn run(setup: &Setup, file: &Path, load: &Load) -> Result<Measured> {
    let ms = |time: std::time::Duration| format!("{}ms", time.as_millis());
    let mut command = Command::new("fio");
    command.args(["--name=reference", "--ioengine=io_uring", "--direct=1", "--output-format=json"]);
    command.args(["--group_reporting", "--time_based", "--filename"]).arg(file);
    for (name, value) in load.options() {
        command.arg(format!("--{name}={value}"));
    }
    command.arg(format!("--runtime={}", ms(setup.runtime)));
    command.arg(format!("--ramp_time={}", ms(setup.ramp)));
    Measured::from_json(&finish(&mut command, setup)?, load).context("fio")
}
