//! Packages of distributions: a `.deb` and an `.rpm` of the static program, with its pages of the
//! manual, completions and service units.
//!
//! The same program gives the same bytes: times are that of the last commit, and order, owners and
//! compression do not depend on the machine. `dpkg-deb` and `rpmbuild` write the packages.

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the units of `packaging/systemd` expect the program, and where packages have it.
const UNITS_PROGRAM: (&str, &str) = ("/usr/local/bin/longhaul", "/usr/bin/longhaul");

/// The names that an architecture has.
struct Architecture {
    deb: &'static str,
    rpm: &'static str,
}

/// A package to be made.
struct Package<'a> {
    repo: &'a Repo,
    /// The static program of the architecture.
    program: &'a Path,
    /// One that runs here, for what it writes itself.
    native: &'a Path,
    architecture: Architecture,
    /// The packages that the program is made of, as CycloneDX.
    sbom: String,
    version: String,
    revision: u32,
    /// Seconds since 1970 of the last commit.
    time: String,
    /// For what is made on the way.
    work: PathBuf,
}

/// Makes both packages of `program`, which is for `target`; `native` is one that runs here.
///
/// Their revision tells packages of one version from each other, 1 for the first.
pub(crate) fn run(repo: &Repo, target: &str, program: &Path, native: &Path, revision: u32) -> Result<()> {
    let work = repo.root.join("target/dist/package");
    // A run that was killed may have left it.
    let _ = fs::remove_dir_all(&work);
    let package = Package {
        repo,
        program,
        native,
        architecture: architecture(target)?,
        sbom: crate::sbom::text(repo, target)?,
        version: version(repo)?,
        revision,
        time: capture(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&repo.root))?
            .trim()
            .to_owned(),
        work,
    };
    let places = [package.deb()?, package.rpm()?];
    fs::remove_dir_all(&package.work).with_context(|| format!("cannot remove {}", package.work.display()))?;
    for place in places {
        let len = fs::metadata(&place).with_context(|| format!("{} was not made", place.display()))?.len();
        println!("{} ({:.1} MiB)", place.display(), len as f64 / f64::from(1 << 20));
    }
    Ok(())
}

impl Package<'_> {
    fn deb(&self) -> Result<PathBuf> {
        let dir = self.work.join("deb");
        let files = self.stage(&dir, "usr/share/zsh/vendor-completions")?;
        let control = dir.join("DEBIAN");
        make_dir(&control)?;
        let sums = run_in(&dir, Command::new("md5sum").args(&files))?;
        write(&control.join("md5sums"), &sums, 0o644)?;
        for script in ["postinst", "prerm", "postrm"] {
            write(&control.join(script), self.text(&format!("packaging/deb/{script}"))?, 0o755)?;
        }
        let mut kib = 0;
        for file in &files {
            kib += fs::metadata(dir.join(file))
                .with_context(|| format!("cannot look at {file}"))?
                .len()
                .div_ceil(1024);
        }
        let text = self
            .text("packaging/deb/control")?
            .replace("@VERSION@", &self.version)
            .replace("@REVISION@", &self.revision.to_string())
            .replace("@ARCHITECTURE@", self.architecture.deb)
            .replace("@SIZE@", &kib.to_string());
        write(&control.join("control"), &text, 0o644)?;
        let name = format!("longhaul_{}-{}_{}.deb", self.version, self.revision, self.architecture.deb);
        let place = self.repo.root.join("target/dist").join(name);
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Zxz", "-z3", "--build"]).arg(&dir).arg(&place);
        capture(build.env("SOURCE_DATE_EPOCH", &self.time))
            .context("dpkg-deb comes with the package dpkg")?;
        Ok(place)
    }

    fn rpm(&self) -> Result<PathBuf> {
        let dir = self.work.join("rpm");
        let stage = dir.join("stage");
        let mut list = String::new();
        for file in self.stage(&stage, "usr/share/zsh/site-functions")? {
            list += &format!("/{file}\n");
        }
        // Links are not among the files.
        list += "/usr/sbin/mount.longhaul\n";
        let (list_path, spec) = (dir.join("files"), dir.join("longhaul.spec"));
        write(&list_path, &list, 0o644)?;
        write(&spec, self.text("packaging/rpm/longhaul.spec")?, 0o644)?;
        let mut build = Command::new("rpmbuild");
        build.args(["-bb", "--quiet", "--target", self.architecture.rpm]);
        for (name, value) in [
            ("version", self.version.as_str()),
            ("revision", &self.revision.to_string()),
            ("stage", &stage.display().to_string()),
            ("list", &list_path.display().to_string()),
            ("_topdir", &dir.join("top").display().to_string()),
            ("_binary_payload", "w3.xzdio"),
        ] {
            build.arg("--define").arg(format!("{name} {value}"));
        }
        capture(build.arg(&spec).env("SOURCE_DATE_EPOCH", &self.time))
            .context("rpmbuild comes with the package rpm, or rpm-build")?;
        let (arch, version) = (self.architecture.rpm, &self.version);
        let name = format!("longhaul-{version}-{}.{arch}.rpm", self.revision);
        let place = self.repo.root.join("target/dist").join(&name);
        fs::copy(dir.join("top/RPMS").join(arch).join(&name), &place)
            .with_context(|| format!("rpmbuild made no {name}"))?;
        Ok(place)
    }

    /// Puts what is installed below `dir`, and returns the paths of the files from there, sorted.
    fn stage(&self, dir: &Path, zsh: &str) -> Result<Vec<String>> {
        let image =
            fs::read(self.program).with_context(|| format!("cannot read {}", self.program.display()))?;
        write(&dir.join("usr/bin/longhaul"), image, 0o755)?;
        make_dir(&dir.join("usr/sbin"))?;
        symlink("../bin/longhaul", dir.join("usr/sbin/mount.longhaul"))
            .context("cannot link mount.longhaul")?;
        let pages = dir.join("usr/share/man/man1");
        self.native(&["man", "--dir"], &pages)?;
        let mut compress = Command::new("gzip");
        capture(compress.args(["-9n", "--recursive"]).arg(&pages))?;
        for (shell, place) in [
            ("bash", "usr/share/bash-completion/completions"),
            ("zsh", zsh),
            ("fish", "usr/share/fish/vendor_completions.d"),
        ] {
            self.native(&["completions", shell, "--dir"], &dir.join(place))?;
        }
        // bash looks for a file of the command's name.
        let bash = dir.join("usr/share/bash-completion/completions");
        if !bash.join("longhaul").exists() {
            fs::rename(bash.join("longhaul.bash"), bash.join("longhaul"))
                .context("no completions of bash")?;
        }
        let doc = "usr/share/doc/longhaul";
        for file in &self.repo.files {
            let path = file.path.as_str();
            if let Some(unit) = path.strip_prefix("packaging/systemd/") {
                let text = file.text.replace(UNITS_PROGRAM.0, UNITS_PROGRAM.1);
                write(&dir.join("usr/lib/systemd/system").join(unit), text, 0o644)?;
            } else if let Some(example) = path.strip_prefix("contrib/") {
                let mode = fs::metadata(self.repo.root.join(path))
                    .context("a file that is gone")?
                    .permissions()
                    .mode();
                let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
                write(&dir.join(doc).join("examples").join(example), &file.text, mode)?;
            }
        }
        for (path, name) in [("README.md", "README.md"), ("CHANGELOG.md", "CHANGELOG.md")] {
            write(&dir.join(doc).join(name), self.text(path)?, 0o644)?;
        }
        write(&dir.join(doc).join("sbom.cdx.json"), &self.sbom, 0o644)?;
        let copyright =
            format!("MIT OR Apache-2.0\n\n{}\n{}", self.text("LICENSE-MIT")?, self.text("LICENSE-APACHE")?);
        write(&dir.join(doc).join("copyright"), copyright, 0o644)?;
        files_of(dir)
    }

    /// Lets the program write into `dir`, with nobody's settings.
    fn native(&self, arguments: &[&str], dir: &Path) -> Result<()> {
        make_dir(dir)?;
        let mut command = Command::new(self.native);
        capture(command.args(arguments).arg(dir).env("XDG_CONFIG_HOME", "/nonexistent")).map(drop)
    }

    fn text(&self, path: &str) -> Result<&str> {
        let file = self.repo.file(path).with_context(|| format!("there is no {path}"))?;
        Ok(&file.text)
    }
}

fn architecture(target: &str) -> Result<Architecture> {
    match target.split('-').next() {
        Some("x86_64") => Ok(Architecture { deb: "amd64", rpm: "x86_64" }),
        Some("aarch64") => Ok(Architecture { deb: "arm64", rpm: "aarch64" }),
        _ => bail!("{target} has no packages: x86_64 and aarch64 have"),
    }
}

/// That of the workspace.
fn version(repo: &Repo) -> Result<String> {
    let manifest: toml::Table = repo.file("Cargo.toml").context("there is no Cargo.toml")?.text.parse()?;
    let version =
        manifest["workspace"]["package"]["version"].as_str().context("the workspace has no version")?;
    // Before a release both forms take `~`, which sorts before nothing.
    Ok(version.replace('-', "~"))
}

/// The files below `dir`, without links, by their paths from there.
fn files_of(dir: &Path) -> Result<Vec<String>> {
    let mut listed = run_in(dir, Command::new("find").args(["usr", "-type", "f"]))?
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    listed.sort();
    ensure!(!listed.is_empty(), "nothing was put into {}", dir.display());
    Ok(listed)
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

/// Writes a file and what it lies in.
fn write(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    make_dir(path.parent().context("a path without a directory")?)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

fn run_in(dir: &Path, command: &mut Command) -> Result<String> {
    capture(command.current_dir(dir))
}

/// Runs a command, and returns what it printed.
fn capture(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} ended with {}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned() + "\n")
}
