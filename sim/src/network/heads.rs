//! Two targets that serve one disk in turn, as two heads of an array do: they find out by reservations
//! of the disk and by each other's signs of life which of them does, and report it as ANA states.
//!
//! Invariants:
//! - a head that serves the disk has reserved it; what another one has under way changes nothing from
//!   then on;
//! - an overtaken head that has not noticed that reads what was there when it was overtaken, as one
//!   does that has read ahead;
//! - a head answers a read only within [`LEASE`] of a sign of life that the disk has confirmed, and
//!   another read waits for the next one, or for the head's end.

use crate::disk::{Disk, Snapshot};
use crate::network::run::{NQN, UUID};
use crate::world::World;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, Reservations, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, now, since, sleep};
use longhaul_target::{StandbyDevice, Target};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a head shows that it lives, and looks at the other one.
const BEAT: Duration = Duration::from_millis(500);
/// Silence of a head after which the other one takes over.
const TAKEOVER: Duration = Duration::from_secs(3);
/// For how long after a sign of life a head answers reads.
const LEASE: Duration = Duration::from_secs(2);
/// How often a read that waits looks at that.
const LOOK: Duration = Duration::from_millis(50);

/// What is known of both heads.
#[derive(Debug)]
pub(super) struct Heads {
    /// When the one that serves has last shown that it lives.
    beat: Instant,
    /// The head that is to serve, if an operator has said so.
    wanted: Option<usize>,
    /// The head that has taken the disk over, or does so; none once that has stopped in order.
    server: Option<usize>,
    /// When each of them began the last sign of life that was confirmed, if it serves.
    lease: [Option<Instant>; 2],
    /// What each of them reads that was overtaken and does not know it.
    stale: [Option<Snapshot>; 2],
    /// How often a head has taken over.
    pub(super) takeovers: u64,
}

/// The heads that share a disk.
#[derive(Clone, Debug)]
pub(super) struct SharedHeads(Arc<Mutex<Heads>>);

impl SharedHeads {
    pub(super) fn new() -> SharedHeads {
        let (wanted, lease, stale) = (Some(0), [None; 2], [None, None]);
        let heads = Heads { beat: now(), wanted, server: None, lease, stale, takeovers: 0 };
        SharedHeads(Arc::new(Mutex::new(heads)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Heads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The head that does not serve the disk is to do so.
    pub(super) fn hand_over(&self, to: usize) {
        self.lock().wanted = Some(to);
    }
}

/// The disk as a head has it.
#[derive(Clone)]
struct HeadDisk {
    below: Disk,
    number: usize,
    heads: SharedHeads,
}

struct HeadIo {
    below: Rc<dyn BlockIo>,
    of: HeadDisk,
}

impl BlockDevice for HeadDisk {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let below = self.below.open().await?;
            Ok(Rc::new(HeadIo { below, of: self.clone() }) as Rc<dyn BlockIo>)
        })
    }
}

/// An array whose members are reserved by another host is offline.
fn offline(change: IoFuture<()>) -> IoFuture<()> {
    IoFuture::new(async move {
        change.await.map_err(|e| match e {
            IoError::Reserved => IoError::Offline("the other head has taken it over".into()),
            e => e,
        })
    })
}

impl HeadDisk {
    /// Waits until the other head cannot have taken the disk over before.
    async fn until_owned(self) -> IoResult<()> {
        loop {
            match self.heads.lock().lease[self.number] {
                None => return Err(IoError::Offline("this head does not serve it any more".into())),
                Some(begun) if since(begun) < LEASE => return Ok(()),
                Some(_) => {}
            }
            sleep(LOOK).await;
        }
    }
}

impl BlockIo for HeadIo {
    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        let read = match &self.of.heads.lock().stale[self.of.number] {
            Some(stale) => {
                let read = stale.read(offset, &mut dst);
                IoFuture::ready(read.map(|()| dst).map_err(|_| IoError::Medium("unreadable".into())))
            }
            None => self.below.read(offset, dst),
        };
        let of = self.of.clone();
        IoFuture::new(async move {
            let dst = read.await?;
            of.until_owned().await.map(|()| dst)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        offline(self.below.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        offline(self.below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        offline(self.below.write_zeroes(offset, len, ZeroFlags::default()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        offline(self.below.write_zeroes(offset, len, flags))
    }
}

/// One head, for as long as its machine lives.
pub(super) struct Head {
    number: usize,
    heads: SharedHeads,
    disk: HeadDisk,
    reservations: Rc<dyn Reservations>,
    target: Target,
    nsid: u32,
    world: World,
}

impl Head {
    /// Exports the disk, without serving it.
    pub(super) async fn new(
        disk: &Disk,
        heads: SharedHeads,
        world: World,
        target: Target,
        number: usize,
    ) -> Result<Head, String> {
        let below = disk.for_host(number as u64);
        let io = below.open().await.map_err(|e| e.to_string())?;
        let reservations = io.reservations().ok_or("the disk has no reservations")?;
        let disk = HeadDisk { below, number, heads: heads.clone() };
        // What a head knew when it was lost is lost, too.
        let mut known = heads.lock();
        (known.stale[number], known.lease[number]) = (None, None);
        drop(known);
        let away = StandbyDevice { info: disk.info(), granularity: 0 };
        let nsid = target.export_standby(NQN, "disk", away, UUID).map_err(|e| e.to_string())?;
        Ok(Head { number, heads, disk, reservations, target, nsid, world })
    }

    fn key(&self) -> u64 {
        self.number as u64 + 1
    }

    /// Whether it has the reservation.
    async fn holds(&self) -> bool {
        self.reservations.report().await.is_ok_and(|state| state.holder == Some(self.key()))
    }

    /// Does not end.
    pub(super) async fn run(self) {
        loop {
            let Some(begun) = self.claim() else {
                sleep(BEAT).await;
                continue;
            };
            if let Err(e) = self.take_over(begun).await {
                self.tell(format_args!("does not take over: {e}"));
                sleep(BEAT).await;
                continue;
            }
            self.tell(format_args!("serves the disk"));
            self.target.serve(NQN, (self.nsid, UUID), Arc::new(self.disk.clone()));
            loop {
                if self.is_to_give_way() {
                    self.stop().await;
                    break;
                }
                let begun = now();
                if !self.holds().await || !self.beat(begun) {
                    break;
                }
                sleep(BEAT).await;
            }
            self.heads.lock().lease[self.number] = None;
            // It notices its end a little later, as the program does that runs an array.
            sleep(BEAT).await;
            self.tell(format_args!("stands by"));
            let away = StandbyDevice { info: self.disk.info(), granularity: 0 };
            self.target.stand_by(NQN, (self.nsid, UUID), away);
            self.heads.lock().stale[self.number] = None;
            sleep(BEAT).await;
        }
    }

    /// Whether the other head is wanted.
    fn is_to_give_way(&self) -> bool {
        self.heads.lock().wanted.is_some_and(|wanted| wanted != self.number)
    }

    /// Shows that this head serves, as the disk has confirmed since `begun`; false if the other one takes
    /// over.
    fn beat(&self, begun: Instant) -> bool {
        let mut heads = self.heads.lock();
        let serves = heads.server == Some(self.number);
        if serves {
            heads.beat = now();
            heads.lease[self.number] = Some(begun);
        }
        serves
    }

    /// Ends the use of the disk in order: the other head need not wait.
    async fn stop(&self) {
        self.heads.lock().lease[self.number] = None;
        if self.reservations.unregister(self.key()).await.is_ok() {
            self.tell(format_args!("stops"));
            let mut heads = self.heads.lock();
            heads.server = heads.server.filter(|server| *server != self.number);
        }
    }

    /// Begins to take over, if the other head has stopped or shows no sign of life: that one waits as
    /// long before it does.
    fn claim(&self) -> Option<Instant> {
        let mut heads = self.heads.lock();
        let is_other_wanted = heads.wanted.is_some_and(|wanted| wanted != self.number);
        let is_free = heads.server.is_none() && !is_other_wanted;
        if !is_free && since(heads.beat) < TAKEOVER {
            return None;
        }
        (heads.beat, heads.wanted, heads.server) = (now(), None, Some(self.number));
        Some(now())
    }

    /// Fails if the other head has begun to take over since.
    fn check(&self) -> IoResult<()> {
        let is_first = self.heads.lock().server == Some(self.number);
        if is_first { Ok(()) } else { Err(IoError::Offline("the other head was faster".into())) }
    }

    /// Reserves the disk, from the other head only if that has ended: one that was faster has
    /// another key.
    async fn take_over(&self, begun: Instant) -> IoResult<()> {
        self.reservations.register(self.key()).await?;
        let state = self.reservations.report().await?;
        self.check()?;
        match state.registered.iter().find(|key| **key != self.key()) {
            Some(other) => {
                self.reservations.preempt(self.key(), *other).await?;
                self.heads.lock().stale[1 - self.number] = Some(self.disk.below.snapshot());
                self.reservations.acquire(self.key()).await?;
            }
            None => self.reservations.acquire(self.key()).await?,
        }
        self.check()?;
        let mut heads = self.heads.lock();
        (heads.stale[self.number], heads.lease[self.number]) = (None, Some(begun));
        heads.takeovers += 1;
        Ok(())
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.world.tell(format_args!("head {}: {what}", self.number));
    }
}
