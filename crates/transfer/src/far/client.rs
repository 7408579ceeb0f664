//! The client's side of a mount.

use super::send_all;
use crate::copy::endpoint::Endpoint;
use crate::copy::ssh::Remote;
use crate::copy::task::CopyTask;
use crate::copy::{CopyError, Settings, reach};
use crate::link::{Link, LinkError};
use crate::monitor::Monitor;
use crate::session::error::SessionError;
use crate::tree::root::Root;
use crate::tune::Concurrency;
use crate::wire::{CopyDirection, Frame, Malformed, Request};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use longhaul_engine::Thread;
use longhaul_fs::{Answer, Call, Done, FileSystem};
use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

/// A directory of another machine, reached through an agent there.
pub struct FarDirectory {
    name: String,
    /// Ends the task when dropped, so it is declared before the thread and the agent.
    calls: UnboundedSender<(Call, Answer)>,
    trouble: Arc<Mutex<Option<String>>>,
    _thread: Thread,
    /// The agent that was started for it.
    _remote: Mutex<Option<Remote>>,
}

impl FarDirectory {
    /// Connects to the agent of `endpoint`, which is started over ssh for `HOST:PATH`, and opens the
    /// directory there. Blocks meanwhile; ssh may ask for a password.
    ///
    /// # Errors
    /// The endpoint is of this machine, the agent cannot be reached, or it refuses.
    pub fn open(endpoint: &Endpoint, settings: &Settings) -> Result<FarDirectory, CopyError> {
        let name = endpoint.to_string();
        let Some(server) = endpoint.server() else {
            return Err(CopyError::Usage(format!(
                "{name} is on this machine: name HOST:PATH or lh://HOST/PATH"
            )));
        };
        let monitor = Arc::new(Monitor::new());
        let mut settings = Settings { streams: Concurrency::Fixed(1), ..settings.clone() };
        let reached = reach(server, &mut settings, &monitor)?;
        let request = Request {
            destination: endpoint.path().to_vec(),
            congestion: settings.congestion.clone().unwrap_or_default(),
            ..Request::default()
        };
        let thread = Thread::start("longhaul-far", settings.engine.clone()).map_err(SessionError::from)?;
        let (calls, inbox) = unbounded();
        let (opened, result) = std::sync::mpsc::channel();
        let trouble = Arc::new(Mutex::new(None));
        let (noted, shown, server) = (Arc::clone(&trouble), name.clone(), reached.server);
        let channel = RefCell::new(reached.channel);
        // `opened` reports the result, while the task continues.
        drop(thread.handle().spawn(move || async move {
            // The task owns the channel through ssh, which keeps the agent alive.
            let roots = (Root::Here, Root::Here);
            let task = CopyTask { request: request.clone(), roots, settings, monitor, channel };
            let granted = match task.connect(&server, CopyDirection::Mount, request).await {
                Ok(granted) => granted,
                Err(e) => return drop(opened.send(Err(e))),
            };
            let Some(link) = granted.links.into_iter().next() else { return };
            let _ = opened.send(Ok(()));
            let why = match run(link, inbox).await {
                Ok(()) => "the agent closed the connection".to_owned(),
                Err(e) => e.to_string(),
            };
            tracing::warn!(
                "{shown}: {why}: its files cannot be used until it is unmounted and mounted again"
            );
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        }));
        result.recv().unwrap_or_else(|_| Err(SessionError::Lost.into()))?;
        Ok(FarDirectory { name, calls, trouble, _thread: thread, _remote: Mutex::new(reached.remote) })
    }

    /// Its name, as it is typed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the connection has ended, if it has.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FileSystem for FarDirectory {
    fn start(&self, call: Call, done: Done) {
        // If the connection has ended, dropping the answer reports it.
        let _ = self.calls.unbounded_send((call, Answer::new(done)));
    }
}

impl std::fmt::Debug for FarDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FarDirectory({})", self.name)
    }
}

/// Sends calls and hands out replies, until either side ends.
async fn run(link: Link, mut inbox: UnboundedReceiver<(Call, Answer)>) -> Result<(), LinkError> {
    let Link { mut tx, mut rx } = link;
    tx.pace();
    // The caches above bound what is asked for.
    rx.use_heap();
    let (frames, queue) = unbounded();
    let waiting: RefCell<HashMap<u64, Answer>> = RefCell::default();
    let send = async {
        let take = async {
            let mut id = 0;
            while let Some((call, answer)) = inbox.next().await {
                id += 1;
                waiting.borrow_mut().insert(id, answer);
                if frames.unbounded_send(Frame::Call { id, call }).is_err() {
                    return;
                }
            }
        };
        match select(pin!(take), pin!(send_all(&mut tx, queue))).await {
            Either::Left(((), _)) => Ok(()),
            Either::Right((sent, _)) => Ok(sent?),
        }
    };
    let receive = async {
        while let Some(frame) = rx.frame().await? {
            let Frame::Reply { id, reply } = frame else {
                return Err(LinkError::from(Malformed::Value("frame of a mount")));
            };
            let answer = waiting.borrow_mut().remove(&id);
            match answer {
                Some(answer) => answer.give(reply),
                None => return Err(Malformed::Value("number of a reply").into()),
            }
        }
        Ok(())
    };
    match select(pin!(send), pin!(receive)).await {
        Either::Left((result, _)) | Either::Right((result, _)) => result,
    }
}
