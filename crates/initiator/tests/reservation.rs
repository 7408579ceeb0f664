//! Reservations, between two hosts of one target.

mod common;

use common::{connect, engines, export, target};
use longhaul_block::{BlockIo, IoError, WriteFlags};
use longhaul_engine::{Buf, BufMut, Engine, timeout};
use longhaul_initiator::{Options, PersistChange, Registrant, RemoteIo, ReservationType};
use longhaul_target::{HostAccess, HostRights};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

const EXCLUSIVE: ReservationType = ReservationType::WriteExclusive;

async fn host(uri: &str, options: &Options, id: u128) -> Rc<RemoteIo> {
    let hostid = Uuid::from_u128(id);
    let hostnqn = format!("nqn.2014-08.org.nvmexpress:uuid:{hostid}");
    let device = connect(uri, Options { hostid, hostnqn, ..options.clone() }).expect("connected");
    device.open_io().await.expect("opened")
}

async fn write(io: &RemoteIo) -> Result<(), IoError> {
    io.write(0, Buf::copy_of(&[7; 4096]), WriteFlags::default()).await
}

#[test]
fn a_host_that_takes_over_keeps_the_other_out() {
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, "mem:16MiB,block=4096");
        let options = Options { engine: engine.clone(), ..Options::default() };
        Engine::new(&engine).expect("engine").block_on(async {
            let (old, new) = (host(&uri, &options, 1).await, host(&uri, &options, 2).await);
            let (old_side, new_side) =
                (old.reservation().expect("offered"), new.reservation().expect("offered"));
            assert_eq!(old_side.acquire(1, EXCLUSIVE).await, Err(IoError::Reserved), "not registered");
            old_side.register(1, PersistChange::None).await.expect("registered");
            old_side.register(1, PersistChange::None).await.expect("again");
            old_side.acquire(1, EXCLUSIVE).await.expect("reserved");
            old_side.acquire(1, EXCLUSIVE).await.expect("again");
            write(&old).await.expect("the holder writes");
            assert_eq!(write(&new).await, Err(IoError::Reserved));
            // In memory nothing persists.
            let persists = new_side.register(2, PersistChange::Set).await;
            assert!(matches!(persists, Err(IoError::Refused(_))), "{persists:?}");

            new_side.register(2, PersistChange::None).await.expect("registered");
            assert_eq!(new_side.acquire(2, EXCLUSIVE).await, Err(IoError::Reserved), "held");
            let seen = new_side.report().await.expect("a report");
            let holder: Vec<&Registrant> = seen.registrants.iter().filter(|one| one.holds).collect();
            assert_eq!((seen.kind, holder.len(), holder[0].key), (Some(EXCLUSIVE), 1, 1));
            assert_eq!(holder[0].hostid, Uuid::from_u128(1).into_bytes());
            new_side.preempt(2, holder[0].key, EXCLUSIVE).await.expect("taken over");
            assert_eq!(new_side.preempt(2, 1, EXCLUSIVE).await, Err(IoError::Reserved), "nothing to preempt");
            write(&new).await.expect("the new holder writes");
            // The old host's queues were closed: it reconnects, and stays out.
            assert_eq!(write(&old).await, Err(IoError::Reserved));
            assert_eq!(old.flush().await, Err(IoError::Reserved));

            new_side.release(2, EXCLUSIVE).await.expect("released");
            // No host holds it any more, and the old host stays out until it is opened again.
            assert_eq!(write(&old).await, Err(IoError::Reserved));
            assert_eq!(old_side.register(1, PersistChange::None).await, Err(IoError::Reserved));
            let again = host(&uri, &options, 1).await;
            write(&again).await.expect("no host holds it");
            new_side.unregister(2).await.expect("not registered any more");
            assert_eq!(new_side.unregister(2).await, Err(IoError::Reserved), "it was not");
            assert!(new_side.report().await.expect("a report").registrants.is_empty());
        });
    }
}

/// The new holder has gone before the old host notices: what that one sends again must not land.
#[test]
fn a_preempted_host_writes_nothing_after_the_reservation_has_ended() {
    let target = target(|_| {});
    let uri = export(&target, "mem:16MiB,block=4096");
    let options = Options::default();
    Engine::new(&options.engine).expect("engine").block_on(async {
        let (old, new) = (host(&uri, &options, 1).await, host(&uri, &options, 2).await);
        let (old_side, new_side) = (old.reservation().expect("offered"), new.reservation().expect("offered"));
        old_side.register(1, PersistChange::None).await.expect("registered");
        old_side.acquire(1, EXCLUSIVE).await.expect("reserved");
        write(&old).await.expect("the holder writes");
        new_side.register(2, PersistChange::None).await.expect("registered");
        let ends = async {
            new_side.preempt(2, 1, EXCLUSIVE).await.expect("taken over");
            new.write(0, Buf::copy_of(&[9; 4096]), WriteFlags::default()).await.expect("written");
            new_side.unregister(2).await.expect("gone");
        };
        // Writes of the old host all the while: those that end well came before the takeover.
        let writes = async {
            while write(&old).await.is_ok() {}
            write(&old).await
        };
        let writes = timeout(Duration::from_secs(60), writes);
        let (refused, ()) = futures_util::join!(writes, ends);
        assert_eq!(refused.expect("it is refused at some time"), Err(IoError::Reserved));
        let content = new.read(0, BufMut::zeroed(4096)).await.expect("read");
        assert_eq!(content[..], [9; 4096], "a write of the preempted host has landed");
    });
}

/// Sessions of one host, each with a host identifier of its own, share a namespace; one that is lost is kept out.
#[test]
fn of_hosts_that_share_a_namespace_one_is_kept_out() {
    let target = target(|_| {});
    let uri = export(&target, "mem:16MiB,block=4096");
    let options = Options::default();
    Engine::new(&options.engine).expect("engine").block_on(async {
        let session = async |id: u128| {
            let options = Options { hostid: Uuid::from_u128(id), ..options.clone() };
            let io = connect(&uri, options).expect("connected").open_io().await.expect("opened");
            let shared = io.shared_reservations().expect("also of what does not persist");
            shared.register(id as u64).await.expect("registered");
            (io, shared)
        };
        let ((one, first), (two, second), (three, third)) =
            (session(1).await, session(2).await, session(3).await);
        first.acquire(1).await.expect("reserved");
        second.acquire(2).await.expect("it holds it too");
        let stranger = host(&uri, &options, 9).await;
        assert_eq!(write(&stranger).await, Err(IoError::Reserved), "it is not registered");
        stranger.read(0, BufMut::zeroed(4096)).await.expect("it reads");
        for io in [&one, &two, &three] {
            write(io).await.expect("each of them writes");
        }
        let seen = second.report().await.expect("a report");
        assert!(seen.is_shared && seen.holder.is_some() && seen.registered == [1, 2, 3], "{seen:?}");
        second.preempt(2, 1).await.expect("kept out");
        assert_eq!(write(&one).await, Err(IoError::Reserved));
        assert_eq!(second.preempt(2, 1).await, Err(IoError::Reserved), "it is out");
        write(&three).await.expect("the others are as before");
        second.unregister(2).await.expect("it leaves");
        assert_eq!(write(&two).await, Err(IoError::Reserved));
        third.unregister(3).await.expect("the last one leaves");
        assert_eq!(write(&one).await, Err(IoError::Reserved), "also when no host holds it");
        write(&stranger).await.expect("it is not reserved");
    });
}

/// More registrants than the first request has room for.
#[test]
fn a_long_report_is_read_to_its_end() {
    let target = target(|_| {});
    let uri = export(&target, "mem:16MiB,block=4096");
    let options = Options::default();
    Engine::new(&options.engine).expect("engine").block_on(async {
        let mut last = None;
        for id in 1..=70u128 {
            let one = host(&uri, &options, id).await;
            one.reservation()
                .expect("offered")
                .register(id as u64, PersistChange::None)
                .await
                .expect("registered");
            last = Some(one);
        }
        let report = last.expect("a host").reservation().expect("offered").report().await.expect("a report");
        let mut keys: Vec<u64> = report.registrants.iter().map(|one| one.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, (1..=70).collect::<Vec<u64>>());
    });
}

/// It would keep the hosts out that may write.
#[test]
fn a_host_that_may_only_read_reserves_nothing() {
    let nqn = |id: u128| format!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid::from_u128(id));
    let one = HostAccess::Only([nqn(1)].into());
    let target = target(|config| config.hosts.all = HostRights { read: HostAccess::Any, write: one });
    let uri = export(&target, "mem:16MiB,block=4096");
    let options = Options::default();
    Engine::new(&options.engine).expect("engine").block_on(async {
        let (writer, reader) = (host(&uri, &options, 1).await, host(&uri, &options, 2).await);
        let side = reader.reservation().expect("offered");
        let denied = |result: Result<(), IoError>| {
            assert!(matches!(&result, Err(IoError::Refused(why)) if why.contains("Denied")), "{result:?}");
        };
        denied(side.register(2, PersistChange::None).await);
        denied(side.acquire(2, EXCLUSIVE).await);
        writer.reservation().expect("offered").register(1, PersistChange::None).await.expect("it may");
        denied(side.preempt(2, 1, EXCLUSIVE).await);
        denied(side.release(1, EXCLUSIVE).await);
        assert_eq!(side.report().await.expect("a report").registrants.len(), 1);
        write(&writer).await.expect("nothing has changed");
    });
}
