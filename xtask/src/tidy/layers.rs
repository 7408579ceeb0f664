//! Crates use what lies below them, and nothing else of the workspace.

use crate::repo::{Finding, Repo};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Crate, and what it stands on; it may use those, and what these stand on.
/// The same table is in ARCHITECTURE.md.
const LAYERS: [(&str, &[&str]); 18] = [
    ("wire", &[]),
    ("parity", &[]),
    ("auth", &["wire"]),
    ("proto", &["wire", "auth"]),
    ("engine", &[]),
    ("tls", &["engine"]),
    ("block", &["engine"]),
    ("conn", &["proto", "engine", "tls"]),
    ("target", &["conn", "block"]),
    ("initiator", &["conn", "block"]),
    ("array", &["block", "parity"]),
    ("attach", &["block", "target"]),
    ("pool", &["array", "initiator"]),
    ("transfer", &["engine", "tls"]),
    ("bench", &["block", "transfer"]),
    ("report", &[]),
    ("wan", &["engine"]),
    ("sim", &["proto", "array", "target", "initiator", "transfer", "pool"]),
];

/// Members that may use every crate, and that no crate may use.
const TOPS: [&str; 6] = ["longhaul", "benches", "fuzz", "skip", "torture", "xtask"];

/// Compares every member's dependencies with the table. Tests may use what
/// they like.
pub(crate) fn check(repo: &Repo) -> Result<Vec<Finding>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(&repo.root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let used: Vec<(String, Vec<String>)> = packages.iter().map(member).collect();
    Ok(judge(&used))
}

/// A member's short name and the members that it is built with.
fn member(package: &Value) -> (String, Vec<String>) {
    let short = |v: &Value| v.as_str().unwrap_or_default().trim_start_matches("longhaul-").to_owned();
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let used = dependencies
        .filter(|d| d["path"].is_string() && d["kind"].as_str() != Some("dev"))
        .map(|d| short(&d["name"]))
        .collect();
    (short(&package["name"]), used)
}

fn judge(members: &[(String, Vec<String>)]) -> Vec<Finding> {
    let table: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    let mut findings = Vec::new();
    for (name, used) in members {
        let path = if TOPS.contains(&name.as_str()) { name.clone() } else { format!("crates/{name}") };
        let mut find =
            |message| findings.push(Finding { path: format!("{path}/Cargo.toml"), line: 0, message });
        if TOPS.contains(&name.as_str()) {
            for other in used.iter().filter(|u| TOPS.contains(&u.as_str())) {
                find(format!("{other} is a program, not a library"));
            }
        } else if table.contains_key(name.as_str()) {
            let below = below(&table, name);
            for other in used.iter().filter(|u| !below.contains(u.as_str())) {
                find(format!("{name} may not use {other}: the arrows of ARCHITECTURE.md point down"));
            }
        } else {
            find(format!("{name} has no place in the table of layers (xtask/src/tidy/layers.rs)"));
        }
    }
    findings
}

fn below<'a>(table: &BTreeMap<&'a str, &'a [&'a str]>, name: &str) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::new();
    let mut open: Vec<&str> = table.get(name).into_iter().flat_map(|l| l.iter().copied()).collect();
    while let Some(next) = open.pop() {
        if all.insert(next) {
            open.extend(table.get(next).into_iter().flat_map(|l| l.iter().copied()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, used: &[&str]) -> usize {
        judge(&[(name.to_owned(), used.iter().map(|s| (*s).to_owned()).collect())]).len()
    }

    #[test]
    fn arrows_point_down() {
        assert_eq!(judged("target", &["proto", "wire", "engine", "block"]), 0);
        assert_eq!(judged("wire", &["engine"]), 1);
        assert_eq!(judged("proto", &["engine", "block"]), 2);
        assert_eq!(judged("array", &["initiator"]), 1);
        assert_eq!(judged("longhaul", &["target", "bench", "xtask"]), 1);
        assert_eq!(judged("newcomer", &[]), 1);
    }
}
