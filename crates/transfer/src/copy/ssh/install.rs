//! Installs a program of this version in the user's cache on the other machine, over ssh.
//!
//! A shell script runs there in place of the agent. It prints the type of the machine, reads
//! the version, SHA-256 and length of a program, and prints whether it is installed; if not,
//! it reads the program and installs it. Then it executes the program.
//!
//! Invariants:
//! - nothing is installed unless the user requests it;
//! - a program gets its name when it is complete, its checksum matches and a test run
//!   succeeded, so that the name always holds a working program;
//! - its checksum is verified before each execution.

use super::Lines;
use super::program::{Needs, look, version};
use crate::wire::printable;
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

/// Programs that may be installed on other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The version of each, as printed by `longhaul --version`.
    pub version: String,
    /// Local paths; the first suitable static program is used, else the first suitable one.
    pub programs: Vec<PathBuf>,
}

impl Offer {
    /// The running program, and static ones beside it.
    ///
    /// # Errors
    /// The file of this program cannot be found.
    pub fn of_this_program(version: &str) -> io::Result<Offer> {
        let own = std::env::current_exe()?;
        let beside = ["x86_64", "aarch64"]
            .map(|arch| own.with_file_name(format!("longhaul-{arch}-unknown-linux-musl")))
            .into_iter()
            .filter(|path| path.exists())
            .collect::<Vec<_>>();
        let programs = std::iter::once(own).chain(beside).collect();
        Ok(Offer { version: version.to_owned(), programs })
    }
}

/// Prefix of the script's output.
const MARK: &str = "longhaul-place: ";

/// The script, without the program's arguments. It has no single quotes, exclamation marks or
/// newlines, so that every login shell passes it to `sh` unchanged.
const SCRIPT: &str = concat!(
    r#"say() { echo "longhaul-place: $*"; }; t=; "#,
    r#"die() { say failed $*; [ -z "$t" ] || rm -f "$t"; exit 1; }; "#,
    r#"if command -v sha256sum >/dev/null 2>&1; then s=sha256sum; else s="shasum -a 256"; fi; "#,
    r#"sum() { $s < "$1" | cut -c 1-64; }; "#,
    r#"say machine $(uname -s) $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null); "#,
    r#"read -r v h n || exit 1; "#,
    r#"d=${XDG_CACHE_HOME:-$HOME/.cache}/longhaul/$v-$(echo $h | cut -c 1-16); p=$d/longhaul; "#,
    r#"if [ -x "$p" ] && [ "$(sum "$p")" = "$h" ]; then say have; else "#,
    r#"(umask 077; mkdir -p "$d") && t=$(mktemp "$d/.new.XXXXXX") || die "cannot write to $d"; "#,
    r#"say send; head -c "$n" > "$t" || die "cannot write to $d"; "#,
    r#"[ "$(sum "$t")" = "$h" ] || die "what arrived in $d is not what was sent"; "#,
    r#"chmod 700 "$t"; r=$("$t" --version 2>&1); "#,
    r#"[ "$r" = "longhaul $v" ] || die "it does not run there: $r"; "#,
    r#"mv -f "$t" "$p" || die "cannot write to $d"; t=; say placed "$p"; fi; "#,
    r#"exec "$p" "#,
);

/// The remote command, which ends by executing the program with these arguments.
pub(super) fn command(arguments: &str) -> String {
    format!("exec sh -c '{SCRIPT}{arguments}'")
}

/// Result of an installation.
#[derive(Debug)]
pub(super) enum Installed {
    /// The program is installed and runs; with a note if it was installed now.
    Ready(Option<String>),
    /// The installation failed.
    Failed(String),
    /// The script did not run.
    NoScript,
}

/// Converses with the script until it executes the program.
pub(super) fn install(
    stdin: &mut impl Write,
    lines: &mut Lines<'_, impl BufRead>,
    offer: &Offer,
) -> io::Result<Installed> {
    let Some(machine) = lines.find(answer_of)? else { return Ok(Installed::NoScript) };
    let Some(machine) = machine.strip_prefix("machine ") else { return Ok(Installed::Failed(machine)) };
    let program = match choose(machine, offer) {
        Ok(program) => program,
        Err(why) => return Ok(Installed::Failed(why)),
    };
    let hash = hex(&Sha256::digest(&program.image));
    // A write error means that the script ended, which the missing answer reports.
    let _ = writeln!(stdin, "{} {hash} {}", offer.version, program.image.len()).and_then(|()| stdin.flush());
    let mut answer = lines.find(answer_of)?;
    if answer.as_deref() == Some("send") {
        let _ = stdin.write_all(&program.image).and_then(|()| stdin.flush());
        answer = lines.find(answer_of)?;
    }
    Ok(match answer {
        None => Installed::Failed("ssh ended before the program was installed".into()),
        Some(answer) => match (answer.as_str(), answer.strip_prefix("placed ")) {
            ("have", _) => Installed::Ready(None),
            (_, Some(place)) => Installed::Ready(Some(format!(
                "placed longhaul {} ({}, {}) at {place}",
                offer.version, program.needs, program.path
            ))),
            (other, None) => Installed::Failed(other.strip_prefix("failed ").unwrap_or(other).to_owned()),
        },
    })
}

/// The script's message in a line, escaped for display.
fn answer_of(line: &[u8]) -> Option<String> {
    let at = line.windows(MARK.len()).position(|window| window == MARK.as_bytes())?;
    Some(printable(line[at + MARK.len()..].trim_ascii()).into_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A suitable program.
struct Program {
    path: String,
    image: Vec<u8>,
    needs: Needs,
}

/// Chooses the program for a machine, described as `Linux x86_64 glibc 2.36`.
fn choose(machine: &str, offer: &Offer) -> Result<Program, String> {
    let mut words = machine.split_whitespace();
    let (system, own) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let glibc = match (words.next(), words.next()) {
        (Some("glibc"), Some(there)) => version(there.as_bytes()),
        _ => None,
    };
    let (mut fits, mut not): (Vec<Program>, Vec<String>) = (Vec::new(), Vec::new());
    for path in &offer.programs {
        let shown = path.display().to_string();
        match read(path) {
            Err(why) => not.push(format!("{shown}: {why}")),
            Ok((image, of, needs)) if system == "Linux" && of == own && needs.are_met(glibc) => {
                fits.push(Program { path: shown, image, needs });
            }
            Ok((_, of, needs)) => not.push(format!("{shown} is {needs}, on {of}")),
        }
    }
    let best = fits.iter().position(|program| program.needs == Needs::Nothing).unwrap_or(0);
    if best < fits.len() {
        return Ok(fits.swap_remove(best));
    }
    Err(format!(
        "no program here runs on that machine ({machine}; {}); make a static one with 'cargo xtask dist \
         {own}-unknown-linux-musl' and name it with --remote-install-from",
        if not.is_empty() { "there is none".into() } else { not.join("; ") }
    ))
}

fn read(path: &Path) -> Result<(Vec<u8>, &'static str, Needs), String> {
    let image = std::fs::read(path).map_err(|e| e.to_string())?;
    let (machine, needs) = look(&image).ok_or("not a Linux program for x86_64 or aarch64")?;
    Ok((image, machine, needs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(programs: Vec<PathBuf>) -> Offer {
        Offer { version: "1.2.3".into(), programs }
    }

    /// The path of the program that `choose` picks.
    fn chosen(machine: &str, offer: &Offer) -> Result<String, String> {
        choose(machine, offer).map(|program| program.path)
    }

    #[test]
    fn the_first_suitable_static_program_is_chosen() {
        let own = std::env::current_exe().expect("this test");
        let dir = tempfile::tempdir().expect("a directory");
        let alone = dir.path().join("static");
        let mut image = std::fs::read(&own).expect("readable");
        // Without program headers it asks for no dynamic linker.
        image[56..58].fill(0);
        std::fs::write(&alone, &image).expect("written");
        let arch = std::env::consts::ARCH;
        let both = offer(vec![dir.path().join("absent"), own.clone(), alone.clone()]);
        let new = format!("Linux {arch} glibc 9.0");
        assert_eq!(chosen(&new, &both), Ok(alone.display().to_string()));
        assert_eq!(chosen(&format!("Linux {arch}"), &both), Ok(alone.display().to_string()));
        let dynamic = offer(vec![own.clone()]);
        if cfg!(all(target_env = "gnu", not(target_feature = "crt-static"))) {
            assert_eq!(chosen(&new, &dynamic), Ok(own.display().to_string()));
            let why = chosen(&format!("Linux {arch} glibc 2.5"), &dynamic).expect_err("too old");
            assert!(why.contains("for glibc 2.") && why.contains("cargo xtask dist"), "{why}");
            assert!(chosen(&format!("Linux {arch}"), &dynamic).is_err(), "no glibc");
        }
        assert!(chosen("Darwin arm64", &both).is_err() && chosen("", &both).is_err());
        let why = chosen("Linux riscv64 glibc 2.40", &offer(Vec::new())).expect_err("none");
        assert!(why.contains("there is none") && why.contains("riscv64-unknown-linux-musl"), "{why}");
    }

    #[test]
    fn the_script_passes_every_shell_unchanged() {
        assert!(!SCRIPT.contains(['\'', '!', '\n']), "{SCRIPT}");
        let words = answer_of(b"hello longhaul-place: failed no room\x1b[2J\r\n");
        assert_eq!(words.as_deref(), Some("failed no room\\x1b[2J"));
        assert_eq!(answer_of(b"longhaul-place"), None);
    }
}
