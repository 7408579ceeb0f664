//! The agent's side of a mount.

use super::send_all;
use crate::link::{Link, LinkError};
use crate::session::error::SessionError;
use crate::tree::root::Root;
use crate::tree::say;
use crate::wire::{Frame, Refusal, RefusalKind, show};
use futures_channel::mpsc::{Receiver, Sender, UnboundedSender, channel, unbounded};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, blocking, spawn};
use longhaul_fs::{Call, Directory, Errno, Handle, Reply};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// Most reads, and most other calls, of one session that are executed at the same time: each may take a thread.
const READS: usize = 64;
const CALLS: usize = 64;
/// Most reads that wait for memory, or for their turn: what a client has read ahead is less.
const WAITING: usize = 4096;

/// A directory that a client has asked for, checked.
pub(crate) struct Exported(Arc<Directory>);

impl Exported {
    /// Opens the directory at the client's path.
    ///
    /// # Errors
    /// It does not exist below the root, or is not a directory.
    pub(crate) fn open(root: &Root, path: &[u8], read_only: bool) -> Result<Exported, Refusal> {
        let tree = root.directory(path)?;
        let opened = tree
            .enter()
            // An agent's root is a directory of its machine.
            .and_then(|()| tree.top().fd().ok_or_else(|| Errno::NOTSUP.into()))
            .and_then(|fd| Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?))
            .and_then(|fd| Ok(Directory::new(fd, read_only)?));
        let refused = |e| Refusal::new(RefusalKind::NotAllowed, format_args!("{}: {}", show(path), say(&e)));
        opened.map(|directory| Exported(Arc::new(directory))).map_err(refused)
    }
}

/// Serves a mount until its client closes the connection.
///
/// # Errors
/// The connection failed, or the client broke the protocol.
pub(crate) async fn serve(link: Link, exported: Exported, pool: BufPool) -> Result<(), SessionError> {
    let Link { mut tx, mut rx } = link;
    let (answers, queue) = unbounded();
    let (mut reads, wanted) = channel(WAITING);
    let session =
        Session { directory: exported.0, answers, reads: Slots::new(READS), others: Slots::new(CALLS) };
    let read = pin!(session.read_all(wanted, &pool));
    let receive = pin!(async {
        while let Some(frame) = rx.frame().await? {
            let Frame::Call { id, call } = frame else {
                return Err(LinkError::from(crate::wire::Malformed::Value("frame of a mount")));
            };
            session.begin(id, call, &mut reads).await;
        }
        Ok(())
    });
    match select(receive, select(pin!(send_all(&mut tx, queue)), read)).await {
        Either::Left((received, _)) => Ok(received?),
        Either::Right((Either::Left((sent, _)), _)) => Ok(sent?),
        Either::Right((Either::Right(_), _)) => Ok(()),
    }
}

/// A read that a client has asked for.
struct Wanted {
    id: u64,
    handle: Handle,
    offset: u64,
    len: u32,
}

/// Calls that may be executed at the same time.
struct Slots {
    most: usize,
    taken: Cell<usize>,
    freed: Notify,
}

impl Slots {
    fn new(most: usize) -> Rc<Slots> {
        Rc::new(Slots { most, taken: Cell::default(), freed: Notify::new() })
    }

    /// Takes one, once there is one. One task at a time may wait.
    async fn take(&self) {
        while self.taken.get() >= self.most {
            self.freed.notified().await;
        }
        self.taken.set(self.taken.get() + 1);
    }

    fn free(&self) {
        self.taken.set(self.taken.get() - 1);
        self.freed.notify();
    }
}

struct Session {
    directory: Arc<Directory>,
    answers: UnboundedSender<Frame>,
    reads: Rc<Slots>,
    others: Rc<Slots>,
}

impl Session {
    /// Begins to execute a call, once fewer than [`CALLS`] are under way. Reads follow each other in a queue of their
    /// own, so that no other call waits for the memory of what is read ahead.
    async fn begin(&self, id: u64, call: Call, reads: &mut Sender<Wanted>) {
        if let Call::Read { handle, offset, len } = call {
            // The other end lives as long as the session.
            if poll_fn(|context| reads.poll_ready(context)).await.is_ok() {
                let _ = reads.start_send(Wanted { id, handle, offset, len });
            }
            return;
        }
        self.others.take().await;
        let directory = Arc::clone(&self.directory);
        self.execute(&self.others, id, blocking(move || directory.execute(call)));
    }

    /// Executes reads in their order.
    async fn read_all(&self, mut wanted: Receiver<Wanted>, pool: &BufPool) {
        while let Some(Wanted { id, handle, offset, len }) = wanted.next().await {
            // Memory for content is had before the thread is.
            let mut data = pool.alloc(len as usize).await;
            self.reads.take().await;
            let directory = Arc::clone(&self.directory);
            let read = blocking(move || {
                let read = directory.read(handle, offset, &mut data)?;
                data.truncate(read);
                Ok::<Reply, Errno>(Reply::Data(data.freeze()))
            });
            self.execute(&self.reads, id, read);
        }
    }

    /// Answers a call that has a slot, once it has been executed.
    fn execute(
        &self,
        slots: &Rc<Slots>,
        id: u64,
        reply: impl Future<Output = Result<Reply, Errno>> + 'static,
    ) {
        let (slots, answers) = (Rc::clone(slots), self.answers.clone());
        spawn(async move {
            let reply = reply.await;
            slots.free();
            // Without a receiver the connection has ended.
            let _ = answers.unbounded_send(Frame::Reply { id, reply });
        })
        .detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::{Config, Thread};
    use longhaul_fs::Node;

    const READ: u32 = 1 << 20;
    const COUNT: u64 = 64;

    /// All the agent's memory is taken by content that waits to be sent, and most reads wait for some.
    #[test]
    fn a_lookup_waits_for_no_reads() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("large"), vec![1; READ as usize]).expect("written");
        let root = rustix::fs::open(dir.path(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
        let directory = Directory::new(root.expect("open"), true).expect("a file system");
        let found = directory.execute(Call::Lookup { parent: Node::ROOT, name: b"large".to_vec() });
        let Ok(Reply::Entry(found)) = found else { panic!("{found:?}") };
        let opened = directory.execute(Call::Open { node: found.node, flags: 0 });
        let Ok(Reply::Opened(_, handle)) = opened else { panic!("{opened:?}") };
        let exported = Exported(Arc::new(directory));
        let thread = Thread::start("test", Config::default()).expect("an engine");
        let run = move || async move {
            let (Link { mut tx, mut rx }, there) = Link::pair();
            spawn(serve(there, exported, BufPool::new(4 * READ as usize))).detach();
            let read = |id| Frame::Call { id, call: Call::Read { handle, offset: 0, len: READ } };
            for id in 0..COUNT {
                tx.send(vec![read(id)]).await.expect("sent");
            }
            let call = Call::Lookup { parent: Node::ROOT, name: b"none".to_vec() };
            tx.send(vec![Frame::Call { id: COUNT, call }]).await.expect("sent");
            let mut order = Vec::new();
            while order.len() as u64 <= COUNT {
                match rx.frame().await.expect("received") {
                    Some(Frame::Reply { id, .. }) => order.push(id),
                    other => panic!("{other:?}"),
                }
            }
            order
        };
        let order = thread.handle().spawn(run).wait().expect("it ran");
        let place = order.iter().position(|id| *id == COUNT).expect("answered");
        assert!(place < COUNT as usize / 2, "after {place} of {COUNT} reads: {order:?}");
        let reads: Vec<u64> = order.into_iter().filter(|id| *id != COUNT).collect();
        assert_eq!(reads.len() as u64, COUNT, "{reads:?}");
    }
}
