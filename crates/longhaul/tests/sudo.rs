//! Arrays that a user makes and root uses by `sudo`, and the other way round. The tests need
//! root, and say so where they skip.

mod common;

use common::{LEAVE_MOUNTS, Ran, finish};
use std::path::Path;
use std::process::{Command, Stdio};

/// What both do: `ada` runs the program as a user with the home directory `$HOME_OF_ADA`, `sudo`
/// as root for that user, `root` as root by itself.
const PEOPLE: &str = r#"
set -eu
longhaul=$1 HOME_OF_ADA=$2
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
echo "root:x:0:0::/root:/bin/sh
ada:x:65533:65533::$HOME_OF_ADA:/bin/sh" > /run/passwd
mount --bind /run/passwd /etc/passwd
chown 65533:65533 "$HOME_OF_ADA"
cd "$HOME_OF_ADA"
unset XDG_STATE_HOME XDG_RUNTIME_DIR
ada() { setpriv --reuid=65533 --regid=65533 --clear-groups env HOME="$HOME_OF_ADA" "$longhaul" "$@"; }
sudo() { SUDO_UID=65533 SUDO_USER=ada HOME=/root "$longhaul" "$@"; }
root() { HOME=/root "$longhaul" "$@"; }
fail() { echo "failed: $*" >&2; cat said >&2; exit 42; }
ada array create vol --layout mirror --device "file:$PWD/a,size=16MiB" --device "file:$PWD/b,size=16MiB"
arrays=$HOME_OF_ADA/.local/state/longhaul/arrays
"#;

/// Runs a script behind [`PEOPLE`], in namespaces of its own; nothing where that cannot be.
fn run(script: &str) -> Option<Ran> {
    let home = tempfile::tempdir().expect("directory");
    let mut command = Command::new("unshare");
    // What the script leaves running ends with it.
    command.args([
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        &format!("{LEAVE_MOUNTS}\nip link set lo up\n{PEOPLE}{script}"),
        "sh",
    ]);
    command.args([Path::new(env!("CARGO_BIN_EXE_longhaul")), home.path()]);
    command.env("XDG_CONFIG_HOME", "/nonexistent").env_remove("LONGHAUL_LOG").stdin(Stdio::null());
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare"));
    let reasons = ["unshare: ", "mount: ", "setpriv: ", "Permission denied"];
    if ran.code != Some(0) && reasons.iter().any(|reason| ran.stderr.contains(reason)) {
        longhaul_skip::skip!("needs root and a program that every user may run: {}", ran.stderr);
        return None;
    }
    Some(ran)
}

#[test]
fn root_finds_the_arrays_of_the_user_that_calls_sudo() {
    let script = r#"
sudo array list > said
grep -q '^ *vol .* ada *$' said || fail "sudo does not list it"
sudo bench array:vol --rw write --bs 64k --verify crc32c > said 2>&1 || fail "sudo does not open it"
test -z "$(find "$HOME_OF_ADA/.local" -uid 0)" || fail "root's files in the user's state"
sudo array status vol > said || fail "status"
# Run by root, it answers the user that made it.
SUDO_UID=65533 "$longhaul" target --listen 127.0.0.1:4420 --discovery none --export v=array:vol > ready &
target=$!
until grep -q ready ready; do kill -0 $target; sleep 0.1; done
ada array status vol --json > said
grep -q '"running":true' said || fail "the user does not see that it runs"
ada array list > said
grep -q '^ *vol .* healthy ' said || fail "the list does not say that it runs"
ada array stop vol > said 2>&1 || fail "stop"
kill -TERM $target; wait $target || true
# Root by itself does not guess, and says what the rule is.
if root array status vol > said 2>&1; then fail "root guesses"; fi
grep -q 'recorded for the user that makes them' said || fail "the rule is not said"
echo whole
"#;
    let Some(ran) = run(script) else { return };
    assert!(ran.code == Some(0) && ran.stdout.ends_with("whole\n"), "{ran:?}");
}

#[test]
fn the_arrays_of_root_are_the_machines_and_a_user_is_referred_to_sudo() {
    let script = r#"
for home in /root "$HOME_OF_ADA" ''; do
    HOME=$home "$longhaul" array create "own${#home}" --layout mirror \
        --device "file:$PWD/c${#home},size=16MiB" --device "file:$PWD/d${#home},size=16MiB"
done
test "$(ls /var/lib/longhaul/arrays/*.json | wc -l)" = 3 || fail "not where a service looks"
test -z "$(find "$HOME_OF_ADA/.local" -uid 0)" || fail "root's files in the user's state"
if ada array status own0 2> said; then fail "a user has root's"; fi
grep -q "is root's on this host: run this with sudo" said || fail "not referred"
sudo array status own0 > said || fail "sudo has root's as well"
echo whole
"#;
    let Some(ran) = run(script) else { return };
    assert!(ran.code == Some(0) && ran.stdout.ends_with("whole\n"), "{ran:?}");
}

#[test]
fn a_link_in_the_state_of_a_user_leads_root_nowhere() {
    let script = r#"
mkdir /run/roots && mv "$arrays" moved && cp moved/*.json /run/roots && ln -s /run/roots "$arrays"
before=$(ls -l /run/roots)
sudo bench array:vol --rw write --bs 64k --size 1m > said 2>&1 || fail "bench"
test "$before" = "$(ls -l /run/roots)" || fail "root wrote where the user may not"
chmod 700 /run/roots
if sudo array status vol > said 2>&1; then fail "root read where the user may not"; fi
echo whole
"#;
    let Some(ran) = run(script) else { return };
    assert!(ran.code == Some(0) && ran.stdout.ends_with("whole\n"), "{ran:?}");
}
