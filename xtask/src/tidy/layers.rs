//! Crates use what lies below them, and nothing else of the workspace.

use crate::repo::{Finding, Repo};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Members that may use every crate, and that no crate may use.
const TOPS: [&str; 7] = ["longhaul", "benches", "fuzz", "sim", "skip", "torture", "xtask"];

/// Crates, each with those that it may use.
type Layers = BTreeMap<String, BTreeSet<String>>;

/// Compares every member's dependencies with the table. Tests may use any crate.
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
    let text = std::fs::read_to_string(repo.root.join(TABLE)).context(TABLE)?;
    Ok(judge(&used, &layers(&text)))
}

/// The page whose first table says which crate uses which.
const TABLE: &str = "ARCHITECTURE.md";

/// Rows of the form `| name | what it is | uses |`, names in code marks.
fn layers(text: &str) -> Layers {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let table =
        text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let name = names(cells.first()?).pop()?;
        Some((name, names(cells.last()?).into_iter().collect()))
    };
    table.filter_map(row).filter(|(name, _)| !TOPS.contains(&name.as_str())).collect()
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

fn judge(members: &[(String, Vec<String>)], table: &Layers) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, used) in members {
        let path = if TOPS.contains(&name.as_str()) { name.clone() } else { format!("crates/{name}") };
        let mut find =
            |message| findings.push(Finding { path: format!("{path}/Cargo.toml"), line: 0, message });
        if TOPS.contains(&name.as_str()) {
            for other in used.iter().filter(|u| TOPS.contains(&u.as_str())) {
                find(format!("{other} is a program, not a library"));
            }
        } else if table.contains_key(name) {
            let below = below(table, name);
            for other in used.iter().filter(|u| !below.contains(*u)) {
                find(format!("{name} may not use {other}: the arrows of {TABLE} point down"));
            }
        } else {
            find(format!("{name} has no row in the table of {TABLE}"));
        }
    }
    for name in table.keys().filter(|name| !members.iter().any(|(member, _)| member == *name)) {
        findings.push(Finding { path: TABLE.into(), line: 0, message: format!("there is no crate {name}") });
    }
    findings
}

/// What a crate may use: what its row names, and what those may use.
fn below(table: &Layers, name: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open: Vec<String> = table.get(name).into_iter().flatten().cloned().collect();
    while let Some(next) = open.pop() {
        open.extend(table.get(&next).into_iter().flatten().cloned());
        all.insert(next);
        open.retain(|name| !all.contains(name));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "# A page\n\n| crate | is | uses |\n|---|---|---|\n| `longhaul` | all | all |\n\
        | `target` | serves `BlockDevice`s | `proto`, `block` |\n| `block` | x | `engine` |\n\
        | `engine` | x | – |\n| `proto` | x | `wire` |\n| `wire` | x | – |\n\n| `other` | x | `table` |\n";
    const MEMBERS: [&str; 5] = ["target", "block", "engine", "proto", "wire"];

    fn judged(name: &str, used: &[&str]) -> usize {
        let mut members: Vec<(String, Vec<String>)> =
            MEMBERS.iter().map(|member| ((*member).to_owned(), Vec::new())).collect();
        members.retain(|(member, _)| member != name);
        members.push((name.to_owned(), used.iter().map(|s| (*s).to_owned()).collect()));
        judge(&members, &layers(ROWS)).len()
    }

    #[test]
    fn arrows_point_down() {
        assert_eq!(judged("target", &["proto", "wire", "engine", "block"]), 0);
        assert_eq!(judged("wire", &["engine"]), 1);
        assert_eq!(judged("proto", &["engine", "block"]), 2);
        assert_eq!(judged("longhaul", &["target", "bench", "xtask"]), 1);
        assert_eq!(judged("newcomer", &[]), 1);
    }

    #[test]
    fn a_row_without_its_crate_is_found() {
        let text = ROWS.replace("| `wire` |", "| `tls` | x | – |\n| `wire` |");
        let members: Vec<_> = MEMBERS.iter().map(|member| ((*member).to_owned(), Vec::new())).collect();
        assert_eq!(judge(&members, &layers(&text)).len(), 1);
    }
}
