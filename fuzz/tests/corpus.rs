//! Replays the corpus with whatever toolchain there is.

use std::fs;
use std::path::Path;

/// The committed corpus is for reading and for reviews: small.
const FILES_MAX: usize = 200;
const BYTES_MAX: usize = 1 << 20;

#[test]
fn every_input_of_the_corpus_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in longhaul_fuzz::TARGETS {
        let dir = root.join(name);
        let mut inputs = 0;
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("directory entry").path();
            eprintln!("{}", path.display());
            run(&fs::read(&path).expect("a file of the corpus"));
            inputs += 1;
        }
        assert!(inputs > 0, "{} is empty", dir.display());
    }
}

#[test]
fn the_seeds_pass_and_are_few() {
    let seeds = longhaul_fuzz::seeds::all();
    assert!(seeds.len() < FILES_MAX, "{} seeds", seeds.len());
    assert!(seeds.iter().map(|seed| seed.bytes.len()).sum::<usize>() < BYTES_MAX);
    for seed in seeds {
        let (_, run) = longhaul_fuzz::TARGETS
            .into_iter()
            .find(|(name, _)| *name == seed.target)
            .unwrap_or_else(|| panic!("no target {}", seed.target));
        eprintln!("{}/{}", seed.target, seed.name);
        run(&seed.bytes);
    }
}

/// Inputs that say nothing, and cut inputs, are inputs too.
#[test]
fn every_prefix_of_a_seed_passes() {
    for (name, run) in longhaul_fuzz::TARGETS {
        run(&[]);
        for seed in longhaul_fuzz::seeds::all().iter().filter(|seed| seed.target == name) {
            let step = (seed.bytes.len() / 64).max(1);
            (0..seed.bytes.len()).step_by(step).for_each(|end| run(&seed.bytes[..end]));
        }
    }
}
