//! A test program: found among what cargo built, and run as cargo runs it.

use crate::repo::Repo;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time that a program may take, ten times that of the longest one on two processors: one that hangs
/// must not keep the others from being counted.
const LIMIT: Duration = Duration::from_secs(900);
/// Interval at which a running program is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Names the features that tests are built with, as cargo's `--features` has them.
const FEATURES: &str = "LONGHAUL_FEATURES";

/// The name of the doc tests, which are built and run by cargo.
const DOC_TESTS: &str = "doc-tests";

/// A program, or the doc tests of all packages.
pub(crate) struct Program {
    /// `PACKAGE/lib|bin:NAME|TEST-FILE`, or `doc-tests`.
    pub(crate) name: String,
    /// The package; none for the doc tests.
    pub(crate) package: String,
    /// What cargo prints before its output.
    pub(crate) heading: Option<String>,
    /// The command that runs it again.
    pub(crate) repeat: String,
    command: Vec<String>,
    dir: PathBuf,
    /// File for its output: a pipe would be open as long as any process that a test left running.
    output: PathBuf,
}

/// The end of a run, and both output streams in the order in which they were written.
pub(crate) struct Ran {
    /// None if the program was ended because of its time limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) took: Duration,
    pub(crate) output: Vec<u8>,
}

/// Builds all tests of the workspace; `found` gets each program as soon as it is built, and the doc tests
/// at the end.
pub(crate) fn build(repo: &Repo, mut found: impl FnMut(Program)) -> Result<()> {
    let features = features();
    let tests: Vec<String> =
        ["test", "--workspace"].map(str::to_owned).into_iter().chain(features.clone()).collect();
    let mut command = behind(env!("CARGO"));
    command.args(&tests).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let mut cargo =
        command.current_dir(&repo.root).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let messages = BufReader::new(cargo.stdout.take().context("cargo has no output")?);
    let mut dir = None;
    let mut binaries = Binaries::of(repo)?;
    let read: Result<()> = messages.lines().try_for_each(|line| {
        let message: Value = serde_json::from_str(&line?).context("cargo's message is not JSON")?;
        binaries.built(&message).into_iter().for_each(&mut found);
        if let Some(program) = of_message(&message, &repo.root, features.as_deref())? {
            let to = program.output.parent().context("the output has no directory")?;
            if dir.is_none() {
                fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
                dir = Some(to.to_owned());
            }
            binaries.ready(program).into_iter().for_each(&mut found);
        }
        Ok(())
    });
    if read.is_err() {
        // Its output is not read any more.
        drop(cargo.kill());
    }
    let ended = cargo.wait().context("waiting for cargo")?;
    read?;
    ensure!(ended.success(), "building the tests: cargo ended with {ended}");
    // Those of packages whose binaries no test needs are not built.
    binaries.held.into_iter().for_each(&mut found);
    let doc_tests = [&tests[..], &["--doc".to_owned()]].concat();
    found(Program {
        name: DOC_TESTS.to_owned(),
        package: String::new(),
        heading: None,
        repeat: format!("cargo {}", doc_tests.join(" ")),
        command: [&[env!("CARGO").to_owned()], &doc_tests[..], &["--no-fail-fast".to_owned()]].concat(),
        dir: repo.root.clone(),
        output: dir.context("the workspace has no test program")?.join(DOC_TESTS),
    });
    Ok(())
}

/// Arguments of cargo for the features that the environment asks for.
fn features() -> Option<String> {
    std::env::var(FEATURES)
        .ok()
        .filter(|features| !features.is_empty())
        .map(|features| format!("--features={features}"))
}

/// The binaries that are not built yet. Tests run those of their package, and cargo may build the tests
/// first.
#[derive(Default)]
struct Binaries {
    /// Package and name of each.
    missing: BTreeSet<(String, String)>,
    /// Programs of these packages.
    held: Vec<Program>,
}

impl Binaries {
    /// All binaries of the workspace.
    fn of(repo: &Repo) -> Result<Binaries> {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
        let output = command.current_dir(&repo.root).output().context("cannot run cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata ended with {}", output.status);
        let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
        let mut missing = BTreeSet::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            for target in package["targets"].as_array().into_iter().flatten() {
                if let (Some(package), Some(name), Some("bin")) =
                    (package["name"].as_str(), target["name"].as_str(), target["kind"][0].as_str())
                {
                    missing.insert((package.to_owned(), name.to_owned()));
                }
            }
        }
        Ok(Binaries { missing, held: Vec::new() })
    }

    fn lacks(&self, package: &str) -> bool {
        self.missing.iter().any(|(of, _)| of == package)
    }

    /// Notes the binary that a message of cargo tells of; returns the programs that need no other one.
    fn built(&mut self, message: &Value) -> Vec<Program> {
        let is_binary =
            message["target"]["kind"][0] == "bin" && message["profile"]["test"] == Value::Bool(false);
        let id = message["package_id"].as_str().filter(|_| is_binary && message["executable"].is_string());
        if let (Some(Ok(package)), Some(name)) = (id.map(package), message["target"]["name"].as_str()) {
            self.missing.remove(&(package, name.to_owned()));
        }
        let held = std::mem::take(&mut self.held);
        let (held, ready) = held.into_iter().partition(|program| self.lacks(&program.package));
        self.held = held;
        ready
    }

    /// The program, unless a binary of its package is missing: then it is held.
    fn ready(&mut self, program: Program) -> Option<Program> {
        match self.lacks(&program.package) {
            true => {
                self.held.push(program);
                None
            }
            false => Some(program),
        }
    }
}

/// A command that leaves the processors to others: a test that runs meanwhile is as fast as alone.
fn behind(program: &str) -> Command {
    let nice = Command::new("nice").arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !nice.is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("nice");
    command.args(["-n", "19", program]);
    command
}

/// The program that a message of cargo tells of, if it is a test program.
fn of_message(message: &Value, root: &Path, features: Option<&str>) -> Result<Option<Program>> {
    let (Some(executable), Some(true)) =
        (message["executable"].as_str(), message["profile"]["test"].as_bool())
    else {
        return Ok(None);
    };
    let text = |value: &Value| value.as_str().map(str::to_owned).context("cargo's message is incomplete");
    let target = &message["target"];
    let (source, manifest) = (text(&target["src_path"])?, PathBuf::from(text(&message["manifest_path"])?));
    let dir = manifest.parent().context("a manifest has a directory")?;
    let package = package(&text(&message["package_id"])?)?;
    let (target, kind) = (text(&target["name"])?, text(&target["kind"][0])?);
    let (place, choice) = match kind.as_str() {
        "test" => (target.clone(), format!("--test {target}")),
        "bin" => (format!("bin:{target}"), format!("--bin {target}")),
        _ => ("lib".to_owned(), "--lib".to_owned()),
    };
    let unit = if kind == "test" { "" } else { "unittests " };
    let relative = |path: &Path, to: &Path| path.strip_prefix(to).unwrap_or(path).display().to_string();
    let (source, shown) = (relative(source.as_ref(), dir), relative(executable.as_ref(), root));
    let built = Path::new(executable).parent().and_then(Path::parent).context("a program has a directory")?;
    // A feature of one package is not known to another one: only the workspace has all.
    let packages = features.filter(|_| kind == "test").map(|features| format!("--workspace {features}"));
    let packages = packages.unwrap_or_else(|| format!("-p {package}"));
    Ok(Some(Program {
        heading: Some(format!("     Running {unit}{source} ({shown})")),
        repeat: format!("cargo test {packages} {choice}"),
        output: built.join("test-output").join(format!("{package}.{place}")),
        name: format!("{package}/{place}"),
        package,
        command: vec![executable.to_owned()],
        dir: dir.to_owned(),
    }))
}

/// The name in a package ID: `PATH#NAME@VERSION`, or `PATH/NAME#VERSION`.
fn package(id: &str) -> Result<String> {
    let (path, fragment) = id.rsplit_once('#').with_context(|| format!("{id} is no package ID"))?;
    let name = fragment.split_once('@').map(|(name, _)| name);
    let name = name.or_else(|| path.rsplit('/').next()).with_context(|| format!("{id} has no name"))?;
    Ok(name.to_owned())
}

impl Program {
    /// Runs it to its end, or to the end of its time.
    pub(crate) fn run(&self) -> Result<Ran> {
        self.run_for(LIMIT)
    }

    pub(crate) fn run_for(&self, limit: Duration) -> Result<Ran> {
        let open = || File::options().create(true).append(true).open(&self.output);
        // The output of the run before.
        let _ = fs::remove_file(&self.output);
        let [stdout, stderr] = [open(), open()];
        let at = || format!("cannot write {}", self.output.display());
        let (stdout, stderr) = (stdout.with_context(at)?, stderr.with_context(at)?);
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        // As cargo sets them, which has set those of this program.
        command.env("CARGO_MANIFEST_DIR", &self.dir).env("CARGO_PKG_NAME", &self.package);
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {}", self.command[0]))?;
        let status = wait(&mut child, limit).with_context(|| format!("waiting for {}", self.command[0]))?;
        let took = began.elapsed();
        let output =
            fs::read(&self.output).with_context(|| format!("cannot read {}", self.output.display()))?;
        Ok(Ran { status, took, output })
    }

    /// A script of the shell in place of a program.
    #[cfg(test)]
    pub(crate) fn shell(dir: &Path, name: &str, script: &str) -> Program {
        Program {
            name: name.to_owned(),
            package: "p".to_owned(),
            heading: None,
            repeat: format!("repeat {name}"),
            command: ["sh", "-c", script].map(str::to_owned).into(),
            dir: dir.to_owned(),
            output: dir.join(format!("{name}.output")),
        }
    }
}

/// Waits for a process, and ends it when the time is over.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        // The standard library has no wait with a time limit.
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_program_that_hangs_is_ended() {
        let dir = tempfile::tempdir().expect("directory");
        let ran = Program::shell(dir.path(), "hung", "echo begun; exec sleep 600")
            .run_for(Duration::from_secs(2))
            .unwrap();
        assert!(ran.status.is_none());
        assert_eq!(ran.output, b"begun\n");
    }

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let message = |kind: &str, name: &str, source: &str, test: bool| {
            json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///w/crates/array#longhaul-array@0.1.0",
                "manifest_path": "/w/crates/array/Cargo.toml",
                "target": { "kind": [kind], "name": name, "src_path": format!("/w/crates/array/{source}") },
                "profile": { "test": test },
                "executable": "/w/target/debug/deps/x-0f",
            })
        };
        let found = |message: &Value| of_message(message, Path::new("/w"), None).unwrap();
        let crash = found(&message("test", "crash", "tests/crash.rs", true)).expect("a program");
        assert_eq!(crash.name, "longhaul-array/crash");
        assert_eq!(crash.heading.as_deref(), Some("     Running tests/crash.rs (target/debug/deps/x-0f)"));
        assert_eq!(crash.repeat, "cargo test -p longhaul-array --test crash");
        assert_eq!(crash.dir, Path::new("/w/crates/array"));
        let with = of_message(
            &message("test", "crash", "tests/crash.rs", true),
            Path::new("/w"),
            Some("--features=f"),
        );
        assert_eq!(
            with.unwrap().expect("a program").repeat,
            "cargo test --workspace --features=f --test crash"
        );
        let unit = found(&message("lib", "longhaul_array", "src/lib.rs", true)).expect("a program");
        assert_eq!(
            (unit.name.as_str(), unit.repeat.as_str()),
            ("longhaul-array/lib", "cargo test -p longhaul-array --lib")
        );
        assert!(unit.heading.is_some_and(|heading| heading.contains("unittests src/lib.rs (")));
        let program = found(&message("bin", "longhaul", "src/main.rs", true)).expect("a program");
        assert_eq!(program.name, "longhaul-array/bin:longhaul");
        assert!(found(&message("bin", "longhaul", "src/main.rs", false)).is_none(), "not a test");
        let mut library = message("lib", "longhaul_array", "src/lib.rs", true);
        library["executable"] = Value::Null;
        assert!(found(&library).is_none(), "not a program");
        assert!(found(&json!({ "reason": "build-finished", "success": true })).is_none());
    }

    #[test]
    fn a_program_waits_for_the_binaries_of_its_package() {
        let built = |name: &str, test: bool| {
            json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///w/p#p@0.1.0",
                "target": { "kind": ["bin"], "name": name },
                "profile": { "test": test },
                "executable": format!("/w/target/debug/{name}"),
            })
        };
        let missing = ["one", "two"].map(|name| ("p".to_owned(), name.to_owned())).into();
        let mut binaries = Binaries { missing, held: Vec::new() };
        let program = |name| Program::shell(Path::new("/"), name, "true");
        assert!(binaries.ready(program("needs both")).is_none());
        let other = Program { package: "q".to_owned(), ..program("of another package") };
        assert!(binaries.ready(other).is_some());
        assert!(binaries.built(&built("one", false)).is_empty());
        assert!(binaries.built(&built("two", true)).is_empty(), "its own tests are no binary");
        let ready = binaries.built(&built("two", false));
        assert_eq!(ready.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["needs both"]);
        assert!(binaries.ready(program("later")).is_some());
    }

    #[test]
    fn a_package_id_has_the_name_in_either_place() {
        assert_eq!(package("path+file:///w/crates/array#longhaul-array@0.1.0").unwrap(), "longhaul-array");
        assert_eq!(package("path+file:///w/xtask#0.1.0").unwrap(), "xtask");
        assert!(package("xtask 0.1.0").is_err());
    }
}
