//! What a host does: one operation after the other, each on what it knows by then.

use super::arrays::SimArrays;
use super::site::{Acknowledged, HostLine, Meddling, POOL, Site, SiteState};
use super::view::HostView;
use crate::random::Random;
use longhaul_array::Layout;
use longhaul_pool::{Error, Host, MoveRun, Pool, VolumeLayout, VolumeRecord, VolumeRequest, in_sequence};
use std::sync::Arc;
use std::time::Duration;

/// Names of volumes, few enough that hosts want the same ones.
const NAMES: u64 = 6;
const JOBS: u64 = 3;
const MIB: u64 = 1 << 20;
/// What a lifetime is, if a volume has one: longer than the run.
const LIFETIME: Duration = Duration::from_secs(1 << 32);

/// A host and what is left to chance there.
pub(super) struct User {
    site: Arc<Site>,
    number: usize,
    operations: usize,
    random: Random,
    restarts: usize,
}

impl User {
    pub(super) fn new(site: &Arc<Site>, number: usize, operations: usize, random: Random) -> User {
        User { site: Arc::clone(site), number, operations, random, restarts: 0 }
    }

    fn host(&self) -> Host {
        let view = Arc::new(HostView { site: Arc::clone(&self.site), host: self.number });
        let name = format!("host{}-{}", self.number, self.restarts);
        Host { catalog: Arc::<HostView>::clone(&view), spaces: view, name, ttl: self.site.plan.ttl }
    }

    /// Does its operations; after a crash as a new process.
    pub(super) fn work(mut self) {
        let site = Arc::clone(&self.site);
        let _turns = site.turns.take(self.number);
        site.turns.pass(self.number, 0);
        for _ in 0..self.operations {
            in_sequence(|| self.operate());
            let line = &mut site.lock().hosts[self.number];
            if line.is_dead {
                self.restarts += 1;
                *line = HostLine {
                    no_catalog: line.no_catalog,
                    no_targets: line.no_targets,
                    ..HostLine::default()
                };
            }
        }
    }

    fn operate(&mut self) {
        let Ok(pool) = Pool::open(&self.host(), POOL) else { return };
        let (name, job) = (self.name(), self.random.below(JOBS).to_string());
        match self.random.below(30) {
            0..6 => {
                let request = self.request(name);
                self.site.log(self.number, format_args!("create {request:?}"));
                let since = self.site.counts().calls;
                let made = pool.create_volume(&request);
                self.made(&request, made, since);
            }
            6..8 => {
                let requests: Vec<VolumeRequest> = (0..2)
                    .map(|node| {
                        let name = format!("job-{job}-n{node}");
                        VolumeRequest { job: Some(job.clone()), ..self.request(name) }
                    })
                    .collect();
                let since = self.site.counts().calls;
                if let Ok(volumes) = pool.create_volumes(&requests) {
                    for (request, volume) in requests.iter().zip(volumes) {
                        self.made(request, Ok(volume), since);
                    }
                }
            }
            8..10 => {
                self.meddle(Meddling::Remove(name.clone()), || drop(pool.remove_volume(&name)));
            }
            10 => {
                self.meddle(Meddling::Release(job.clone()), || drop(pool.release(&job)));
            }
            11..13 => {
                let to = self.name();
                let rename = || drop(pool.rename_volume(&name, &to));
                self.meddle(Meddling::Rename(name.clone(), to.clone()), rename);
            }
            13 => {
                let hosts: Vec<String> = (0..self.random.below(3)).map(|n| format!("nqn.{n}")).collect();
                drop(pool.set_hosts(&name, &hosts));
            }
            14 => drop(pool.add_target(&self.target(), "rack")),
            15 => drop(pool.remove_target(&self.target())),
            16 => {
                self.meddle(Meddling::Expire, || drop(pool.collect(u64::MAX)));
            }
            17 => drop(pool.status()),
            20..22 => {
                if let Ok(volume) = pool.volume(&name) {
                    self.arrays().write(&volume, self.random.below(6));
                }
            }
            22..30 => self.shift(&pool, &name),
            _ => {
                if let Ok(recovered) = pool.recover() {
                    self.site.lock().counts.recovered += (recovered.finished + recovered.swept) as u64;
                }
            }
        }
    }

    fn arrays(&self) -> SimArrays {
        SimArrays { site: Arc::clone(&self.site), host: Some(self.number) }
    }

    /// Moves a member, empties a target, evens out the targets, or continues moves that were left.
    fn shift(&mut self, pool: &Pool, name: &str) {
        let arrays = self.arrays();
        let mut run = MoveRun { arrays: &arrays, limit: None, show: &mut |_, _| {} };
        let target = self.target();
        let moves = match self.random.below(8) {
            0 => pool.plan_removal(std::slice::from_ref(&target)).map(|removal| removal.moves),
            1 => pool.plan_balance(),
            2 => return drop(pool.resume_moves(&mut run)),
            3 => pool.plan_repair(name, &arrays),
            _ => {
                let (index, to) = (self.random.below(4) as usize, format!("nqn.{}", &target[1..]));
                return drop(pool.move_member(name, index, &to, &mut run));
            }
        };
        for planned in moves.unwrap_or_default() {
            drop(pool.move_member(&planned.step.volume, planned.step.index, &planned.to, &mut run));
        }
        drop(pool.remove_target(&target));
    }

    fn name(&mut self) -> String {
        format!("v{}", self.random.below(NAMES))
    }

    fn target(&mut self) -> String {
        format!("t{}", self.random.below(self.site.plan.targets as u64))
    }

    fn request(&mut self, name: String) -> VolumeRequest {
        let random = &mut self.random;
        let layout = match random.below(4) {
            0 => VolumeLayout::Single,
            1 => VolumeLayout::Array(Layout::Mirror),
            _ => VolumeLayout::Array(Layout::Parity),
        };
        let width = match layout {
            VolumeLayout::Single => 1,
            VolumeLayout::Array(Layout::Mirror) => 2,
            VolumeLayout::Array(_) | VolumeLayout::Files(_) => 3,
        };
        VolumeRequest {
            name,
            size: random.between(64, 900) * MIB,
            layout,
            width,
            spares: if width == 3 { random.below(2) as usize } else { 0 },
            unit: 256 << 10,
            per_domain: 1,
            hosts: vec!["nqn.0".to_owned()],
            job: random.chance(30).then(|| random.below(JOBS).to_string()),
            lifetime: random.chance(20).then_some(LIFETIME),
            thin: random.chance(20),
        }
    }

    /// Notes how the making of a volume ended that began at call `since`.
    fn made(&self, request: &VolumeRequest, made: Result<VolumeRecord, Error>, since: u64) {
        let mut state = self.site.lock();
        match made {
            // A host that has crashed acknowledges nothing.
            Ok(volume) if !state.hosts[self.number].is_dead => {
                state.counts.volumes += 1;
                let mut acknowledged = Acknowledged {
                    names: [request.name.clone()].into(),
                    job: request.job.clone(),
                    expires: request.lifetime.is_some(),
                    may_be_gone: false,
                };
                // Other hosts have seen it since it was published.
                let under_way = |(_, ended): &&(Meddling, Option<u64>)| ended.is_none_or(|at| at >= since);
                acknowledged.meet_all(state.meddling.iter().filter(under_way));
                state.acknowledged.insert(volume.uuid, acknowledged);
                drop(state);
                self.site.log(self.number, format_args!("made volume {} as {}", request.name, volume.uuid));
            }
            Err(Error::Overtaken(_)) => state.counts.overtaken += 1,
            _ => {}
        }
    }

    /// Runs an operation that concerns volumes which exist, and those that come meanwhile.
    fn meddle(&self, meddling: Meddling, operation: impl FnOnce()) {
        self.site.log(self.number, format_args!("{meddling:?}"));
        let number = {
            let mut state = self.site.lock();
            state.meddling.push((meddling, None));
            let SiteState { acknowledged, meddling, .. } = &mut *state;
            for volume in acknowledged.values_mut() {
                volume.meet_all(meddling.iter().filter(|(_, ended)| ended.is_none()));
            }
            meddling.len() - 1
        };
        operation();
        let mut state = self.site.lock();
        // What a host that has crashed sent may still take effect.
        if !state.hosts[self.number].is_dead && state.late.is_empty() {
            state.meddling[number].1 = Some(state.counts.calls);
        }
    }
}
