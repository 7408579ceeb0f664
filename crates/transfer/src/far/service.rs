//! The agent's side of a mount.

use super::send_all;
use crate::link::{Link, LinkError};
use crate::session::error::SessionError;
use crate::tree::root::Root;
use crate::tree::say;
use crate::wire::{Frame, Refusal, RefusalKind, show};
use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::future::{Either, select};
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, blocking, spawn};
use longhaul_fs::{Call, Directory, Errno, Reply};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// Most calls of one session that are executed at the same time: each may take a thread.
const CALLS: usize = 128;

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
    let session =
        Rc::new(Session { directory: exported.0, answers, under_way: Cell::new(0), ended: Notify::new() });
    let receive = pin!(async {
        while let Some(frame) = rx.frame().await? {
            let Frame::Call { id, call } = frame else {
                return Err(LinkError::from(crate::wire::Malformed::Value("frame of a mount")));
            };
            session.begin(id, call, &pool).await;
        }
        Ok(())
    });
    match select(receive, pin!(send_all(&mut tx, queue))).await {
        Either::Left((received, _)) => Ok(received?),
        Either::Right((sent, _)) => Ok(sent?),
    }
}

struct Session {
    directory: Arc<Directory>,
    answers: UnboundedSender<Frame>,
    /// Calls that are being executed.
    under_way: Cell<usize>,
    /// One of them has been.
    ended: Notify,
}

impl Session {
    /// Begins to execute a call, once fewer than [`CALLS`] are under way.
    async fn begin(self: &Rc<Self>, id: u64, call: Call, pool: &BufPool) {
        while self.under_way.get() >= CALLS {
            self.ended.notified().await;
        }
        self.under_way.set(self.under_way.get() + 1);
        let (session, directory) = (Rc::clone(self), Arc::clone(&self.directory));
        let reply = match call {
            // Memory for content is had before the thread is.
            Call::Read { handle, offset, len } => {
                let mut data = pool.alloc(len as usize).await;
                let read = blocking(move || {
                    let read = directory.read(handle, offset, &mut data)?;
                    data.truncate(read);
                    Ok::<Reply, Errno>(Reply::Data(data.freeze()))
                });
                Either::Left(read)
            }
            call => Either::Right(blocking(move || directory.execute(call))),
        };
        spawn(async move {
            let reply = reply.await;
            session.under_way.set(session.under_way.get() - 1);
            session.ended.notify();
            // Without a receiver the connection has ended.
            let _ = session.answers.unbounded_send(Frame::Reply { id, reply });
        })
        .detach();
    }
}
