//! What a number depends on: the machine, its kernel and its settings.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// A machine. Facts that could not be read are missing, and listed in [`unread`](Host::unread).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Host name of the machine.
    pub name: String,
    /// Kernel and version.
    pub kernel: String,
    /// Instruction set, such as `x86_64`.
    pub machine: String,
    /// Model of the processor.
    pub processor: String,
    /// Processors that this program may use.
    pub processors: u32,
    /// It is a guest of another machine.
    pub virtual_machine: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// How the clock rate is chosen, where that can be chosen here.
    pub governor: Option<String>,
    /// Load average of the last minute.
    pub load_average: f64,
    /// Default congestion control of sockets.
    pub congestion: String,
    /// Congestion controls that a program may set.
    pub congestion_available: Vec<String>,
    /// Default queueing discipline of interfaces.
    pub qdisc: String,
    /// Least, first and largest receive buffer of TCP, in bytes.
    pub tcp_rmem: Vec<u64>,
    /// The same of the send buffer.
    pub tcp_wmem: Vec<u64>,
    /// Largest receive buffer that a program may set, in bytes.
    pub rmem_max: u64,
    /// The same of the send buffer.
    pub wmem_max: u64,
    /// What TCP does where large packets vanish (0: nothing).
    pub mtu_probing: u64,
    /// Transparent huge pages.
    pub huge_pages: String,
    /// Facts that could not be read, and the reasons.
    pub unread: Vec<String>,
}

/// Reads small files below a root, and records those that it could not read.
struct Reader<'a> {
    root: &'a Path,
    unread: Vec<String>,
}

impl Reader<'_> {
    /// A file that every Linux has, without the space around it.
    fn text(&mut self, path: &str) -> String {
        match std::fs::read_to_string(self.root.join(path)) {
            Ok(text) => text.trim().to_owned(),
            Err(e) => {
                self.unread.push(format!("/{path}: {e}"));
                String::new()
            }
        }
    }

    /// A file that is not everywhere.
    fn optional(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    fn numbers(&mut self, path: &str) -> Vec<u64> {
        self.text(path).split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    fn number(&mut self, path: &str) -> u64 {
        self.numbers(path).first().copied().unwrap_or_default()
    }
}

/// The value of `NAME : VALUE` in the files of `/proc`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|found| found.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

impl Host {
    /// The machine that this runs on.
    pub fn here() -> Host {
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        Host {
            machine: std::env::consts::ARCH.into(),
            processors: u32::try_from(processors).unwrap_or(u32::MAX),
            ..Host::below(Path::new("/"))
        }
    }

    /// What the files of a machine say, whose root directory is `root`.
    pub fn below(root: &Path) -> Host {
        let mut read = Reader { root, unread: Vec::new() };
        let cpu = read.text("proc/cpuinfo");
        let memory = read.text("proc/meminfo");
        let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let model = ["model name", "Model", "CPU implementer"].into_iter().find_map(|name| field(&cpu, name));
        let flags = field(&cpu, "flags").or(field(&cpu, "Features")).unwrap_or_default();
        let huge = read.optional("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let load = read.text("proc/loadavg");
        let kernel = ["proc/sys/kernel/ostype", "proc/sys/kernel/osrelease"].map(|path| read.text(path));
        let available = read.text("proc/sys/net/ipv4/tcp_available_congestion_control");
        // Retransmissions are read of these before and after each run: where
        // they cannot be read, no run is known to have been free of losses.
        for counters in ["proc/net/snmp", "proc/net/netstat"] {
            read.text(counters);
        }
        Host {
            name: read.text("proc/sys/kernel/hostname"),
            kernel: kernel.join(" ").trim().to_owned(),
            machine: String::new(),
            processor: model.unwrap_or_default().to_owned(),
            processors: 0,
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            memory: kib.unwrap_or_default().saturating_mul(1024),
            governor: read.optional("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load_average: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default(),
            congestion: read.text("proc/sys/net/ipv4/tcp_congestion_control"),
            congestion_available: available.split_whitespace().map(str::to_owned).collect(),
            // Namespaces other than the first do not have the next three.
            qdisc: read.optional("proc/sys/net/core/default_qdisc").unwrap_or_default(),
            rmem_max: read
                .optional("proc/sys/net/core/rmem_max")
                .and_then(|t| t.parse().ok())
                .unwrap_or_default(),
            wmem_max: read
                .optional("proc/sys/net/core/wmem_max")
                .and_then(|t| t.parse().ok())
                .unwrap_or_default(),
            tcp_rmem: read.numbers("proc/sys/net/ipv4/tcp_rmem"),
            tcp_wmem: read.numbers("proc/sys/net/ipv4/tcp_wmem"),
            mtu_probing: read.number("proc/sys/net/ipv4/tcp_mtu_probing"),
            huge_pages: huge.split(['[', ']']).nth(1).unwrap_or_default().to_owned(),
            unread: read.unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        let host = Host::here();
        assert!(host.kernel.starts_with("Linux ") && host.processors > 0, "{host:?}");
        assert!(host.memory > 1 << 20 && host.tcp_rmem.len() == 3, "{host:?}");
    }

    #[test]
    fn what_may_not_be_read_is_told() {
        let dir = tempfile::tempdir().expect("directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Example 9\nflags\t\t: fpu hypervisor\n");
        write("proc/meminfo", "MemTotal:        1024 kB\n");
        write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        let host = Host::below(dir.path());
        assert_eq!((host.processor.as_str(), host.memory), ("Example 9", 1 << 20));
        assert_eq!(
            (host.tcp_rmem.as_slice(), host.huge_pages.as_str()),
            (&[4096, 131_072, 6_291_456][..], "madvise")
        );
        assert!(host.virtual_machine && host.governor.is_none());
        assert!(host.unread.iter().any(|line| line.starts_with("/proc/loadavg: ")), "{:?}", host.unread);
        assert!(host.unread.iter().all(|line| !line.contains("cpufreq")), "{:?}", host.unread);
        assert!(host.unread.iter().any(|line| line.starts_with("/proc/net/snmp: ")), "{:?}", host.unread);
    }
}
