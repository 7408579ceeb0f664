//! Volumes of jobs: one for each node, or one for all of the job, until it is released or its lifetime
//! ends.

use crate::create::VolumeRequest;
use crate::error::Result;
use crate::pool::{Pool, each};
use crate::record::VolumeRecord;
use crate::remove::Removed;
use std::collections::BTreeMap;

/// What a job has of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// Bytes of namespaces that are promised to it, made or not, and not removed yet.
    pub bytes: u64,
    /// The first time, in seconds since 1970, at which a volume of it may be removed.
    pub expires: Option<u64>,
    /// Volumes that are being made or removed, or wait for that.
    pub intents: usize,
}

/// The name of a job's volume: of one node, or of all of the job.
pub fn volume_of_job(job: &str, node: Option<&str>) -> String {
    match node {
        Some(node) => format!("job-{job}-{node}"),
        None => format!("job-{job}"),
    }
}

impl Pool {
    /// Makes volumes: all of them, or none.
    ///
    /// # Errors
    /// As for [`create_volume`](Self::create_volume), for the first one that cannot be made.
    pub fn create_volumes(&self, requests: &[VolumeRequest]) -> Result<Vec<VolumeRecord>> {
        let made = each(requests, |request| self.create_volume(request));
        if made.iter().all(|one| one.is_ok()) {
            return made.into_iter().collect();
        }
        for volume in made.iter().flatten() {
            match self.remove_volume(&volume.name) {
                Ok(Removed::Whole) => {}
                Ok(Removed::Later(why)) => tracing::warn!("volume {}: {}", volume.name, why.join("; ")),
                Err(e) => tracing::warn!("volume {} is left: {e}", volume.name),
            }
        }
        made.into_iter().collect()
    }

    /// What jobs have, by their names.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        let mut jobs: BTreeMap<String, JobStatus> = BTreeMap::new();
        for (job, bytes) in self.usage()?.0.jobs {
            jobs.entry(job).or_default().bytes = bytes;
        }
        for (intent, _) in self.intents()? {
            if let Some(job) = intent.volume.job {
                jobs.entry(job).or_default().intents += 1;
            }
        }
        for volume in self.volumes()? {
            let is_ready = self.check_ready(&volume).is_ok();
            if let Some(job) = volume.job.filter(|_| is_ready) {
                let status = jobs.entry(job).or_default();
                status.volumes.push(volume.name);
                status.expires = [status.expires, volume.expires].into_iter().flatten().min();
            }
        }
        Ok(jobs.into_iter().map(|(job, status)| JobStatus { job, ..status }).collect())
    }
}
