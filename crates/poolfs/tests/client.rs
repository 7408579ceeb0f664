//! Files by their paths, without FUSE.

mod common;

use common::{assert_right, mount, parity, pattern};
use longhaul_fs::{Errno, FileKind};
use longhaul_poolfs::Client;
use std::sync::Arc;

both! { a_program_uses_files_by_their_paths an_open_file_is_read_and_written_in_parts }

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

fn an_open_file_is_read_and_written_in_parts(leases: bool) {
    let fs = parity();
    let client = Client::new(Arc::new(mount(&fs, leases)));
    let content = pattern((3 << 20) + 12_345, 2);
    let file = client.create_new(b"file").expect("made");
    // Neither begins nor ends where pieces do.
    let (before, after) = content.split_at(777_777);
    file.write_at(before.len() as u64, after).expect("written");
    file.write_at(0, before).expect("written");
    file.sync().expect("synced");
    file.close().expect("closed");
    let file = client.open(b"file").expect("opened");
    assert_eq!(file.size(), content.len() as u64);
    let mut read = vec![0; content.len()];
    for (offset, len, found) in [
        (0, content.len(), content.len()),
        (5, 2 << 20, 2 << 20),
        ((1 << 20) - 1, 2, 2),
        (3 << 20, 1 << 20, 12_345),
        (content.len(), 1, 0),
        (1 << 30, 1, 0),
        (9, 0, 0),
    ] {
        let dst = &mut read[..len];
        assert_eq!(file.read_at(offset as u64, dst), Ok(found), "{len} at {offset}");
        assert!(dst[..found] == content[offset.min(content.len())..][..found], "{len} at {offset}");
    }
    assert_eq!(file.write_at(0, b"x"), Err(Errno::BADF));
    drop(file);
    assert_eq!(client.create_new(b"file").map(drop), Err(Errno::EXIST));
    let file = client.create(b"file", true).expect("opened");
    file.write_at(content.len() as u64, b"more").expect("appended");
    file.close().expect("closed");
    assert!(client.read(b"file").expect("read") == [&content[..], b"more"].concat());
    client.create_dir(b"d").expect("made");
    assert_eq!(client.create_dir(b"d"), Err(Errno::EXIST));
    assert_eq!(client.create_dir(b"x/y"), Err(Errno::NOENT));
    assert_right(&fs);
}
