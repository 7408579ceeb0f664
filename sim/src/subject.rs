//! The subject of a simulation: an array over disks, opened again after every crash, and asked to
//! heal.

use crate::disk::Disk;
use crate::plan::Plan;
use crate::random::Random;
use futures_util::future::{FutureExt, LocalBoxFuture};
use longhaul_array::{
    ArrayDevice, ArrayError, Condition, Geometry, Layout, MemberStatus, Options, Shape, Stripe, assemble_as,
    create_witnessed,
};
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoError};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// The result of something that is asked of a subject; in words why not.
pub type Asked<'a, T> = LocalBoxFuture<'a, Result<T, String>>;

/// A kind of array.
pub trait Subject {
    /// Members that may be lost, or wrong, at a time.
    fn redundancy(&self) -> usize;

    /// Bytes that a member needs for `rows` stripes.
    fn member_size(&self, rows: u64) -> u64;

    /// Where the data of `rows` stripes are on a member, in bytes.
    fn data(&self, rows: u64) -> Range<u64> {
        0..self.member_size(rows)
    }

    /// Makes an array of empty disks.
    fn create<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, ()>;

    /// Brings it into use, after a crash or for the first time.
    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>>;
}

/// An array in use. An operation that it does not support is not part of it.
pub trait Running {
    /// The device's properties.
    fn info(&self) -> DeviceInfo;

    /// The way in.
    fn io(&self) -> Rc<dyn BlockIo>;

    /// Resolves when every member is whole again.
    fn healed(&self) -> Asked<'_, ()> {
        async { Ok(()) }.boxed_local()
    }

    /// Scrubs the array with repair; gives how many blocks are lost, or did not
    /// match.
    fn scrub(&self) -> Asked<'_, u64> {
        async { Ok(0) }.boxed_local()
    }

    /// Places whose members are not whole, and why, in words.
    fn missing(&self) -> Asked<'_, Vec<(usize, String)>> {
        async { Ok(Vec::new()) }.boxed_local()
    }

    /// Places whose members will not come back by themselves.
    fn given_up(&self) -> Asked<'_, Vec<usize>> {
        async { Ok(Vec::new()) }.boxed_local()
    }

    /// Puts a disk in the place of another.
    fn replace<'a>(&'a self, _place: usize, _new: &'a Disk) -> Asked<'a, ()> {
        async { Err("nothing can be replaced".into()) }.boxed_local()
    }

    /// Gives it a disk that is to take the place of another when that is lost.
    fn add_spare<'a>(&'a self, _spare: &'a Disk) -> Asked<'a, ()> {
        async { Err("there are no spares".into()) }.boxed_local()
    }

    /// The names of the disks in its places, where it has some.
    fn places(&self) -> Asked<'_, Vec<Option<String>>> {
        async { Ok(Vec::new()) }.boxed_local()
    }

    /// Another host wants to have it while it is in use; fails if that may.
    fn intrude<'a>(&'a self, _disks: &'a [Disk]) -> Asked<'a, ()> {
        async { Ok(()) }.boxed_local()
    }

    /// Ends it in order.
    fn stop(&self) -> Asked<'_, ()> {
        async { Ok(()) }.boxed_local()
    }

    /// Whether a stop makes acknowledged writes durable, also under load.
    fn stops_in_order(&self) -> bool {
        false
    }
}

/// Members in turn, without redundancy and without superblocks.
#[derive(Debug)]
pub struct Striped {
    /// Bytes of a stripe unit.
    pub unit: u64,
}

struct Opened {
    info: DeviceInfo,
    io: Rc<dyn BlockIo>,
}

impl Running for Opened {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn io(&self) -> Rc<dyn BlockIo> {
        Rc::clone(&self.io)
    }
}

/// Opens a device as it is, without an array.
pub async fn open(device: &dyn BlockDevice) -> Result<Box<dyn Running>, String> {
    let io = device.open().await.map_err(|e| e.to_string())?;
    Ok(Box::new(Opened { info: device.info(), io }))
}

impl Subject for Striped {
    fn redundancy(&self) -> usize {
        0
    }

    fn member_size(&self, rows: u64) -> u64 {
        rows * self.unit
    }

    fn create<'a>(&'a self, _disks: &'a [Disk]) -> Asked<'a, ()> {
        async { Ok(()) }.boxed_local()
    }

    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>> {
        async {
            let members = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>).collect();
            let stripe = Stripe::new(members, self.unit).map_err(|e| e.to_string())?;
            open(&stripe).await
        }
        .boxed_local()
    }
}

/// Members with superblocks, of any layout.
#[derive(Debug)]
pub struct Arrayed {
    layout: Layout,
    width: usize,
    unit: u64,
    options: Options,
    /// Where identities and the order of devices come from.
    random: Mutex<Random>,
}

impl Arrayed {
    /// The array of a plan, with settings of the seed's choice.
    #[must_use]
    pub fn new(plan: &Plan) -> Arrayed {
        let mut random = Random::new(plan.seed ^ 0x6172_7261_7965_6421);
        let options = Options {
            member_timeout: Duration::from_secs(random.pick(&[6, 10, 30])),
            gather: Duration::from_micros(random.pick(&[0, 100, 2000])),
            journal_all: plan.journal_all,
            memory: random.pick(&[256 << 10, 4 << 20, 128 << 20]),
            sums_memory: random.pick(&[4096, 64 << 10, 64 << 20]),
            hedge_percent: random.pick(&[0, 5, 50]),
            intent_idle: Duration::from_millis(random.pick(&[0, 50, 5000])),
            seed: random.bits(),
            without: plan.without,
            ..Options::default()
        };
        let (layout, width, unit) = (plan.layout, plan.width, plan.unit);
        Arrayed { layout, width, unit, options, random: Mutex::new(random) }
    }

    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier of one more host.
    pub(crate) fn new_host(&self) -> u64 {
        self.random().bits()
    }

    fn new_uuid(&self) -> Uuid {
        let mut random = self.random();
        Uuid::from_u64_pair(random.bits(), random.bits())
    }

    fn fit(&self, size: u64) -> Result<Geometry, String> {
        Geometry::fit(self.layout, self.width, self.unit, size).map_err(|e| e.to_string())
    }
}

impl Arrayed {
    /// As [`Subject::create`], with a witness or without one.
    ///
    /// # Errors
    /// As of [`longhaul_array::create_witnessed`], in words.
    pub async fn create_witnessed(&self, disks: &[Disk], witness: Option<&Disk>) -> Result<(), String> {
        let shape = Shape { name: "sim".into(), layout: self.layout, unit: self.unit, force: false };
        let witness = witness.map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>);
        let new_uuid = || self.new_uuid();
        let made = create_witnessed(&devices(disks), &[], witness.as_ref(), &shape, new_uuid).await;
        made.map(drop).map_err(|e| e.to_string())
    }

    /// Assembles it from these devices, as one host of several does; `degraded` as of
    /// [`Options`].
    ///
    /// # Errors
    /// As of [`longhaul_array::assemble`].
    pub async fn assemble(
        &self,
        devices: Vec<Arc<dyn BlockDevice>>,
        degraded: bool,
    ) -> Result<Arc<ArrayDevice>, ArrayError> {
        assemble_as(&devices, Options { degraded, ..self.options.clone() }, self.new_uuid()).await
    }
}

/// What a plan is tried on: stripes come with and without superblocks.
#[must_use]
pub fn of(plan: &Plan) -> Box<dyn Subject + Sync> {
    if plan.layout == Layout::Stripe && plan.seed.is_multiple_of(2) && plan.without.is_none() {
        Box::new(Striped { unit: plan.unit })
    } else {
        Box::new(Arrayed::new(plan))
    }
}

fn devices(disks: &[Disk]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>).collect()
}

impl Subject for Arrayed {
    fn redundancy(&self) -> usize {
        self.fit(1 << 40).map_or(0, |geometry| geometry.redundancy())
    }

    fn member_size(&self, rows: u64) -> u64 {
        // The smallest for one stripe, and as many more.
        let fits = |size: &u64| self.fit(*size).is_ok_and(|geometry| geometry.rows >= rows);
        let step = self.unit.max(4096);
        (1..).map(|n| n * step).find(fits).unwrap_or(1 << 30)
    }

    fn data(&self, rows: u64) -> Range<u64> {
        let fit = self.fit(self.member_size(rows));
        fit.map_or(0..0, |geometry| geometry.end() - geometry.rows * geometry.unit..geometry.end())
    }

    fn create<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, ()> {
        self.create_witnessed(disks, None).boxed_local()
    }

    fn open<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, Box<dyn Running>> {
        async {
            let mut devices = devices(disks);
            for last in (1..devices.len()).rev() {
                let other = self.random().below(last as u64 + 1) as usize;
                devices.swap(last, other);
            }
            let (mut refused, mut settings) = (0, self.options.clone());
            loop {
                match assemble_as(&devices, settings.clone(), self.new_uuid()).await {
                    Ok(array) => {
                        let io = array.open().await.map_err(|e| e.to_string())?;
                        let (options, rival) = (self.options.clone(), self.new_uuid());
                        let running: Box<dyn Running> = Box::new(Array { array, io, options, rival });
                        return Ok(running);
                    }
                    // An operator leaves out a device that is not a member (any more).
                    Err(ArrayError::NoMember(name) | ArrayError::NotUnderstood { device: name, .. })
                        if devices.len() > 1 =>
                    {
                        let before = devices.len();
                        // The reason may follow the name.
                        let told = name.split(' ').next().unwrap_or_default().to_owned();
                        devices.retain(|device| device.info().name != told);
                        if devices.len() == before {
                            return Err(format!("{name} is no member, and none of the disks"));
                        }
                    }
                    // A member that is missing was left behind: nothing else has happened to it.
                    Err(ArrayError::Outdated { .. })
                        if !settings.degraded
                            && (devices.len() < disks.len() || disks.iter().any(Disk::is_gone)) =>
                    {
                        settings.degraded = true;
                    }
                    // The operator knows that no other host has it, and retries.
                    Err(ArrayError::InUse(_)) if refused < 2 => refused += 1,
                    Err(e) => return Err(e.to_string()),
                }
            }
        }
        .boxed_local()
    }
}

struct Array {
    array: Arc<ArrayDevice>,
    io: Rc<dyn BlockIo>,
    options: Options,
    /// The session of another host.
    rival: Uuid,
}

impl Running for Array {
    fn info(&self) -> DeviceInfo {
        self.array.info()
    }

    fn io(&self) -> Rc<dyn BlockIo> {
        Rc::clone(&self.io)
    }

    fn healed(&self) -> Asked<'_, ()> {
        async { self.array.wait_healthy().await.map_err(|e| e.to_string()) }.boxed_local()
    }

    fn scrub(&self) -> Asked<'_, u64> {
        async {
            match self.array.scrub().await {
                // Members that do not say the same have not healed either.
                Ok(report) if report.finished => Ok(report.lost + report.disagreeing + report.inconsistent),
                Ok(_) => Err("the scrub has not come to its end".into()),
                Err(IoError::Unsupported(_)) => Ok(0),
                Err(e) => Err(e.to_string()),
            }
        }
        .boxed_local()
    }

    fn missing(&self) -> Asked<'_, Vec<(usize, String)>> {
        async {
            let status = self.array.status().await.map_err(|e| e.to_string())?;
            let missing = status.members.iter().filter(|member| member.condition != Condition::Active);
            let words = |member: &MemberStatus| format!("{:?}: {}", member.condition, member.reason);
            Ok(missing.map(|member| (member.index, words(member))).collect())
        }
        .boxed_local()
    }

    fn given_up(&self) -> Asked<'_, Vec<usize>> {
        async {
            let status = self.array.status().await.map_err(|e| e.to_string())?;
            // Failed, or away without a device that could come back.
            let lost = |member: &&MemberStatus| match member.condition {
                Condition::Failed => true,
                Condition::Offline => member.device.is_none(),
                _ => false,
            };
            Ok(status.members.iter().filter(lost).map(|member| member.index).collect())
        }
        .boxed_local()
    }

    fn replace<'a>(&'a self, place: usize, new: &'a Disk) -> Asked<'a, ()> {
        async move {
            self.array.replace(place, Arc::new(new.clone()), false).await.map_err(|e| e.to_string())
        }
        .boxed_local()
    }

    fn add_spare<'a>(&'a self, spare: &'a Disk) -> Asked<'a, ()> {
        async move { self.array.add_spare(Arc::new(spare.clone()), false).await.map_err(|e| e.to_string()) }
            .boxed_local()
    }

    fn places(&self) -> Asked<'_, Vec<Option<String>>> {
        async {
            let status = self.array.status().await.map_err(|e| e.to_string())?;
            Ok(status.members.into_iter().map(|member| member.device).collect())
        }
        .boxed_local()
    }

    fn intrude<'a>(&'a self, disks: &'a [Disk]) -> Asked<'a, ()> {
        async move {
            match assemble_as(&devices(disks), self.options.clone(), self.rival).await {
                Ok(_) => Err("two hosts have it at the same time".into()),
                // Whatever the reason.
                Err(_) => Ok(()),
            }
        }
        .boxed_local()
    }

    fn stop(&self) -> Asked<'_, ()> {
        async { self.array.stop().await.map_err(|e| e.to_string()) }.boxed_local()
    }

    fn stops_in_order(&self) -> bool {
        true
    }
}
