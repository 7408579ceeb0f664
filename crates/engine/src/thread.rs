//! An engine with a thread of its own.

use crate::config::Config;
use crate::exec::{Engine, Handle, simulated_thread};
use crate::simulated::Ends;
use futures_channel::oneshot;
use std::io;
use std::thread::JoinHandle;

/// A thread that runs an engine until this is dropped.
#[derive(Debug)]
pub struct Thread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    join: Option<JoinHandle<()>>,
    /// In a simulation there is no thread, but a group of tasks.
    _group: Option<Ends>,
}

impl Thread {
    /// Starts a thread called `name` (the system shows 15 bytes of it). On a
    /// simulated engine it starts none: its tasks run on that engine.
    ///
    /// # Errors
    /// No thread, or no driver as `config` asks for; the processor to pin to
    /// does not exist.
    pub fn start(name: &str, config: Config) -> io::Result<Thread> {
        Thread::start_after(name, config, || {})
    }

    /// As [`start`](Self::start), for work that is to wait for that of other threads: where they
    /// share a processor, this one gets a tenth of it, also if the process has a real-time policy.
    ///
    /// # Errors
    /// As there.
    pub fn background(name: &str, config: Config) -> io::Result<Thread> {
        Thread::start_after(name, config, step_back)
    }

    /// Starts a thread that calls `prepare` first.
    fn start_after(name: &str, config: Config, prepare: fn()) -> io::Result<Thread> {
        if let Some((handle, group)) = simulated_thread() {
            return Ok(Thread { handle, stop: None, join: None, _group: Some(Ends(group)) });
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let join = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            prepare();
            let engine = config.cpu.map_or(Ok(()), pin_to).and_then(|()| Engine::new(&config));
            match engine {
                Ok(engine) => {
                    let _ = ready.send(Ok(engine.handle()));
                    let _ = engine.block_on(stopped);
                }
                Err(e) => {
                    let _ = ready.send(Err(e));
                }
            }
        })?;
        let handle = started.recv().unwrap_or_else(|_| Err(io::Error::other("the engine thread died")))?;
        Ok(Thread { handle, stop: Some(stop), join: Some(join), _group: None })
    }

    /// The thread's engine.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(join) = self.join.take()
            && join.thread().id() != std::thread::current().id()
        {
            let _ = join.join();
        }
    }
}

/// How far a thread in the background steps back, in the units of nice(2).
const NICE: libc::c_int = 10;

/// Lets the calling thread step back behind others. Where that is not allowed, it is one like them.
fn step_back() {
    // A thread that inherits a real-time policy would precede all others, whatever its nice value.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads one integer, the priority, which has to be 0 for this policy. Called
    // directly, since not every C library has it for threads.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) };
    // SAFETY: no memory is involved; on Linux this is about the calling thread.
    let _ = unsafe { libc::nice(NICE) };
}

/// Pins the calling thread to one processor.
fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::other(format!("no processor {cpu}")));
    }
    // SAFETY: a zeroed set is an empty set; `cpu` is below its size.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
