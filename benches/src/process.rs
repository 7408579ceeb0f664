//! Child processes: pinned, watched, and ended by their own pid.

use anyhow::{Context, Result, ensure};
use longhaul_engine::procfs::{Process, seconds};
use serde_json::Value;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long a child may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Binds the calling thread to a processor.
pub(crate) fn pin_thread(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: a bit set, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: reads the set; 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What `run` returns for each item, all at the same time, in a thread each.
pub(crate) fn together<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    run: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    std::thread::scope(|scope| {
        let run = &run;
        let all: Vec<_> = items.into_iter().map(|item| scope.spawn(move || run(item))).collect();
        all.into_iter().map(|one| one.join().expect("a thread that does not panic")).collect()
    })
}

/// Starts `command`, on a processor if one is given; it is asked to end if we
/// die.
pub(crate) fn start(command: &mut Command, cpu: Option<usize>) -> Result<Child> {
    let setup = move || {
        // SAFETY: a system call without memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        cpu.map_or(Ok(()), pin_thread)
    };
    // SAFETY: between fork and exec `setup` makes system calls only; it
    // allocates nothing and takes no lock.
    let command = unsafe { command.pre_exec(setup) };
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().with_context(|| format!("cannot start {name}"))
}

/// A child that is ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Child);

impl Guard {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The next line of its output; empty at the end. It is read a byte at a time: the pipe stays
    /// open, so that later output does not fail.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().context("no pipe")?;
        BufReader::with_capacity(1, stdout).read_line(&mut line)?;
        Ok(line)
    }

    /// Its first event, which says that it is ready.
    pub(crate) fn ready(&mut self) -> Result<Value> {
        let event: Value = serde_json::from_str(&self.line()?)?;
        ensure!(event["event"] == "ready", "{event}");
        Ok(event)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The child was not waited for, so the pid is still its own.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = signal(self.0.id(), libc::SIGTERM);
            if !ends_within(self.0.id(), PATIENCE) {
                eprintln!("process {} does not end; killing it", self.0.id());
                let _ = self.0.kill();
            }
        }
        let _ = self.0.wait();
    }
}

/// Sends a signal to a child that was not waited for.
pub(crate) fn signal(pid: u32, number: i32) -> io::Result<()> {
    // SAFETY: a system call without memory.
    let result = unsafe { libc::kill(pid as libc::pid_t, number) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a descriptor this number in a child, which keeps it; for `pre_exec`.
pub(crate) fn pass(given: RawFd, number: RawFd) -> io::Result<()> {
    let result = match given == number {
        // SAFETY: a system call without memory.
        true => unsafe { libc::fcntl(given, libc::F_SETFD, 0) },
        // SAFETY: a system call without memory.
        false => unsafe { libc::dup2(given, number) },
    };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a child ends in time.
pub(crate) fn ends_within(pid: u32, time: Duration) -> bool {
    // SAFETY: a system call without memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return false;
    }
    // SAFETY: a new descriptor without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as said.
    unsafe { libc::poll(&raw mut poll, 1, time.as_millis() as i32) > 0 }
}

/// Time on processors of all threads of a process, in user and kernel.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let mut clock = 0;
    // SAFETY: fills `clock`.
    let result = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    ensure!(result == 0, "process {pid} has ended");
    read_clock(clock)
}

/// The same of the calling thread.
pub(crate) fn thread_cpu_time() -> Result<Duration> {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read_clock(clock: libc::clockid_t) -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills `time`.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(result == 0, "a process has ended: {}", io::Error::last_os_error());
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Peak resident set of a process in bytes (`VmHWM`).
pub(crate) fn peak_memory(pid: u32) -> Result<u64> {
    Process::of(pid).peak_resident().with_context(|| format!("process {pid} has ended"))
}

/// What a child has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Time on processors, with that of its children.
    pub(crate) cpu: Duration,
    /// Peak resident set in bytes.
    pub(crate) memory: u64,
}

/// Waits for a child; returns whether its exit status is 0, and its resource usage.
pub(crate) fn wait_usage(child: Child) -> Result<(bool, Usage)> {
    let mut status = 0;
    // SAFETY: a structure of numbers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: fills both.
    let pid = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) };
    ensure!(pid == child.id() as libc::pid_t, "a child cannot be waited for");
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    let cpu = time(usage.ru_utime) + time(usage.ru_stime);
    let well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    Ok((well, Usage { cpu, memory: usage.ru_maxrss as u64 * 1024 }))
}

/// Waits until a process has no children that it must still wait for, whose time would
/// not be counted yet; gives up on those that do not end.
pub(crate) fn await_children(pid: u32) {
    let end = Instant::now() + PATIENCE;
    let children = || -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    loop {
        let Some(child) = children().into_iter().next() else { return };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if ends_within(child, left) {
            // No event reports that its parent has waited for it.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Time on processors of a process and of those of its children that have ended and
/// been waited for: see [`await_children`].
pub(crate) fn family_time(pid: u32) -> Result<Duration> {
    let ticks = Process::of(pid).ticks().with_context(|| format!("process {pid} has ended"))?;
    Ok(Duration::from_secs_f64(seconds(ticks.own + ticks.children)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn a_child_is_pinned_watched_and_ended() {
        let mut command = Command::new("sleep");
        let child = Guard(start(command.arg("600"), Some(0)).expect("start"));
        let pid = child.pid();
        assert_eq!(Process::of(pid).processors(), Some(vec![0]));
        assert!(cpu_time(pid).is_ok() && peak_memory(pid).expect("memory") > 0);
        drop(child);
        assert!(cpu_time(pid).is_err(), "an ended process has no processor time");
    }

    #[test]
    fn what_a_child_has_used_is_known_when_it_has_ended() {
        let used = |script: &str| {
            let child = start(Command::new("sh").args(["-c", script]), None).expect("start");
            wait_usage(child).expect("waited")
        };
        let (well, usage) = used("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
        assert!(well && usage.cpu > Duration::ZERO && usage.memory > 0, "{usage:?}");
        assert!(!used("exit 3").0);
        assert!(family_time(std::process::id()).is_ok());
    }

    #[test]
    fn time_of_a_child_is_counted_when_it_was_waited_for() {
        let script = "(echo; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) & wait; exec cat";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Guard(start(&mut command, None).expect("start"));
        let mut begun = [0];
        shell.0.stdout.as_mut().expect("piped").read_exact(&mut begun).expect("it has begun");
        await_children(shell.pid());
        assert!(family_time(shell.pid()).expect("it lives") > Duration::from_millis(20));
    }
}
