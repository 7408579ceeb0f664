//! A file system in memory, as POSIX has it.

use super::{APPEND, Calls, EXCLUSIVE, ROOT, Result, TRUNCATE, WRITE, pattern};
use longhaul_fs::{Call, Errno, FileKind, FileSystem, Handle, Node, Reply};
use longhaul_poolfs::PoolFs;
use std::collections::BTreeMap;

/// Largest file: two chunks of extents.
const LARGEST: u64 = 20 << 20;
const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Object {
    pub thing: Thing,
    pub links: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// An open file.
#[derive(Clone, Debug)]
struct Open {
    object: u64,
    handle: Handle,
    appends: bool,
}

/// The model, by the numbers of nodes.
pub struct Model {
    pub objects: BTreeMap<u64, Object>,
    open: Vec<Open>,
    pub rng: fastrand::Rng,
    steps: u64,
}

fn errno<T>(result: &Result<T>) -> Option<Errno> {
    result.as_ref().err().copied()
}

impl Model {
    pub fn new(seed: u64) -> Model {
        let root = Object { thing: Thing::Directory(BTreeMap::new()), links: 2, xattrs: BTreeMap::new() };
        Model {
            objects: [(ROOT.0, root)].into(),
            open: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            steps: 0,
        }
    }

    fn directory(&mut self, number: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.objects.get_mut(&number).expect("there").thing {
            Thing::Directory(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn file(&mut self, number: u64) -> &mut Vec<u8> {
        match &mut self.objects.get_mut(&number).expect("there").thing {
            Thing::File(content) => content,
            other => panic!("{other:?}"),
        }
    }

    fn is_directory(&self, number: u64) -> bool {
        matches!(self.objects[&number].thing, Thing::Directory(_))
    }

    /// Directories, with their paths from the top.
    fn directories(&self) -> Vec<u64> {
        self.objects
            .iter()
            .filter(|(_, o)| matches!(o.thing, Thing::Directory(_)) && o.links > 0)
            .map(|(n, _)| *n)
            .collect()
    }

    fn any_directory(&mut self) -> u64 {
        let all = self.directories();
        all[self.rng.usize(..all.len())]
    }

    fn any_name(&mut self) -> Vec<u8> {
        match self.rng.u8(0..12) {
            0 => vec![b'x'; 255],
            1 => vec![0xff, 0xfe],
            n => format!("n{n}").into_bytes(),
        }
    }

    /// A file that has a name.
    fn any_file(&mut self) -> Option<u64> {
        let files: Vec<u64> = self
            .objects
            .iter()
            .filter(|(_, o)| matches!(o.thing, Thing::File(_)) && o.links > 0)
            .map(|(number, _)| *number)
            .collect();
        (!files.is_empty()).then(|| files[self.rng.usize(..files.len())])
    }

    fn is_below(&self, number: u64, top: u64) -> bool {
        number == top
            || match &self.objects[&top].thing {
                Thing::Directory(entries) => entries.values().any(|entry| self.is_below(number, *entry)),
                _ => false,
            }
    }

    fn drop_link(&mut self, number: u64) {
        let is_open = self.open.iter().any(|open| open.object == number);
        let object = self.objects.get_mut(&number).expect("there");
        object.links -= 1;
        if object.links == 0 && !is_open {
            self.objects.remove(&number);
        }
    }

    fn any_range(&mut self) -> (u64, usize) {
        let offset = match self.rng.u8(0..4) {
            0 => self.rng.u64(0..LARGEST - (2 << 20)),
            1 => self.rng.u64(0..64) * 4096,
            _ => self.rng.u64(0..200_000),
        };
        let len = match self.rng.u8(0..8) {
            0 => self.rng.usize(1..900_000),
            1..4 => self.rng.usize(1..100),
            _ => self.rng.usize(1..70_000),
        };
        (offset, len)
    }

    /// One random change, here and there; the results are the same.
    pub fn step(&mut self, fs: &PoolFs) {
        self.steps += 1;
        match self.rng.u8(0..100) {
            0..10 => self.create(fs),
            10..16 => self.make_directory(fs),
            16..19 => self.make_link(fs),
            19..24 => self.hard_link(fs),
            24..32 => self.remove(fs),
            32..40 => self.rename(fs),
            40..46 => self.open(fs),
            46..52 => self.close(fs),
            52..72 => self.write(fs),
            72..84 => self.read(fs),
            84..89 => self.resize(fs),
            89..92 => self.punch(fs),
            92..94 => self.seek(fs),
            94..96 => self.sync(fs),
            96..98 => self.xattr(fs),
            _ => self.list(fs),
        }
    }

    fn create(&mut self, fs: &PoolFs) {
        let (parent, name) = (self.any_directory(), self.any_name());
        let flags = [WRITE, APPEND, EXCLUSIVE][self.rng.usize(..3)];
        let made = fs.create(Node(parent), &name, flags);
        let there = self.directory(parent).get(&name).copied();
        let expected = match there {
            None => None,
            Some(_) if flags == EXCLUSIVE => Some(Errno::EXIST),
            Some(there) => match self.objects[&there].thing {
                Thing::File(_) => None,
                Thing::Directory(_) => Some(Errno::ISDIR),
                Thing::Link(_) => Some(Errno::LOOP),
            },
        };
        assert_eq!(errno(&made), expected, "create {parent} {name:?}");
        let Ok((attributes, handle)) = made else { return };
        let number = attributes.node.0;
        if there.is_none() {
            let object = Object { thing: Thing::File(Vec::new()), links: 1, xattrs: BTreeMap::new() };
            assert!(self.objects.insert(number, object).is_none(), "a number was used again");
            self.directory(parent).insert(name, number);
        }
        assert_eq!(there.unwrap_or(number), number);
        self.open.push(Open { object: number, handle, appends: flags == APPEND });
    }

    fn make_directory(&mut self, fs: &PoolFs) {
        let (parent, name) = (self.any_directory(), self.any_name());
        let made = fs.make_directory(Node(parent), &name);
        let expected = self.directory(parent).contains_key(&name).then_some(Errno::EXIST);
        assert_eq!(errno(&made), expected);
        let Ok(attributes) = made else { return };
        let object = Object { thing: Thing::Directory(BTreeMap::new()), links: 2, xattrs: BTreeMap::new() };
        self.objects.insert(attributes.node.0, object);
        self.directory(parent).insert(name, attributes.node.0);
        self.objects.get_mut(&parent).expect("there").links += 1;
    }

    fn make_link(&mut self, fs: &PoolFs) {
        let (parent, name) = (self.any_directory(), self.any_name());
        let made = fs.symlink(Node(parent), &name, b"to/there");
        let expected = self.directory(parent).contains_key(&name).then_some(Errno::EXIST);
        assert_eq!(errno(&made), expected);
        let Ok(attributes) = made else { return };
        let object = Object { thing: Thing::Link(b"to/there".to_vec()), links: 1, xattrs: BTreeMap::new() };
        self.objects.insert(attributes.node.0, object);
        self.directory(parent).insert(name, attributes.node.0);
    }

    fn hard_link(&mut self, fs: &PoolFs) {
        let (parent, name) = (self.any_directory(), self.any_name());
        let Some(file) = self.any_file() else { return };
        let linked = fs.link(Node(file), Node(parent), &name);
        let expected = self.directory(parent).contains_key(&name).then_some(Errno::EXIST);
        assert_eq!(errno(&linked), expected);
        if linked.is_ok() {
            self.directory(parent).insert(name, file);
            self.objects.get_mut(&file).expect("there").links += 1;
        }
    }

    fn remove(&mut self, fs: &PoolFs) {
        let (parent, name, directory) = (self.any_directory(), self.any_name(), self.rng.u8(0..4) == 0);
        let removed = fs.remove(Node(parent), &name, directory);
        let there = self.directory(parent).get(&name).copied();
        let expected = match there.map(|there| (there, &self.objects[&there].thing)) {
            None => Some(Errno::NOENT),
            Some((_, Thing::Directory(_))) if !directory => Some(Errno::ISDIR),
            Some((_, Thing::Directory(entries))) => (!entries.is_empty()).then_some(Errno::NOTEMPTY),
            Some(_) => directory.then_some(Errno::NOTDIR),
        };
        assert_eq!(errno(&removed), expected, "remove {parent} {name:?} {directory}");
        if let (Ok(()), Some(there)) = (removed, there) {
            self.directory(parent).remove(&name);
            if directory {
                self.objects.remove(&there);
                self.objects.get_mut(&parent).expect("there").links -= 1;
            } else {
                self.drop_link(there);
            }
        }
    }

    fn rename(&mut self, fs: &PoolFs) {
        let (from, name) = (self.any_directory(), self.any_name());
        let (to, new_name) = (self.any_directory(), self.any_name());
        let flags = [0, 0, NOREPLACE, EXCHANGE][self.rng.usize(..4)];
        let renamed = fs.rename((Node(from), &name), (Node(to), &new_name), flags);
        let moved = self.directory(from).get(&name).copied();
        let there = self.directory(to).get(&new_name).copied();
        // Which of several errors it is, POSIX leaves open; that nothing has changed is seen later.
        let is_refused = match (moved, there) {
            (None, _) => true,
            (Some(_), None) if flags == EXCHANGE => true,
            (Some(_), Some(_)) if flags == NOREPLACE => true,
            (Some(moved), Some(there)) if moved == there => false,
            (Some(moved), there) => {
                let below = |top: u64, place: u64| self.is_directory(top) && self.is_below(place, top);
                let is_loop =
                    below(moved, to) || flags == EXCHANGE && there.is_some_and(|there| below(there, from));
                is_loop
                    || flags != EXCHANGE
                        && there.is_some_and(|there| {
                            match (&self.objects[&moved].thing, &self.objects[&there].thing) {
                                (Thing::Directory(_), Thing::Directory(entries)) => !entries.is_empty(),
                                (Thing::Directory(_), _) | (_, Thing::Directory(_)) => true,
                                _ => false,
                            }
                        })
            }
        };
        assert_eq!(
            renamed.is_err(),
            is_refused,
            "rename {from} {name:?} to {to} {new_name:?} {flags}: {renamed:?}"
        );
        let (Ok(()), Some(moved)) = (renamed, moved) else { return };
        if there == Some(moved) {
            return;
        }
        let count = |model: &mut Model, directory: u64, change: i64| {
            let object = model.objects.get_mut(&directory).expect("there");
            object.links = (i64::from(object.links) + change) as u32;
        };
        if self.is_directory(moved) {
            count(self, from, -1);
            count(self, to, 1);
        }
        if let Some(there) = there {
            if flags == EXCHANGE {
                if self.is_directory(there) {
                    count(self, to, -1);
                    count(self, from, 1);
                }
                self.directory(from).insert(name, there);
                self.directory(to).insert(new_name, moved);
                return;
            }
            if self.is_directory(there) {
                self.objects.remove(&there);
                count(self, to, -1);
            } else {
                self.drop_link(there);
            }
        }
        self.directory(from).remove(&name);
        self.directory(to).insert(new_name, moved);
    }

    fn open(&mut self, fs: &PoolFs) {
        let Some(file) = self.any_file() else { return };
        if self.open.len() > 12 {
            return self.close(fs);
        }
        let flags = [WRITE, WRITE, APPEND, TRUNCATE][self.rng.usize(..4)];
        let (attributes, handle) = fs.open(Node(file), flags).expect("opened");
        if flags == TRUNCATE {
            self.file(file).clear();
        }
        assert_eq!(attributes.size, self.file(file).len() as u64);
        self.open.push(Open { object: file, handle, appends: flags == APPEND });
    }

    fn close(&mut self, fs: &PoolFs) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.open.len());
        let open = self.open.swap_remove(at);
        fs.close(open.handle).expect("closed");
        if self.objects[&open.object].links == 0 && !self.open.iter().any(|other| other.object == open.object)
        {
            self.objects.remove(&open.object);
        }
    }

    /// Makes everything durable.
    pub fn sync_all(&mut self, fs: &PoolFs) {
        for open in &self.open {
            fs.sync(open.handle).expect("synced");
        }
        fs.wait(Call::SyncDirectory { node: ROOT }).expect("synced");
    }

    /// What has a name now.
    pub fn copy(&self) -> Model {
        let named = self.objects.iter().filter(|(_, object)| object.links > 0);
        Model {
            objects: named.map(|(number, object)| (*number, object.clone())).collect(),
            open: Vec::new(),
            rng: fastrand::Rng::with_seed(0),
            steps: 0,
        }
    }

    pub fn close_all(&mut self, fs: &PoolFs) {
        while !self.open.is_empty() {
            self.close(fs);
        }
    }

    fn any_open(&mut self) -> Option<Open> {
        (!self.open.is_empty()).then(|| self.open[self.rng.usize(..self.open.len())].clone())
    }

    fn write(&mut self, fs: &PoolFs) {
        let Some(open) = self.any_open() else { return };
        let (mut offset, len) = self.any_range();
        let data = pattern(len, self.steps);
        let content = self.file(open.object);
        if open.appends {
            if content.len() as u64 > LARGEST {
                return;
            }
            offset = content.len() as u64;
        }
        let end = offset as usize + len;
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&data);
        assert_eq!(fs.write(open.handle, offset, &data), Ok(len as u32));
    }

    fn read(&mut self, fs: &PoolFs) {
        let Some(open) = self.any_open() else { return };
        let (offset, len) = self.any_range();
        let found = fs.read(open.handle, offset, len as u32).expect("read");
        let content = self.file(open.object);
        let from = (offset as usize).min(content.len());
        let expected = &content[from..content.len().min(from + len)];
        assert_eq!(found.len(), expected.len());
        if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
            panic!(
                "byte {} of {} is {} instead of {}",
                offset + at as u64,
                open.object,
                found[at],
                expected[at]
            );
        }
    }

    fn resize(&mut self, fs: &PoolFs) {
        let Some(file) = self.any_file() else { return };
        let now = self.file(file).len() as u64;
        let size = if self.rng.bool() { self.rng.u64(0..=now) } else { self.any_range().0 };
        assert_eq!(fs.resize(Node(file), size).expect("resized").size, size);
        self.file(file).resize(size as usize, 0);
    }

    fn punch(&mut self, fs: &PoolFs) {
        let Some(open) = self.any_open() else { return };
        let (offset, len) = self.any_range();
        let keeps_size = self.rng.bool();
        // FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE, or FALLOC_FL_ZERO_RANGE.
        let mode = if keeps_size { 0x03 } else { 0x10 };
        fs.punch(open.handle, offset, len as u64, mode).expect("punched");
        let content = self.file(open.object);
        let end = offset as usize + len;
        if !keeps_size {
            content.resize(content.len().max(end), 0);
        }
        let (from, to) = ((offset as usize).min(content.len()), end.min(content.len()));
        content[from..to].fill(0);
    }

    fn seek(&mut self, fs: &PoolFs) {
        let Some(open) = self.any_open() else { return };
        let (offset, _) = self.any_range();
        let content = self.file(open.object);
        let found = fs.seek(open.handle, offset, false);
        if offset >= content.len() as u64 {
            assert_eq!(found, Err(Errno::NXIO));
            return;
        }
        // Where there is no data, there are zeroes.
        let data = found.unwrap_or(content.len() as u64) as usize;
        assert!(content[offset as usize..data].iter().all(|byte| *byte == 0), "data is skipped");
        let hole = fs.seek(open.handle, offset, true).expect("a hole");
        assert!(offset <= hole && hole <= content.len() as u64);
        if data as u64 == offset && hole < content.len() as u64 {
            let found = fs.read(open.handle, hole, 1).expect("read");
            assert_eq!(found, [0], "a hole reads as zeroes");
        }
    }

    fn sync(&mut self, fs: &PoolFs) {
        let Some(open) = self.any_open() else { return };
        fs.wait(Call::Sync { handle: open.handle, data_only: false }).expect("synced");
    }

    fn xattr(&mut self, fs: &PoolFs) {
        let Some(file) = self.any_file() else { return };
        let (node, name) = (Node(file), format!("user.{}", self.rng.u8(0..3)).into_bytes());
        let xattrs = &mut self.objects.get_mut(&file).expect("there").xattrs;
        if self.rng.u8(0..3) == 0 {
            let removed = fs.wait(Call::RemoveXattr { node, name: name.clone() });
            let expected = xattrs.remove(&name).is_none().then_some(Errno::NODATA);
            assert_eq!(errno(&removed), expected);
        } else {
            let value = vec![self.rng.u8(..); self.rng.usize(0..50)];
            fs.wait(Call::SetXattr { node, name: name.clone(), value: value.clone(), flags: 0 })
                .expect("set");
            xattrs.insert(name, value);
        }
    }

    fn list(&mut self, fs: &PoolFs) {
        let directory = self.any_directory();
        self.compare_directory(fs, directory);
    }

    fn compare_directory(&self, fs: &PoolFs, number: u64) {
        let Thing::Directory(entries) = &self.objects[&number].thing else { panic!("a directory") };
        let listed = fs.list(Node(number)).expect("listed");
        assert_eq!(listed.keys().collect::<Vec<_>>(), entries.keys().collect::<Vec<_>>());
        for (name, attributes) in listed {
            let entry = entries[&name];
            assert_eq!(attributes.node.0, entry);
            let object = &self.objects[&entry];
            assert_eq!(attributes.links, object.links, "links of {entry}");
            assert_eq!(attributes.is_plain, object.xattrs.is_empty());
            match &object.thing {
                Thing::File(content) => {
                    assert_eq!(
                        (attributes.kind(), attributes.size),
                        (FileKind::Regular, content.len() as u64)
                    );
                }
                Thing::Directory(_) => assert_eq!(attributes.kind(), FileKind::Directory),
                Thing::Link(target) => {
                    assert_eq!(
                        (attributes.kind(), attributes.size),
                        (FileKind::Symlink, target.len() as u64)
                    );
                }
            }
        }
    }

    /// Everything is there as it is here.
    pub fn compare(&self, fs: &PoolFs) {
        for (number, object) in &self.objects {
            if object.links == 0 {
                continue;
            }
            let node = Node(*number);
            match &object.thing {
                Thing::Directory(_) => self.compare_directory(fs, *number),
                Thing::Link(target) => match fs.wait(Call::ReadLink { node }).expect("read") {
                    Reply::Bytes(found) => assert_eq!(found, *target),
                    other => panic!("{other:?}"),
                },
                Thing::File(content) => {
                    let (attributes, handle) = fs.open(node, 0).expect("opened");
                    assert_eq!(attributes.size, content.len() as u64);
                    for (index, part) in content.chunks(1 << 20).enumerate() {
                        let found = fs.read(handle, (index as u64) << 20, part.len() as u32).expect("read");
                        assert!(found == part, "MiB {index} of {number} differs");
                    }
                    fs.close(handle).expect("closed");
                    for (name, value) in &object.xattrs {
                        match fs.wait(Call::GetXattr { node, name: name.clone() }).expect("there") {
                            Reply::Bytes(found) => assert_eq!(found, *value),
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
        }
    }
}
