//! Tests of the keys of hosts.

use super::*;
use crate::error::ErrorKind;
use longhaul_auth::HashFunction;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

const HOST: &str = "nqn.2026-11.io.longhaul:test:host";

const SUBSYSTEM: &str = "nqn.2026-11.io.longhaul:test:scratch";

const TLS: Made = Made::Tls { hash: HashFunction::Sha256 };

fn secrets(is_mutual: bool) -> Made {
    Made::Secrets { hash: HashFunction::Sha256, is_mutual }
}

fn made(dir: &Path, is_mutual: bool) -> PathBuf {
    make(dir, HOST, secrets(is_mutual), true, &mut longhaul_engine::random).unwrap().0
}

#[test]
fn what_is_made_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let place = made(dir.path(), true);
    let keys = read(dir.path()).unwrap();
    let first = keys[HOST].secrets().unwrap();
    let key = &first.current;
    assert!(keys.len() == 1 && key.controller.is_some());
    assert_ne!(Some(&key.secret), key.controller.as_ref(), "two secrets");
    let again = make(dir.path(), HOST, secrets(true), false, &mut longhaul_engine::random);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(read(dir.path()).unwrap(), keys, "nothing was changed");
    made(dir.path(), false);
    let replaced = read(dir.path()).unwrap()[HOST].secrets().unwrap();
    assert_eq!(replaced.current.controller, None);
    assert_eq!((replaced.number, &replaced.retired), (2, &Some(first.current)));
    for entry in fs::read_dir(place).unwrap() {
        let meta = entry.unwrap().metadata().unwrap();
        assert_eq!(meta.mode() & 0o777, if meta.is_dir() { 0o700 } else { 0o600 });
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the hosts");
}

#[test]
fn a_key_is_rotated_and_then_retired() {
    let dir = tempfile::tempdir().unwrap();
    let random = &mut longhaul_engine::random;
    assert_eq!(rotate(dir.path(), HOST, None, false, random).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(retire(dir.path(), HOST).unwrap_err().kind(), ErrorKind::Invalid);
    made(dir.path(), true);
    let source = KeyDirectory::open(dir.path()).unwrap();
    let first = source.key_of(HOST, SUBSYSTEM).unwrap().unwrap();
    assert_eq!(retire(dir.path(), HOST).unwrap_err().kind(), ErrorKind::Refused, "nothing to retire");
    let second = rotate(dir.path(), HOST, None, false, random).unwrap().1.secrets().unwrap();
    assert_eq!(
        source.key_of(HOST, SUBSYSTEM).unwrap().as_ref(),
        Some(&second),
        "seen without opening it again"
    );
    assert_eq!((second.number, &second.previous), (2, &Some(first.current.clone())));
    assert!(second.current.controller.is_some() && second.current != first.current);
    let twice = rotate(dir.path(), HOST, None, false, random).unwrap_err();
    assert!(twice.kind() == ErrorKind::Refused && twice.to_string().contains("key retire"), "{twice}");
    assert_eq!(retire(dir.path(), HOST).unwrap(), 1);
    let alone = source.key_of(HOST, SUBSYSTEM).unwrap().unwrap();
    assert_eq!((alone.number, alone.previous, alone.retired), (2, None, Some(first.current)));
    rotate(dir.path(), HOST, Some(HashFunction::Sha512), false, random).unwrap();
    let fourth = rotate(dir.path(), HOST, None, true, random).unwrap().1.secrets().unwrap();
    assert_eq!((fourth.number, fourth.retired), (4, Some(second.current)));
    assert_eq!(fourth.current.secret.hash(), Some(HashFunction::Sha512), "as the one before");
}

/// Both kinds are of one host, and are replaced one by one or, by a rotation, together.
#[test]
fn a_key_for_tls_is_kept_beside_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let random = &mut longhaul_engine::random;
    let (place, alone) = make(dir.path(), HOST, TLS, false, random).unwrap();
    let source = KeyDirectory::open(dir.path()).unwrap();
    let tls = source.tls_key_of(HOST, SUBSYSTEM).unwrap().expect("a key for TLS");
    assert!(alone.secrets().is_none() && source.key_of(HOST, SUBSYSTEM).unwrap().is_none());
    let text = fs::read_to_string(place.join(TLS_KEY)).unwrap();
    assert_eq!(text.parse::<TlsKey>(), Ok(tls.current.clone()));
    assert_eq!(fs::metadata(place.join(TLS_KEY)).unwrap().mode() & 0o777, 0o600);
    let again = make(dir.path(), HOST, TLS, false, random).unwrap_err();
    assert!(again.kind() == ErrorKind::Refused && again.to_string().contains("a key for TLS"), "{again}");
    make(dir.path(), HOST, secrets(true), false, random).unwrap();
    assert_eq!(source.tls_key_of(HOST, SUBSYSTEM).unwrap(), Some(tls.clone()), "secrets came beside it");
    let chap = source.key_of(HOST, SUBSYSTEM).unwrap().expect("secrets");
    make(dir.path(), HOST, TLS, true, random).unwrap();
    let second = source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap();
    assert_eq!((second.number, &second.previous, &second.retired), (2, &None, &Some(tls.current)));
    assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().current, chap.current, "they stay");
    rotate(dir.path(), HOST, Some(HashFunction::Sha512), false, random).unwrap();
    let third = source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap();
    assert_eq!((third.number, &third.previous), (3, &Some(second.current.clone())));
    assert_eq!(third.current.hash(), HashFunction::Sha384, "TLS has no suite of SHA-512");
    assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().previous, Some(chap.current));
    retire(dir.path(), HOST).unwrap();
    assert_eq!(source.tls_key_of(HOST, SUBSYSTEM).unwrap().unwrap().retired, Some(second.current));
}

#[test]
fn keys_for_one_export_count_for_it_alone_and_in_place_of_those_for_all() {
    const OTHER: &str = "nqn.2026-11.io.longhaul:test:archive";
    const ELSEWHERE: &str = "nqn.2026-11.io.longhaul:test:host2";
    let dir = tempfile::tempdir().unwrap();
    let random = &mut longhaul_engine::random;
    let scratch = dir_of(dir.path(), Some("scratch")).unwrap();
    make(&scratch, HOST, secrets(true), false, random).unwrap();
    make(&scratch, HOST, TLS, false, random).unwrap();
    // They are enough, and are no keys for anything else.
    let source = KeyDirectory::open(dir.path()).unwrap();
    let own = source.key_of(HOST, SUBSYSTEM).unwrap().expect("a key");
    assert!(source.tls_key_of(HOST, SUBSYSTEM).unwrap().is_some());
    for subnqn in [OTHER, "scratch:nqn", "nqn.2014-08.org.nvmexpress.discovery", "scratch2", ""] {
        assert_eq!(source.key_of(HOST, subnqn).unwrap(), None, "{subnqn}");
        assert_eq!(source.tls_key_of(HOST, subnqn).unwrap(), None, "{subnqn}");
    }
    assert_eq!(source.key_of(ELSEWHERE, SUBSYSTEM).unwrap(), None);
    // Those for all do not count there, whatever kind they are.
    made(dir.path(), true);
    make(dir.path(), ELSEWHERE, TLS, false, random).unwrap();
    let all = source.key_of(HOST, OTHER).unwrap().expect("a key");
    assert_ne!(all.current, own.current);
    assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().as_ref(), Some(&own));
    assert!(source.tls_key_of(ELSEWHERE, SUBSYSTEM).unwrap().is_some(), "a host that is not there");
    make(&scratch, ELSEWHERE, secrets(true), false, random).unwrap();
    assert_eq!(source.tls_key_of(ELSEWHERE, SUBSYSTEM).unwrap(), None, "it has secrets there, and no key");
    // The whole NQN comes before the name.
    let whole = dir_of(dir.path(), Some(SUBSYSTEM)).unwrap();
    make(&whole, HOST, secrets(true), false, random).unwrap();
    let third = source.key_of(HOST, SUBSYSTEM).unwrap().expect("a key");
    assert!(third.current != own.current && third.current != all.current);
    // Each is rotated alone.
    rotate(&whole, HOST, None, false, random).unwrap();
    assert_eq!(source.key_of(HOST, SUBSYSTEM).unwrap().unwrap().previous, Some(third.current));
    assert_eq!(source.key_of(HOST, OTHER).unwrap(), Some(all));
    assert_eq!(exports_in(dir.path()).unwrap(), [SUBSYSTEM, "scratch"]);
    assert_eq!(source.without_export(&[OTHER.into()]).unwrap(), [SUBSYSTEM, "scratch"]);
    assert!(source.without_export(&[SUBSYSTEM.into()]).unwrap().is_empty());
    fs::set_permissions(dir.path().join(EXPORTS), fs::Permissions::from_mode(0o770)).unwrap();
    assert_eq!(KeyDirectory::open(dir.path()).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn a_subsystem_from_the_network_leads_to_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path(), true);
    let scratch = dir_of(dir.path(), Some("scratch")).unwrap();
    make(&scratch, HOST, secrets(true), false, &mut longhaul_engine::random).unwrap();
    let source = KeyDirectory::open(dir.path()).unwrap();
    let all = source.key_of(HOST, "nqn.2026-11.io.longhaul:none").unwrap();
    for subnqn in
        ["..", "nqn.x:..", "nqn.x:../exports/scratch", "nqn.x:./scratch", "nqn.x:", "nqn.x:a/../scratch"]
    {
        assert_eq!(source.key_of(HOST, subnqn).unwrap(), all, "{subnqn}");
    }
    for name in ["", ".", "..", "a/b", "\0"] {
        assert_eq!(dir_of(dir.path(), Some(name)).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn a_wrong_key_for_tls_is_named_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (place, _) = make(dir.path(), HOST, TLS, false, &mut longhaul_engine::random).unwrap();
    let path = place.join(TLS_KEY);
    let text = fs::read_to_string(&path).unwrap();
    for (wrong, says) in [
        (text.replace(":01:", ":03:"), "second field"),
        (text[..40].to_owned(), "colon"),
        (text.replace("NVMeTLSkey-1", "DHHC-1"), "DH-HMAC-CHAP"),
        (text.replacen(&text[20..22], "/+", 1), "check sum"),
    ] {
        fs::write(&path, &wrong).unwrap();
        let said = read(dir.path()).unwrap_err().to_string();
        assert!(said.contains(TLS_KEY) && said.contains(says) && !said.contains(&text[22..40]), "{said}");
    }
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn a_name_from_the_network_leads_to_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path(), true);
    let source = KeyDirectory::open(dir.path()).unwrap();
    for name in ["", ".", "..", "/etc", &format!("{HOST}/../{HOST}"), &format!("{HOST}/previous"), "nqn.\0"] {
        assert_eq!(source.key_of(name, SUBSYSTEM).unwrap(), None, "{name}");
    }
}

#[test]
fn what_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = made(dir.path(), true);
    let all = dir.path().join(HOSTS);
    for (path, mode) in [
        (place.join(HOST_SECRET), 0o640),
        (place.join(HOST_SECRET), 0o604),
        (place.join(CONTROLLER_SECRET), 0o644),
        (place.clone(), 0o750),
        (all, 0o701),
    ] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let e = read(dir.path()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Refused);
        let text = e.to_string();
        assert!(
            text.contains(&path.display().to_string()) && text.contains(&format!("{mode:03o}")),
            "{text}"
        );
        fs::set_permissions(&path, before).unwrap();
    }
    read(dir.path()).unwrap();
}

#[test]
fn what_is_no_secret_is_named_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let place = made(dir.path(), false);
    let path = place.join(HOST_SECRET);
    let text = fs::read_to_string(&path).unwrap();
    for wrong in ["", "DHHC-1:01:", &text[..40], &text.replace(":01:", ":07:"), "secret!"] {
        fs::write(&path, wrong).unwrap();
        let said = read(dir.path()).unwrap_err().to_string();
        assert!(said.contains(HOST_SECRET) && (wrong.len() < 20 || !said.contains(&wrong[10..])), "{said}");
    }
    fs::write(&path, text).unwrap();
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    assert!(read(dir.path()).unwrap_err().to_string().contains("has no dhchap_key"));
    fs::rename(&aside, &path).unwrap();
    DirBuilder::new().mode(0o700).create(dir.path().join(HOSTS).join("host1")).unwrap();
    assert!(read(dir.path()).unwrap_err().to_string().contains("host1"));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "",
        "..",
        "host",
        "nqn.2026-11.io.longhaul:../../x",
        &format!("nqn.2026-11.io.x:{}", "y".repeat(300)),
    ] {
        let result = make(dir.path(), name, TLS, true, &mut longhaul_engine::random);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(read(dir.path()).is_err());
    DirBuilder::new().mode(0o700).create(dir.path().join(HOSTS)).unwrap();
    assert!(read(dir.path()).unwrap_err().to_string().contains("longhaul key make"));
}

/// The directory as an archive of tar.
fn packed(dir: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", dir).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn an_archive_has_the_keys_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let random = &mut longhaul_engine::random;
    let (export, of_all) = ("scratch", "nqn.2026-11.io.longhaul:test:other");
    make(dir.path(), HOST, secrets(true), false, random).unwrap();
    rotate(dir.path(), HOST, None, false, random).unwrap();
    make(&dir_of(dir.path(), Some(export)).unwrap(), HOST, TLS, false, random).unwrap();
    let directory = KeyDirectory::open(dir.path()).unwrap();
    let archive = KeyDirectory::unpacked("x".into(), &packed(dir.path())).unwrap();
    for subsystem in [SUBSYSTEM, of_all] {
        for host in [HOST, "nqn.2026-11.io.longhaul:test:stranger", "no NQN", ".."] {
            assert_eq!(archive.key_of(host, subsystem), directory.key_of(host, subsystem), "{host}");
            assert_eq!(archive.tls_key_of(host, subsystem), directory.tls_key_of(host, subsystem));
        }
    }
    assert!(archive.tls_key_of(HOST, SUBSYSTEM).unwrap().is_some(), "of the export");
    assert!(archive.key_of(HOST, of_all).unwrap().unwrap().previous.is_some(), "a rotation is in it");
    assert_eq!(archive.without_export(&[of_all.into()]).unwrap(), [export]);
}

#[test]
fn an_archive_that_is_no_directory_of_keys_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path(), true);
    let refused = |archive: &[u8]| KeyDirectory::unpacked("the credential k".into(), archive).unwrap_err();
    let whole = packed(dir.path());
    assert!(refused(b"").to_string().contains("the credential k: it has no files"));
    assert!(refused(b"secret").to_string().contains("tar -C DIR -c ."));
    for cut in [700, 1500, 2100] {
        let _ = refused(&whole[..cut]);
    }
    fs::write(dir.path().join(HOSTS).join(HOST).join(TLS_KEY), "NVMeTLSkey-1:01:AAAA:").unwrap();
    let wrong = refused(&packed(dir.path()));
    assert!(wrong.to_string().contains(&format!("tls_key of hosts/{HOST} in the credential k")), "{wrong}");
    fs::remove_dir_all(dir.path().join(HOSTS).join(HOST)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(HOSTS).join(HOST)).unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    archive.append_dir_all(".", dir.path()).unwrap();
    assert!(refused(&archive.into_inner().unwrap()).to_string().contains("is no file of keys"));
}

#[test]
fn keys_of_the_kernel_are_read() {
    use linux_keyutils::{KeyRing, KeyRingIdentifier};
    let dir = tempfile::tempdir().unwrap();
    made(dir.path(), true);
    // One of this thread's process, which ends with it; some sandboxes have no keys.
    let Ok(ring) = KeyRing::from_special_id(KeyRingIdentifier::Session, true) else {
        longhaul_skip::skip!("the kernel has no keyrings here");
        return;
    };
    let name = format!("longhaul-test-{}", std::process::id());
    let Ok(key) = ring.add_key(&name, &packed(dir.path())) else {
        longhaul_skip::skip!("no key can be added to the kernel's");
        return;
    };
    let found = KeyDirectory::of_keyring(&name);
    key.invalidate().unwrap();
    assert!(found.unwrap().key_of(HOST, SUBSYSTEM).unwrap().is_some());
    let gone = KeyDirectory::of_keyring(&name).unwrap_err().to_string();
    assert!(gone.contains(&format!("cannot read keys: the key {name} of the kernel")), "{gone}");
}
