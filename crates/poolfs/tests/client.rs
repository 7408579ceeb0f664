//! Files by their paths, without FUSE.

mod common;

use common::{assert_right, mount, parity, pattern};
use longhaul_fs::{Errno, FileKind};
use longhaul_poolfs::Client;
use std::sync::Arc;

both! { a_program_uses_files_by_their_paths }

fn a_program_uses_files_by_their_paths(leases: bool) {
    let fs = parity();
    let client = Client::new(Arc::new(mount(&fs, leases)));
    client.create_dir_all(b"/a/b/c").expect("made");
    client.create_dir_all(b"a/b").expect("there already");
    let content = pattern((1 << 20) + 12_345, 1);
    client.write(b"a/b/c/file", &content).expect("written");
    assert!(client.read(b"/a//b/./c/file").expect("read") == content);
    client.write(b"a/b/c/file", b"short").expect("replaced");
    assert_eq!(client.read(b"a/b/c/file"), Ok(b"short".to_vec()));
    client.write(b"a/b/c/\xff\xfe", b"").expect("any bytes are a name");
    let listed: Vec<Vec<u8>> =
        client.read_dir(b"a/b/c").expect("listed").into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, [b"file".to_vec(), b"\xff\xfe".to_vec()]);
    client.rename(b"a/b/c/file", b"a/moved").expect("moved");
    assert_eq!(
        client.metadata(b"a/moved").map(|found| (found.kind(), found.size)),
        Ok((FileKind::Regular, 5))
    );
    // What cannot be is refused, and changes nothing.
    assert_eq!(client.read(b"a/b/c/file").map(drop), Err(Errno::NOENT));
    assert_eq!(client.metadata(b"a/moved/x").map(drop), Err(Errno::NOTDIR));
    assert_eq!(client.create_dir_all(b"a/moved/x"), Err(Errno::NOTDIR));
    assert_eq!(client.write(b"a/moved/x", b""), Err(Errno::NOTDIR));
    assert_eq!(client.write(b"a/b", b""), Err(Errno::ISDIR));
    assert_eq!(client.write(b"/", b""), Err(Errno::INVAL));
    assert_eq!(client.read(b"a").map(drop), Err(Errno::ISDIR));
    assert_eq!(client.remove(b"a/b"), Err(Errno::NOTEMPTY));
    assert_eq!(client.write(&[b'x'; 256], b""), Err(Errno::NAMETOOLONG));
    for path in [&b"a/b/c/\xff\xfe"[..], b"a/b/c", b"a/b", b"a/moved"] {
        client.remove(path).expect("removed");
    }
    client.sync().expect("synced");
    assert_eq!(client.read_dir(b"a").map(|all| all.len()), Ok(0));
    assert_eq!(assert_right(&fs).files, 0);
}
