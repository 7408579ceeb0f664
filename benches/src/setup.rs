//! What all measurements of a run share.

use crate::{Args, program};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The program under test.
    pub(crate) program: PathBuf,
    /// Measurements of each case.
    pub(crate) rounds: u32,
    /// Length of the measured window.
    pub(crate) runtime: Duration,
    /// Load before it.
    pub(crate) ramp: Duration,
    /// `--engine` of target and initiator, one series each.
    pub(crate) engines: Vec<String>,
    /// Congestion control of every socket.
    pub(crate) congestion: String,
    /// Processor of the target, or of what stands for it.
    pub(crate) target_cpu: usize,
    /// Processor of the load.
    pub(crate) load_cpu: usize,
    /// Bytes of the device.
    pub(crate) size: u64,
    /// Where files for measurements are made.
    pub(crate) dir: PathBuf,
}

impl Setup {
    /// Builds the program if none was given.
    pub(crate) fn new(args: &Args) -> Result<Setup> {
        let program = match &args.program {
            Some(path) => {
                path.canonicalize().with_context(|| format!("there is no program {}", path.display()))?
            }
            None => program::build()?,
        };
        Ok(Setup {
            program,
            rounds: args.rounds,
            runtime: args.runtime,
            ramp: args.ramp,
            engines: args.engines.clone(),
            congestion: args.congestion.clone(),
            target_cpu: args.cpus[0],
            load_cpu: args.cpus[1],
            size: args.size,
            dir: args.dir.clone(),
        })
    }

    /// Measures each of `subjects` once a round, in turn and in every other
    /// round backwards, so that a drift of the machine meets all alike.
    /// Returns the measurements by subject; those with the same index are of
    /// the same round.
    pub(crate) fn interleave<S, T>(
        &self,
        subjects: &[S],
        mut measure: impl FnMut(&S) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let mut measured: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..subjects.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                measured[index].push(measure(&subjects[index])?);
            }
        }
        Ok(measured)
    }
}
