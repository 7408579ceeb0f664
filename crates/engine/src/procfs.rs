//! Reads `/proc` (proc(5)): processes, processors, counters of the network, and mounts. For
//! measurements and messages; nothing here is on the data path.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Ticks of processor time in a second (`USER_HZ`: the same on every Linux).
const TICKS_PER_SECOND: f64 = 100.0;

/// A number of ticks in seconds.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

/// The directory of a process.
#[derive(Clone, Debug)]
pub struct Process(PathBuf);

impl Process {
    /// The calling process.
    pub fn own() -> Process {
        Process("/proc/self".into())
    }

    /// The process with this ID.
    pub fn of(pid: u32) -> Process {
        Process(format!("/proc/{pid}").into())
    }

    /// The value of a line of `status`, without the space around it; nothing if there is no such
    /// line or process.
    pub fn status(&self, name: &str) -> Option<String> {
        field(&fs::read_to_string(self.0.join("status")).ok()?, name).map(str::to_owned)
    }

    /// Resident set in bytes.
    pub fn resident(&self) -> Option<u64> {
        bytes(&self.status("VmRSS")?)
    }

    /// The largest resident set so far, in bytes.
    pub fn peak_resident(&self) -> Option<u64> {
        bytes(&self.status("VmHWM")?)
    }

    /// Numbers of the processors that it may use.
    pub fn processors(&self) -> Option<Vec<u32>> {
        numbers(&self.status("Cpus_allowed_list")?)
    }

    /// Its processor time so far.
    pub fn ticks(&self) -> Option<ProcessTicks> {
        ProcessTicks::parse(&fs::read_to_string(self.0.join("stat")).ok()?)
    }
}

/// The value of a line `NAME: VALUE`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
}

/// A size in kB.
fn bytes(size: &str) -> Option<u64> {
    size.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A list such as `0-2,5`.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        all.extend(from.parse::<u32>().ok()?..=to.parse().ok()?);
    }
    Some(all)
}

/// Processor time of a process, in ticks, in user and kernel together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTicks {
    /// Of its threads, also those that have ended.
    pub own: u64,
    /// Of its children that have ended and were waited for.
    pub children: u64,
}

impl ProcessTicks {
    fn parse(stat: &str) -> Option<ProcessTicks> {
        // The program's name, in parentheses, may contain spaces and parentheses; the fields after
        // it do not. The first of them is the third of all.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().skip(11).take(4).collect();
        let [user, system, of_children @ ..] = &*fields else { return None };
        let sum =
            |fields: &[&str]| -> Option<u64> { fields.iter().map(|field| field.parse::<u64>().ok()).sum() };
        Some(ProcessTicks { own: sum(&[user, system])?, children: sum(of_children)? })
    }
}

/// Ticks of a processor, or of all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTicks {
    /// Its number; nothing for the sum of all.
    pub number: Option<u32>,
    /// It ran something of this machine.
    pub busy: u64,
    /// Of these, in hard and soft interrupts.
    pub interrupts: u64,
    /// It ran nothing, or waited for a disk.
    pub idle: u64,
    /// A hypervisor ran something else on it.
    pub stolen: u64,
}

/// The processors in the text of `/proc/stat`, the sum of all first.
pub fn processors(stat: &str) -> Vec<ProcessorTicks> {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' '));
    let parse = |(number, rest): (&str, &str)| {
        let number = if number.is_empty() { None } else { Some(number.parse().ok()?) };
        let fields: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, wait, hard, soft, stolen, ..] = *fields else { return None };
        let interrupts = hard + soft;
        let busy = user + nice + system + interrupts;
        Some(ProcessorTicks { number, busy, interrupts, idle: idle + wait, stolen })
    };
    lines.filter_map(parse).collect()
}

/// A counter in the text of a file in `/proc/net` (`snmp`, `netstat`), in which a line of names
/// precedes one of values. Both begin with the name of the table, as `Tcp` and `TcpExt` are.
pub fn net_counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table)?.strip_prefix(": "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|found| found == name)?;
    values.split(' ').nth(at)?.parse().ok()
}

/// A file system that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// The absolute path of the mount point.
    pub at: PathBuf,
    /// What kind it is (`ext4`, `fuse`, `fuse.sshfs`).
    pub kind: String,
}

/// What this process sees mounted, in the order in which it was; nothing if `/proc` is not there.
pub fn mounts() -> Vec<Mount> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// A line of `mountinfo`.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let at = unescape(fields.nth(1)?);
    // Any number of optional fields ends with a hyphen.
    fields.find(|field| *field == b"-")?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        at: OsString::from_vec(at).into(),
        kind: String::from_utf8_lossy(fields.next()?).into_owned(),
    })
}

/// Reads octal escapes back: those of spaces, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if field[at] == b'\\' => {
                out.push(byte);
                at += 4;
            }
            _ => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found() {
        let (own, same) = (Process::own(), Process::of(std::process::id()));
        assert_eq!(own.status("Pid"), Some(std::process::id().to_string()));
        // The size first: tests beside this one allocate, so that it grows between the two.
        let size = own.resident().expect("a size");
        assert!(same.peak_resident().expect("a peak") >= size / 2, "a unit or a field is wrong");
        assert!(!own.processors().expect("processors").is_empty());
        assert!(own.ticks().is_some());
        assert_eq!(Process::of(u32::MAX).ticks(), None);
    }

    #[test]
    fn fields_of_a_process() {
        let status = "Name:\tx: y\nVmHWM:\t    12 kB\nCpus_allowed_list:\t0-2,5\n";
        assert_eq!((field(status, "Name"), field(status, "VmRSS")), (Some("x: y"), None));
        assert_eq!(field(status, "VmHWM").and_then(bytes), Some(12 << 10));
        assert_eq!(field(status, "Cpus_allowed_list").and_then(numbers), Some(vec![0, 1, 2, 5]));
        assert_eq!((numbers("x"), bytes("12")), (None, None));
        let ticks = ProcessTicks::parse("7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 2 1 0");
        assert_eq!(ticks, Some(ProcessTicks { own: 200, children: 3 }));
        assert_eq!(ProcessTicks::parse("7"), None);
    }

    #[test]
    fn processors_are_told_apart() {
        let stat = "cpu  9 9 9 9 9 9 9 7 0 0\ncpu0 100 0 50 800 10 5 45 30 0 0\ncpu11 1 2 3\nintr 5\n";
        let sum = ProcessorTicks { number: None, busy: 45, interrupts: 18, idle: 18, stolen: 7 };
        let first = ProcessorTicks { number: Some(0), busy: 200, interrupts: 50, idle: 810, stolen: 30 };
        assert_eq!(processors(stat), [sum, first]);
        assert_eq!(seconds(250), 2.5);
    }

    #[test]
    fn counters_are_found_by_their_names() {
        let table = "TcpExt: A TCPDSACKRecv\nTcpExt: 1 7\nIpExt: X\nIpExt: 2\n";
        assert_eq!(net_counter(table, "TcpExt", "TCPDSACKRecv"), Some(7));
        assert_eq!(net_counter(table, "TcpExt", "Y"), None);
        assert_eq!(net_counter("Tcp: OutSegs\n", "Tcp", "OutSegs"), None);
    }

    #[test]
    fn mounts_are_where_their_lines_say() {
        let line = br"36 35 98:0 /a /mnt/a\040b\134c rw,noatime master:1 - fuse.x /dev/root rw";
        let found = Mount { device: (98, 0), at: r"/mnt/a b\c".into(), kind: "fuse.x".into() };
        assert_eq!(mount(line), Some(found));
        assert_eq!(mount(b""), None);
        assert_eq!((unescape(br"\04"), unescape(b"/plain")), (br"\04".to_vec(), b"/plain".to_vec()));
        assert!(mounts().iter().any(|mount| mount.kind == "proc"));
    }
}
