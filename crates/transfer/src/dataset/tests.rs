use super::*;
use std::collections::HashSet;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

fn plan(name: &str, scale: Scale) -> DatasetPlan {
    DatasetSpec::parse(name, scale).unwrap_or_else(|e| panic!("{name}: {e}")).plan()
}

fn sorted_sizes(plan: &DatasetPlan) -> Vec<u64> {
    let mut sizes: Vec<u64> = plan.files.iter().map(|f| f.size).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn real_has_the_published_count_total_and_mean() {
    let plan = plan("real", Scale::FULL);
    let sizes = sorted_sizes(&plan);
    assert_eq!(sizes.len(), 59_589);
    let (total, mean) = (plan.bytes() as f64, plan.bytes() as f64 / sizes.len() as f64);
    assert!((total / 1e12 - 1.0).abs() < 0.02, "{total} bytes");
    assert!((mean / 16.8e6 - 1.0).abs() < 0.02, "mean {mean}");
    let median = sizes[sizes.len() / 2] as f64;
    assert!((median / 1e6 - 1.0).abs() < 0.001, "median {median}");
    assert!(*sizes.last().expect("files") <= 16_000_000_000);
    let dirs: HashSet<&str> =
        plan.files.iter().filter_map(|f| f.path.rsplit_once('/')).map(|p| p.0).collect();
    let depths: HashSet<usize> = plan.files.iter().map(|f| f.path.matches('/').count()).collect();
    assert!(dirs.len() > 500 && depths.len() >= 3, "{} directories, depths {depths:?}", dirs.len());
}

#[test]
fn l380_has_the_published_count_total_and_ends() {
    let plan = plan("l380", Scale::FULL);
    let sizes = sorted_sizes(&plan);
    assert_eq!((sizes.len(), sizes[0]), (19_260, 0));
    assert_eq!(sizes.last(), Some(&11_000_000_000));
    let total = plan.bytes() as f64;
    assert!((total / 4.4e12 - 1.0).abs() < 0.02, "{total} bytes");
    let dirs: HashSet<&str> =
        plan.files.iter().filter_map(|f| f.path.rsplit_once('/')).map(|p| p.0).collect();
    assert_eq!(dirs.len(), 211);
}

#[test]
fn scaling_takes_fewer_files_of_the_same_distribution() {
    let plan = plan("real", Scale::bytes(1 << 30));
    let sizes = sorted_sizes(&plan);
    assert!(plan.bytes() <= 1 << 30 && plan.bytes() > (1 << 30) * 9 / 10, "{}", plan.bytes());
    assert!(sizes.len() > 50, "{}", sizes.len());
    let median = sizes[sizes.len() / 2] as f64;
    assert!((0.9..1.2).contains(&(median / 1e6)), "median {median}: files were shrunk");
    assert_eq!(self::plan("real", Scale::files(100)).files.len(), 100);
    assert_eq!(self::plan("small", Scale::bytes(1 << 20)).files.len(), 256);
}

#[test]
fn equal_sets_share_every_byte() {
    let scale = Scale { files: Some(7), bytes: Some(100) };
    let equal = plan("equal", scale);
    assert_eq!((equal.files.len(), equal.bytes()), (7, 100));
    assert!(equal.files.iter().all(|f| f.size == 14 || f.size == 15));
    let big = plan("big", Scale::bytes(1_000_000));
    assert_eq!((big.files.len(), big.bytes()), (128, 1_000_000));
    assert_eq!(plan("big", Scale::FULL).bytes(), 1_000_000_000_000);
}

#[test]
fn paths_are_unique_relative_and_plain() {
    for (name, scale) in [
        ("real", Scale::FULL),
        ("small", Scale::files(5000)),
        ("l380", Scale::files(50)),
        ("big", Scale::FULL),
    ] {
        let plan = plan(name, scale);
        let paths: HashSet<&str> = plan.files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths.len(), plan.files.len(), "{name}");
        assert!(paths.iter().all(|p| !p.starts_with('/') && !p.contains("..")), "{name}");
        // No file has the name of a directory.
        assert!(paths.iter().all(|p| p.ends_with(".dat")));
    }
}

/// A hash of names, sizes and the first and last bytes of every file.
fn fingerprint(plan: &DatasetPlan) -> u64 {
    let mut hash = Xxh3::new();
    for (i, file) in plan.files.iter().enumerate() {
        hash.update(file.path.as_bytes());
        hash.update(&file.size.to_le_bytes());
        let mut bytes = [0; 64];
        plan.fill(i, 0, &mut bytes);
        hash.update(&bytes);
        plan.fill(i, file.size.saturating_sub(64), &mut bytes);
        hash.update(&bytes);
    }
    hash.digest()
}

#[test]
fn the_same_specification_gives_the_same_bytes() {
    let spec = DatasetSpec::parse("real", Scale::files(1000)).expect("known");
    assert_eq!(spec.plan(), spec.plan());
    // These values must never change: data sets already made are named by them.
    assert_eq!(fingerprint(&spec.plan()), 1_693_031_370_878_491_562, "real, 1000 files, seed 1");
    let other = DatasetSpec { seed: 2, ..spec.clone() };
    assert_ne!(fingerprint(&other.plan()), fingerprint(&spec.plan()));
    assert_eq!(sorted_sizes(&other.plan()), sorted_sizes(&spec.plan()));
}

#[test]
fn content_does_not_compress() {
    let plan = plan("small", Scale::files(300));
    let mut all = vec![0; 300 * 4096];
    for (i, chunk) in all.chunks_exact_mut(4096).enumerate() {
        plan.fill(i, 0, chunk);
    }
    // Every byte value about as often as any other: nothing for an entropy coder.
    let mut counts = [0u32; 256];
    all.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let entropy: f64 = counts.iter().map(|c| f64::from(*c) / all.len() as f64).map(|p| -p * p.log2()).sum();
    assert!(entropy > 7.999, "{entropy} bits a byte");
    // No string of eight bytes twice at any alignment of eight: nothing for a matcher.
    let mut seen = HashSet::new();
    assert!(all.chunks_exact(8).all(|word| seen.insert(xxh3_64(word))));
}

#[test]
fn faults_are_named() {
    let message = |name, scale| DatasetSpec::parse(name, scale).expect_err(name).to_string();
    assert!(message("surreal", Scale::FULL).contains("use real, big, l380, small or equal"));
    let both = Scale { files: Some(1), bytes: Some(1) };
    assert!(message("real", both).contains("not both"));
    assert!(message("real", Scale::files(0)).contains("leaves no file"));
    assert!(message("real", Scale::bytes(1000)).contains("leaves no file"));
    assert!(message("small", Scale::files(MAX_FILES + 1)).contains("more than"));
}

#[test]
fn files_are_written_as_specified() {
    let dir = tempfile::tempdir().expect("directory");
    let plan = plan("real", Scale::files(20));
    let small = DatasetPlan {
        files: plan.files.iter().filter(|f| f.size < 4 << 20).cloned().collect(),
        seed: plan.seed,
    };
    assert!(small.files.len() >= 10);
    let last = std::sync::Mutex::new((0, 0));
    make(dir.path(), &small, &|p| {
        let mut last = last.lock().expect("sound");
        *last = (last.0.max(p.files), last.1.max(p.bytes));
    })
    .expect("made");
    assert_eq!(*last.lock().expect("sound"), (small.files.len() as u64, small.bytes()));
    for (i, file) in small.files.iter().enumerate() {
        let content = std::fs::read(dir.path().join(&file.path)).expect("there");
        let mut expected = vec![0; file.size as usize];
        small.fill(i, 0, &mut expected);
        assert!(content == expected, "{}", file.path);
    }
}

#[test]
fn a_data_set_without_room_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let files = vec![FileSpec { path: "huge".into(), size: 1 << 60 }];
    let error = make(dir.path(), &DatasetPlan { files, seed: 1 }, &|_| {}).expect_err("refused");
    assert!(matches!(error, MakeError::NoRoom { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("written");
    let error = make(&file, &plan("small", Scale::files(1)), &|_| {}).expect_err("refused");
    assert!(matches!(error, MakeError::Write { .. }), "{error}");
}
