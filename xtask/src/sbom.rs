//! The packages that a program is made of, as CycloneDX 1.5 in JSON.
//!
//! The same tree gives the same bytes: there is no time, no serial number, and everything is sorted. Features are
//! those of the whole workspace: a package may be listed that the program does not link, and none is missing.

use crate::repo::Repo;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// The package that is shipped.
const PROGRAM: &str = "longhaul";

/// Writes that of `target` to `target/dist`, and returns its path.
pub(crate) fn run(repo: &Repo, target: &str) -> Result<PathBuf> {
    let dir = repo.root.join("target/dist");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let place = dir.join(format!("longhaul-{target}.cdx.json"));
    std::fs::write(&place, text(repo, target)?)
        .with_context(|| format!("cannot write {}", place.display()))?;
    println!("{}", place.display());
    Ok(place)
}

/// The document for the program of `target`.
pub(crate) fn text(repo: &Repo, target: &str) -> Result<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked", "--filter-platform", target]);
    let output = command.current_dir(&repo.root).output().context("cannot run cargo metadata")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata ended with {}: {}", output.status, said.trim());
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let lock = std::fs::read_to_string(repo.root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let document = document(&metadata, &checksums(&lock)?)?;
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// SHA-256 of the packages of a registry, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages =
        lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock has no packages")?;
    let of = |package: &toml::Value| {
        let field = |name: &str| package.get(name)?.as_str().map(str::to_owned);
        Some(((field("name")?, field("version")?), field("checksum")?))
    };
    Ok(packages.iter().filter_map(of).collect())
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    value[name].as_array().with_context(|| format!("cargo metadata has no {name}"))
}

fn field<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value[name].as_str().with_context(|| format!("cargo metadata has a package without {name}"))
}

fn document(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let mut packages = BTreeMap::new();
    for package in list(metadata, "packages")? {
        packages.insert(field(package, "id")?, package);
    }
    let mut edges: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in list(&metadata["resolve"], "nodes")? {
        let used = edges.entry(field(node, "id")?).or_default();
        for dependency in list(node, "deps")? {
            // What only tests or build scripts use is not shipped.
            if list(dependency, "dep_kinds")?.iter().any(|kind| kind["kind"].is_null()) {
                used.push(field(dependency, "pkg")?);
            }
        }
    }
    let program = packages.iter().find(|(_, package)| package["name"] == PROGRAM);
    let (&program, _) = program.with_context(|| format!("there is no package {PROGRAM}"))?;
    let (mut shipped, mut waiting) = (BTreeSet::new(), vec![program]);
    while let Some(id) = waiting.pop() {
        if shipped.insert(id) {
            waiting.extend(edges.get(id).into_iter().flatten());
        }
    }
    let url = |id: &str| -> Result<String> {
        let package = packages.get(id).with_context(|| format!("cargo metadata has no package {id}"))?;
        Ok(format!("pkg:cargo/{}@{}", field(package, "name")?, field(package, "version")?))
    };
    let (mut components, mut dependencies) = (BTreeMap::new(), BTreeMap::new());
    for id in &shipped {
        let (package, url_of) = (packages[id], url(id)?);
        let (name, version) = (field(package, "name")?, field(package, "version")?);
        let kind = if *id == program { "application" } else { "library" };
        let mut component =
            json!({"type": kind, "bom-ref": url_of, "name": name, "version": version, "purl": url_of});
        if let Some(license) = package["license"].as_str() {
            // An old notation of the same.
            component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
        }
        if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        let used = edges.get(id).into_iter().flatten().map(|id| url(id)).collect::<Result<BTreeSet<_>>>()?;
        dependencies.insert(url_of.clone(), json!({"ref": url_of, "dependsOn": used}));
        components.insert(url_of, component);
    }
    let application = components.remove(&url(program)?).context("the program is shipped")?;
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": application},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.into_values().collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_shipped_is_listed_and_nothing_else() {
        let repo = Repo::open().expect("the repository");
        let target = crate::dist::own();
        let written = text(&repo, &target).expect("written");
        assert_eq!(written, text(&repo, &target).expect("written again"));
        let read: Value = serde_json::from_str(&written).expect("JSON");
        assert_eq!(read["metadata"]["component"]["name"], PROGRAM);
        let components = read["components"].as_array().expect("components");
        let names: BTreeSet<_> = components.iter().filter_map(|one| one["name"].as_str()).collect();
        for shipped in ["longhaul-target", "longhaul-engine", "longhaul-wire", "rustix", "serde_json"] {
            assert!(names.contains(shipped), "{shipped} is missing");
        }
        for other in ["xtask", "longhaul-torture", "longhaul-skip", "longhaul-sim"] {
            assert!(!names.contains(other), "{other} is not shipped");
        }
        for component in components {
            let own = component["name"].as_str().is_some_and(|name| name.starts_with("longhaul"));
            assert!(own || component["hashes"][0]["content"].is_string(), "{component}");
            assert!(component["licenses"].is_array(), "{component}");
        }
        let known: BTreeSet<_> = components.iter().map(|one| &one["bom-ref"]).map(Value::to_string).collect();
        for one in read["dependencies"].as_array().expect("dependencies") {
            for used in one["dependsOn"].as_array().expect("a list") {
                assert!(known.contains(&used.to_string()), "{used} is no component");
            }
        }
    }

    #[test]
    fn what_tests_and_build_scripts_use_is_left_out() {
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("longhaul"), package("a"), package("b"), package("c"), package("d")],
            "resolve": {"nodes": [
                {"id": "longhaul", "deps": [uses("b", Value::Null), uses("c", "dev".into()), uses("d", "build".into())]},
                {"id": "b", "deps": [uses("a", Value::Null)]},
                {"id": "a", "deps": []},
                {"id": "c", "deps": []},
                {"id": "d", "deps": []},
            ]},
        });
        let sums =
            checksums("[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"12ab\"\n").expect("read");
        let made = document(&metadata, &sums).expect("made");
        let names: Vec<_> =
            made["components"].as_array().expect("a list").iter().map(|c| &c["name"]).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(made["components"][0]["hashes"][0]["content"], "12ab");
        assert_eq!(made["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(made["dependencies"][2]["dependsOn"], json!(["pkg:cargo/b@1.0.0"]));
    }
}
