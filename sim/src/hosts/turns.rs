//! What becomes of the host that has the array, and of those that want it.

use super::line::Line;
use super::{Hosts, Owner, all_fail, intrude, peek};
use crate::disk::Disk;
use crate::model::Model;
use crate::plan::Plan;
use crate::random::Random;
use crate::subject::Arrayed;
use crate::world::World;
use longhaul_array::ArrayError;
use longhaul_block::BlockDevice;
use longhaul_engine::{Engine, now, sleep, spawn};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The longest time that a host is cut off, in milliseconds: it waits as long for members that it
/// needs, and takes the array back if no other host has it.
const CUT_OFF: u64 = 120_000;
/// A takeover takes longer than another's heartbeat is waited for.
const TAKEOVER: u64 = 20_000;
/// Time that a host continues without members until all others have recorded it.
const LEFT_BEHIND: Duration = Duration::from_secs(60);
/// After a crash a member that was rolled back is known by its heartbeat if that
/// ended three times the longest time-out of a member (30 s) before the others'
/// ([arrays](../../docs/array-safety.md#which-members-are-current)), and this is longer.
const ROLLED_BACK: Duration = Duration::from_secs(120);

impl Hosts<'_> {
    /// The host is cut off from all disks; another one takes the array over, or
    /// not, and uses it; the first is connected again.
    pub(super) async fn cut_off(&mut self, owner: Owner) -> Result<Owner, String> {
        self.world.tell(format_args!("the host is cut off"));
        owner.cut();
        if self.random.chance(20) {
            // Shorter than the other hosts need to notice.
            sleep(Duration::from_millis(self.random.below(CUT_OFF))).await;
            owner.connect(false);
            return Ok(owner);
        }
        // It writes all the time.
        let late =
            spawn(intrude(Rc::clone(&owner.io), owner.array.info().size, self.random.fork(), TAKEOVER));
        sleep(Duration::from_millis(self.random.below(TAKEOVER))).await;
        let next = self.contend().await?;
        self.use_it(&next).await?;
        self.world.tell(format_args!("the host is connected again"));
        owner.connect(true);
        all_fail(peek(Rc::clone(&owner.io), owner.array.info().size)).await?;
        all_fail(late).await?;
        self.use_it(&next).await?;
        Ok(next)
    }

    /// A host loses its connection to some members, and continues without them. Those are not
    /// enough for the array when it has ended: another host that sees nothing else is refused.
    pub(super) async fn split(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        let away = self.spared();
        self.world.tell(format_args!("the host continues without {away:?}, and crashes"));
        away.iter().for_each(|member| owner.links[*member].cut());
        self.use_it(&owner).await?;
        self.load(&owner).flush().await;
        sleep(LEFT_BEHIND).await;
        self.check()?;
        owner.go_down();
        let view = self.with_witness(&away);
        if !away.is_empty() && self.attempt_again(&view).await.is_ok() {
            return Err(format!("devices {view:?} begin without those that continued without them"));
        }
        self.contend().await
    }

    /// A host that does not see some members tries to run the array: it must succeed unless those
    /// could have continued by themselves.
    pub(super) async fn partial(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        if self.random.chance(50) {
            self.stop(&owner).await?;
        } else {
            owner.go_down();
        }
        let unseen = self.spared();
        let view = self.with_witness(&self.others(&unseen));
        // Whether those could have continued, unknown to the members seen here.
        let may_have = !unseen.is_empty() && self.is_enough(&unseen);
        let is_unknown = may_have && self.witness().is_none_or(|witness| !view.contains(&witness));
        match self.attempt_again(&view).await {
            Ok(_) if is_unknown => {
                return Err(format!("{view:?} start, and {unseen:?} may have continued by themselves"));
            }
            Ok(other) => {
                self.world.tell(format_args!("a host has {view:?}"));
                self.hand_over();
                self.use_it(&other).await?;
                other.go_down();
            }
            Err(e) if !is_unknown => {
                return Err(format!("{view:?} are refused, though {unseen:?} cannot have continued: {e}"));
            }
            Err(e) => self.world.tell(format_args!("{view:?} are refused: {e}")),
        }
        self.contend().await
    }

    /// The array is stopped, or its host crashes; and a member, or the witness, has the content of
    /// an earlier time.
    pub(super) async fn rolled_back(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        let all = self.all();
        let place = self.random.pick(&all);
        let disk = self.disks[place].clone();
        let old = disk.snapshot();
        self.use_it(&owner).await?;
        if self.random.chance(50) {
            self.stop(&owner).await?;
        } else {
            sleep(ROLLED_BACK).await;
            owner.go_down();
        }
        self.idle().await;
        if self.is_enough(&self.others(&[place])) {
            disk.restore(old);
        }
        self.contend().await
    }

    /// A host loses its way to the witness and to members that could continue on
    /// their own: it stops writing, and another host that reaches those continues.
    pub(super) async fn halves(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        let (away, Some(witness)) = (self.spared(), self.witness()) else { return Ok(owner) };
        if away.is_empty() || !self.is_enough(&away) {
            return Ok(owner);
        }
        let view = [&away[..], &[witness]].concat();
        self.world.tell(format_args!("the host loses its way to {view:?}"));
        view.iter().for_each(|place| owner.links[*place].cut());
        let late =
            spawn(intrude(Rc::clone(&owner.io), owner.array.info().size, self.random.fork(), TAKEOVER));
        sleep(Duration::from_millis(self.random.below(TAKEOVER))).await;
        let next = self.attempt_again(&view).await;
        let next = next.map_err(|e| format!("{view:?} are refused, though they have the witness: {e}"))?;
        self.hand_over();
        self.use_it(&next).await?;
        // These wait until the host knows.
        let reads = spawn(peek(Rc::clone(&owner.io), owner.array.info().size));
        all_fail(late).await?;
        owner.connect(true);
        all_fail(reads).await?;
        self.use_it(&next).await?;
        self.stop(&next).await?;
        self.contend().await
    }

    /// With `--degraded` two hosts open half of the members each, one after the
    /// other, and both write. No host assembles both halves as one array: it
    /// continues with the first half, and the other members are added by force.
    pub(super) async fn apart(&mut self, owner: Owner) -> Result<Owner, String> {
        self.heal(&owner).await?;
        self.stop(&owner).await?;
        let other = self.spared();
        let own = self.others(&other);
        // A witness does not let the second begin.
        if !self.is_enough(&other) || self.witness().is_some() {
            return self.contend().await;
        }
        self.world.tell(format_args!("{own:?} and {other:?} are used apart from each other"));
        for half in if self.random.chance(50) { [&own, &other] } else { [&other, &own] } {
            let owner = self.attempt_as(half, true).await;
            let owner = owner.map_err(|e| format!("with --degraded, of members {half:?}: {e}"))?;
            if *half == own {
                self.hand_over();
                self.use_it(&owner).await?;
            } else {
                intrude(Rc::clone(&owner.io), owner.array.info().size, self.random.fork(), 1).await;
            }
            self.stop(&owner).await?;
        }
        match self.attempt_again(&self.all()).await {
            Err(ArrayError::Diverged { .. }) => {}
            Err(e) => return Err(format!("members {own:?} and {other:?} were used apart: {e}")),
            Ok(_) => {
                return Err(format!("members {own:?} and {other:?} were used apart, and begin together"));
            }
        }
        let next = self.attempt_again(&own).await.map_err(|e| format!("without {other:?}: {e}"))?;
        self.hand_over();
        for place in other {
            let line = Line::new(&self.disks[place].for_host(next.host), &next.links[place]);
            let given = next.array.replace(place, Arc::new(line), true).await;
            given.map_err(|e| format!("replace {place} --force: {e}"))?;
        }
        self.heal(&next).await?;
        self.use_it(&next).await?;
        Ok(next)
    }

    /// The host is suspended: nothing of it runs, and its clock stands still, while
    /// another one takes the array over, on an engine with a clock of its own.
    pub(super) async fn suspended(&mut self, owner: Owner) -> Result<Owner, String> {
        self.idle().await;
        self.world.tell(format_args!("the host is suspended"));
        let model = self.take_model()?;
        let (plan, subject, world, disks) = (self.plan, self.subject, self.world.clone(), self.disks.clone());
        let random = self.random.fork();
        let given_up = self.given_up;
        let others = || elsewhere(plan, subject, world, disks, random, model, given_up);
        let ended = std::thread::scope(|scope| scope.spawn(others).join());
        let (model, time) = ended.map_err(|_| "a panic in another host".to_owned())??;
        self.model = Some(Rc::new(RefCell::new(model)));
        // What the other host had under way when it ended.
        self.disks.iter().for_each(Disk::settle);
        self.engine.suspend(time);
        self.world.tell(format_args!("the host is resumed after {} s", time.as_secs()));
        let writes = spawn(intrude(Rc::clone(&owner.io), owner.array.info().size, self.random.fork(), 1));
        all_fail(peek(Rc::clone(&owner.io), owner.array.info().size)).await?;
        all_fail(writes).await?;
        self.contend().await
    }
}

/// Another host takes the array over, uses it, and stops it or crashes. Returns how long that took.
fn elsewhere(
    plan: &Plan,
    subject: &Arrayed,
    world: World,
    disks: Vec<Disk>,
    mut random: Random,
    model: Model,
    given_up: bool,
) -> Result<(Model, Duration), String> {
    let engine = Engine::simulated(random.bits()).map_err(|e| e.to_string())?;
    let model = Some(Rc::new(RefCell::new(model)));
    let failure = Rc::default();
    let mut hosts =
        Hosts { plan, subject, engine: &engine, world, disks, random, model, failure, given_up, hurt: false };
    let time = engine.block_on(async {
        let began = now();
        let owner = hosts.contend().await?;
        hosts.use_it(&owner).await?;
        if hosts.random.chance(50) {
            hosts.stop(&owner).await?;
        }
        Ok::<_, String>(now() - began)
    })?;
    Ok((hosts.take_model()?, time))
}
