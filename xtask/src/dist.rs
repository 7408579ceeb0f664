//! A static program: one file that runs on every Linux of its architecture.
//!
//! It is linked with musl, which comes with the Rust target, by the linker of the Rust
//! toolchain: neither a C compiler nor a library of the system is needed.

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of musl for the architecture of this machine.
pub(crate) fn own() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Builds it for `target`, checks it, and returns its path.
pub(crate) fn run(repo: &Repo, target: &str) -> Result<PathBuf> {
    let own = own();
    ensure!(target.ends_with("-linux-musl"), "{target} is no target of musl, such as {own}");
    add(target)?;
    let built = build(repo, target)?;
    let image = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    if let Some(needs) = interpreter(&image)? {
        bail!("{} is not static: it needs {needs}", built.display());
    }
    let dir = repo.root.join("target/dist");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // A running program keeps its file; the new one takes the name.
    let (place, new) = (dir.join(format!("longhaul-{target}")), dir.join(".new"));
    fs::copy(&built, &new).with_context(|| format!("cannot write {}", new.display()))?;
    let emulator = format!("qemu-{}-static", target.split('-').next().unwrap_or_default());
    if target == own {
        try_out(&new, None)?;
    } else if Command::new(&emulator).arg("--version").output().is_ok() {
        try_out(&new, Some(&emulator))?;
    } else {
        println!(
            "{target} is not the architecture of this machine, and there is no {emulator}: it was not run"
        );
    }
    fs::rename(&new, &place).with_context(|| format!("cannot write {}", place.display()))?;
    println!("{} ({:.1} MiB, static)", place.display(), image.len() as f64 / f64::from(1 << 20));
    Ok(place)
}

/// Sees to it that the toolchain has the target.
fn add(target: &str) -> Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let sysroot = sysroot.context("cannot run rustc")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    if sysroot.status.success() && libraries.is_dir() {
        return Ok(());
    }
    let added = Command::new("rustup").args(["target", "add", target]).status();
    match added {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("'rustup target add {target}' ended with {status}"),
        Err(e) => bail!("rustc has no target {target}, and rustup, which would add it, cannot be run: {e}"),
    }
}

/// Builds the program, and returns its path.
fn build(repo: &Repo, target: &str) -> Result<PathBuf> {
    let variable = target.to_uppercase().replace('-', "_");
    let profile = std::env::var("LONGHAUL_DIST_PROFILE").unwrap_or_else(|_| "release".to_owned());
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--locked", "--package=longhaul", "--target", target, "--profile", &profile])
        .args(["--message-format=json-render-diagnostics"])
        .env(format!("CARGO_TARGET_{variable}_LINKER"), "rust-lld")
        .stderr(std::process::Stdio::inherit());
    let output = command.current_dir(&repo.root).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo build for {target} ended with {}", output.status);
    crate::repo::program(&output.stdout)
}

/// Runs it, on an emulated processor if `emulator` is given: its version, and a copy, which takes threads,
/// the engine and files.
fn try_out(program: &Path, emulator: Option<&str>) -> Result<()> {
    let dir = program.with_extension("tried");
    // A run that was killed may have left it.
    let _ = fs::remove_dir_all(&dir);
    for arguments in [&["--version"][..], &["cp", "zero:3x1MiB"]] {
        let mut command = Command::new(emulator.unwrap_or("env"));
        command.arg(program).args(arguments).env("XDG_CONFIG_HOME", "/nonexistent");
        if arguments[0] == "cp" {
            command.arg(&dir);
        }
        let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "'longhaul {}' ended with {}: {said}", arguments[0], output.status);
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    fs::remove_dir_all(&dir).with_context(|| format!("{} was not made by the copy", dir.display()))
}

/// The dynamic linker that a program for 64 bits asks for, if any.
fn interpreter(image: &[u8]) -> Result<Option<String>> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = image.get(at..at + len).context("the program is cut off")?;
        Ok::<_, anyhow::Error>(bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    ensure!(image.starts_with(b"\x7fELF\x02\x01"), "not a little-endian ELF program of 64 bits");
    // e_phoff, e_phentsize and e_phnum; then p_type, p_offset and p_filesz of each header.
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    for header in (0..count).map(|header| table + header * size) {
        if number(header, 4)? == u64::from(PT_INTERP) {
            let (at, len) = (number(header + 8, 8)? as usize, number(header + 32, 8)? as usize);
            let name = image.get(at..at + len).context("the program is cut off")?;
            return Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_found_out() {
        let own = fs::read(std::env::current_exe().expect("this test")).expect("readable");
        let needs = interpreter(&own).expect("a program");
        assert_eq!(needs.is_some(), cfg!(not(target_feature = "crt-static")), "{needs:?}");
        assert!(interpreter(&own[..200]).is_err(), "cut off");
        assert!(interpreter(b"#!/bin/sh\n").is_err());
    }
}
