//! Hostile agents that send names the client did not request.

mod common;

use common::peer::*;
use common::*;
use longhaul_engine::Buf;
use longhaul_transfer::wire::{
    Batch, Content, Entry, EntryKind, Frame, Hash, Refusal, RefusalKind, RelPath, VERSION, Welcome,
};
use longhaul_transfer::{Concurrency, CopyError, CopySpec, Monitor, SessionError, Settings, Summary, copy};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// Copies over one connection.
fn pull(spec: &CopySpec) -> Result<Summary, CopyError> {
    copy(spec, &Settings { streams: Concurrency::Fixed(1), ..Settings::default() }, &Arc::new(Monitor::new()))
}

fn from(agent: &FakeAgent, path: &str, to: &Path, recursive: bool) -> CopySpec {
    let from = endpoint(&format!("lh://{}/{path}", agent.address));
    CopySpec { recursive, ..spec(from, local(to)) }
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).expect("read").map(|e| e.expect("entry").file_name().into_string());
    let mut names: Vec<_> =
        all.map(|name| name.expect("UTF-8")).filter(|n| !n.starts_with(".longhaul-")).collect();
    names.sort();
    names
}

#[test]
fn a_pull_of_one_file_accepts_no_other() {
    let first = |name: &str| EntryKind::HardLink(RelPath::new(name.as_bytes()).expect("a good name"));
    let directory = |name| Entry { mode: 0o777, ..entry(name, EntryKind::Directory, 0) };
    let evil: Vec<(&str, bool, Vec<Frame>)> = vec![
        ("report.pdf", false, vec![Frame::Batch(small(".bashrc", b"evil").into_body())]),
        ("report.pdf", false, large(&entry(".bashrc", EntryKind::File, 4), 1, b"evil")),
        ("report.pdf", false, vec![bare(&entry(".bashrc", EntryKind::Symlink((*b"evil").into()), 0))]),
        ("report.pdf", false, vec![bare(&entry("report.pdf", first("secret"), 0))]),
        ("report.pdf", false, vec![bare(&directory(""))]),
        ("report.pdf", false, vec![bare(&directory("report.pdf"))]),
        ("tree", true, vec![Frame::Batch(small(".ssh/authorized_keys", b"evil").into_body())]),
        ("tree", true, vec![bare(&directory(""))]),
    ];
    for (path, recursive, frames) in evil {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("secret"), "mine").expect("written");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("set");
        let agent = FakeAgent::sends(frames);
        let result = pull(&from(&agent, path, dir.path(), recursive));
        let answer = agent.end();
        assert!(matches!(&result, Err(CopyError::Session(SessionError::Violation(_)))), "{path}: {result:?}");
        assert!(matches!(&answer, Some(Frame::Refuse(r)) if r.kind == RefusalKind::Protocol), "{answer:?}");
        assert_eq!(names(dir.path()), ["secret"], "{path}");
        let mode = fs::metadata(dir.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "the directory stays as it was");
    }
    // The same agent, with the requested file.
    let dir = tempfile::tempdir().expect("a directory");
    let agent = FakeAgent::sends(vec![Frame::Batch(small("report.pdf", b"good").into_body())]);
    let counts = pull(&from(&agent, "docs/report.pdf", dir.path(), false)).expect("copied").counts;
    assert_eq!((counts.files, names(dir.path())), (1, vec!["report.pdf".to_owned()]));
}

#[test]
fn filters_and_file_lists_hold_against_any_sender() {
    let cases = [("-*.sh", "", "tree/a/x.sh"), ("-cache", "", "tree/cache/x"), ("", "a/y", "tree/a/x")];
    for (filter, file, name) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let agent = FakeAgent::sends(vec![Frame::Batch(small(name, b"evil").into_body())]);
        let mut spec = from(&agent, "tree", dir.path(), true);
        let given = |text: &'static str| Some(text).filter(|text| !text.is_empty());
        spec.filters = given(filter).map(str::to_owned).into_iter().collect();
        spec.files = given(file).map(|file| file.as_bytes().to_vec()).into_iter().collect();
        let result = pull(&spec);
        agent.end();
        assert!(matches!(&result, Err(CopyError::Session(SessionError::Violation(_)))), "{name}: {result:?}");
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}

/// A batch of one small file with an extended attribute.
fn with_xattr(name: &str, data: &[u8], xattr: &str) -> Frame {
    let xattrs = vec![(xattr.as_bytes().into(), (*b"value").into())];
    let entry = Entry { xattrs, ..entry(name, EntryKind::File, data.len() as u64) };
    let mut batch = Batch::default();
    let content = Content::Inline { len: data.len() as u32, digest: Hash::Quick.of(data) };
    batch.push(&entry, &content, data);
    Frame::Batch(batch.into_body())
}

#[test]
fn system_attributes_are_refused_and_others_need_the_option() {
    let xattr = |path: &Path, name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(path, name, &mut value).is_ok()
    };
    for name in ["security.capability", "trusted.overlay.opaque", "system.sockprotoname", ""] {
        for wanted in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let agent = FakeAgent::sends(vec![with_xattr("f", b"1", name)]);
            let mut spec = from(&agent, "f", dir.path(), false);
            spec.options.xattrs = wanted;
            let result = pull(&spec);
            agent.end();
            assert!(matches!(&result, Err(CopyError::Session(SessionError::Violation(_)))), "{result:?}");
            assert_eq!(names(dir.path()), Vec::<String>::new());
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("probe"), "1").expect("written");
    let set = rustix::fs::setxattr(dir.path().join("probe"), "user.x", b"1", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        longhaul_skip::skip!("the file system has no extended attributes");
        return;
    }
    let xattrs = vec![((*b"user.x").into(), (*b"value").into())];
    let announced = Entry { xattrs, ..entry("g", EntryKind::File, 4) };
    for wanted in [false, true] {
        for (name, frames) in
            [("f", vec![with_xattr("f", b"1", "user.x")]), ("g", large(&announced, 1, b"good"))]
        {
            let agent = FakeAgent::sends(frames);
            let mut spec = from(&agent, name, dir.path(), false);
            spec.options.xattrs = wanted;
            pull(&spec).expect("copied");
            agent.end();
            assert_eq!(xattr(&dir.path().join(name), "user.x"), wanted, "{name}");
        }
    }
}

#[test]
fn an_agent_of_another_version_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = FakeAgent::answers(
        |_| Welcome { version: VERSION + 1, resume: false, by_content: false, congestion: String::new() },
        Vec::new(),
    );
    let result = pull(&from(&agent, "f", dir.path(), false));
    assert!(matches!(&result, Err(CopyError::Refused(r)) if r.kind == RefusalKind::Protocol), "{result:?}");
    let refusal = Refusal::new(RefusalKind::Version, "this side speaks version 9 of the transfer protocol");
    let agent = FakeAgent::begins(vec![Frame::Refuse(refusal)]);
    let result = pull(&from(&agent, "f", dir.path(), false));
    let Err(CopyError::Refused(refused)) = result else { panic!("{result:?}") };
    assert_eq!(refused.kind, RefusalKind::Version);
    assert!(refused.message.contains("version 9"), "{}", refused.message);
    // Not a frame at all.
    let agent = FakeAgent::begins(vec![Frame::Batch(Buf::copy_of(&[0; 100]))]);
    let result = pull(&from(&agent, "f", dir.path(), false));
    assert!(matches!(&result, Err(CopyError::Refused(r)) if r.kind == RefusalKind::Protocol), "{result:?}");
    assert_eq!(names(dir.path()), Vec::<String>::new());
}
