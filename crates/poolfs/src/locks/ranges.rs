//! The locks of a file as a list: each byte has at most one lock of an owner and kind, and locks that touch and
//! are alike are one.

use longhaul_fs::FileLock;

/// The locks, less what the owner of `lock` has of its bytes.
pub(super) fn without(held: &[FileLock], lock: &FileLock) -> Vec<FileLock> {
    let mut left = Vec::with_capacity(held.len() + 1);
    for old in held {
        if old.owner != lock.owner || !old.meets(lock) {
            left.push(*old);
            continue;
        }
        if old.start < lock.start {
            left.push(FileLock { end: lock.start - 1, ..*old });
        }
        if old.end > lock.end {
            left.push(FileLock { start: lock.end + 1, ..*old });
        }
    }
    left
}

/// The locks with `lock` in place of what its owner has of these bytes.
pub(super) fn with(held: &[FileLock], lock: &FileLock) -> Vec<FileLock> {
    let mut all = without(held, lock);
    all.push(*lock);
    all.sort_by_key(|lock| (lock.flock, lock.owner, lock.start));
    all.dedup_by(|next, last| {
        let is_one = (next.flock, next.owner, next.exclusive) == (last.flock, last.owner, last.exclusive)
            && last.end.checked_add(1) == Some(next.start);
        if is_one {
            last.end = next.end;
            // All end together where the owner closes any of its descriptors.
            last.handle = lock.handle;
        }
        is_one
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_fs::Handle;
    use std::collections::BTreeMap;

    const BYTES: u64 = 24;

    fn random(rng: &mut fastrand::Rng) -> FileLock {
        let start = rng.u64(..BYTES);
        let flock = rng.u8(..8) == 0;
        FileLock {
            owner: rng.u64(1..4),
            handle: Handle(1),
            flock,
            exclusive: rng.bool(),
            start: if flock { 0 } else { start },
            end: if flock { i64::MAX as u64 } else { rng.u64(start..BYTES) },
            pid: 1,
        }
    }

    /// What each owner has of each byte, by kind.
    type Bytes = BTreeMap<(bool, u64, u64), bool>;

    fn bytes(held: &[FileLock]) -> Bytes {
        let mut found = Bytes::new();
        for lock in held {
            for byte in lock.start..=lock.end.min(BYTES) {
                let before = found.insert((lock.flock, lock.owner, byte), lock.exclusive);
                assert_eq!(before, None, "a byte has two locks of an owner: {held:?}");
            }
        }
        found
    }

    /// Random locks and unlocks, against a map of bytes.
    #[test]
    fn ranges_split_and_merge_as_bytes_do() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut held, mut model) = (Vec::new(), Bytes::new());
            for step in 0..60 {
                let lock = random(&mut rng);
                let adds = rng.u8(..3) > 0;
                held = if adds { with(&held, &lock) } else { without(&held, &lock) };
                for byte in lock.start..=lock.end.min(BYTES) {
                    let key = (lock.flock, lock.owner, byte);
                    match adds {
                        true => model.insert(key, lock.exclusive),
                        false => model.remove(&key),
                    };
                }
                assert_eq!(bytes(&held), model, "seed {seed}, step {step}");
                // None could be one with another.
                for (a, b) in held.iter().zip(held.iter().skip(1)).filter(|_| adds) {
                    let alike = (a.flock, a.owner, a.exclusive) == (b.flock, b.owner, b.exclusive);
                    assert!(!(alike && a.end + 1 == b.start), "seed {seed}, step {step}: {held:?}");
                }
                // Conflicts are those of the bytes.
                let other = random(&mut rng);
                let conflicts = held.iter().any(|lock| lock.conflicts(&other));
                let by_bytes = (other.start..=other.end.min(BYTES)).any(|byte| {
                    (1..4).filter(|owner| *owner != other.owner).any(|owner| {
                        model.get(&(other.flock, owner, byte)).is_some_and(|held| *held || other.exclusive)
                    })
                });
                assert_eq!(conflicts, by_bytes, "seed {seed}, step {step}: {other:?}");
            }
        }
    }
}
