//! Advised values of settings on a host at the end of a long path, with reasons.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Upper bound of a socket buffer in bytes: slightly less than 2 GiB, which the kernel's counters
/// can hold.
const BUFFER_MAX: u64 = (2 << 30) - 4096;
/// Lower bound of advised buffers in bytes: the default limit of Linux.
const BUFFER_MIN: u64 = 6 << 20;

/// The path that the advice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunedPath {
    /// Bits per second.
    pub rate: u64,
    /// Round trip of the path to tune for.
    pub rtt: Duration,
}

impl TunedPath {
    /// Advised limit of a socket buffer in bytes: twice the bandwidth-delay product, since the
    /// kernel counts its overhead, and since data behind a lost segment waits for the
    /// retransmission.
    fn buffer(&self) -> u64 {
        let product = (u128::from(self.rate) / 8).saturating_mul(self.rtt.as_nanos()) / 1_000_000_000;
        let twice = u64::try_from(product.saturating_mul(2)).unwrap_or(u64::MAX);
        let whole = twice.div_ceil(1 << 20).saturating_mul(1 << 20);
        whole.clamp(BUFFER_MIN, BUFFER_MAX)
    }
}

/// A setting: its current and its advised value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSetting {
    /// Its name as in sysctl(8), or that of the processors' governor.
    pub name: String,
    /// Path of its file, relative to the root directory.
    pub file: String,
    /// Current value, with one space between parts.
    pub is: String,
    /// Advised value, in the same form.
    pub advised: String,
    /// Reason for the advised value.
    pub why: String,
}

impl HostSetting {
    /// Whether the current value is not the advised one.
    pub fn differs(&self) -> bool {
        self.is != self.advised
    }
}

/// The files of a machine below its root directory.
#[derive(Clone, Debug)]
pub struct HostSettings {
    root: PathBuf,
}

impl HostSettings {
    /// Those of the machine whose root directory is `root`.
    pub fn at(root: &std::path::Path) -> HostSettings {
        HostSettings { root: root.to_owned() }
    }

    /// Reads the value of a setting, with one space between parts; `None` if it cannot be read.
    pub fn read(&self, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(file)).ok()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Sets a setting to `value`.
    ///
    /// # Errors
    /// Of the system, or the kernel made another value of it, such as a rounded one.
    pub fn write(&self, setting: &HostSetting, value: &str) -> io::Result<()> {
        let path = self.root.join(&setting.file);
        // The kernel takes a value in a single write, and the file has to exist.
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        io::Write::write_all(&mut file, format!("{value}\n").as_bytes())?;
        drop(file);
        // The kernel may round a value.
        match self.read(&setting.file) {
            Some(found) if found == value => Ok(()),
            found => Err(io::Error::other(format!("the kernel made '{}' of it", found.unwrap_or_default()))),
        }
    }

    /// A saved setting, with its old value as the advised one.
    pub fn named(&self, name: &str, file: &str, value: &str) -> HostSetting {
        HostSetting {
            name: name.into(),
            file: file.into(),
            is: self.read(file).unwrap_or_default(),
            advised: value.into(),
            why: "as it was".into(),
        }
    }

    /// The governors of the processors.
    fn governors(&self) -> Vec<(String, String)> {
        let cpus = std::fs::read_dir(self.root.join("sys/devices/system/cpu"));
        let names = cpus.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut numbers: Vec<u32> = names.filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
        numbers.sort_unstable();
        let file = |n| format!("sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor");
        numbers.into_iter().map(file).filter_map(|file| Some((self.read(&file)?, file))).collect()
    }
}

/// The settings that exist on this machine.
pub fn advise(machine: &HostSettings, path: TunedPath) -> Vec<HostSetting> {
    let mut all = Vec::new();
    let mut add = |name: &str, advised: &dyn Fn(&str) -> Option<String>, why: &str| {
        let file = format!("proc/sys/{}", name.replace('.', "/"));
        // Network namespaces lack some settings.
        let Some(is) = machine.read(&file) else { return };
        let Some(advised) = advised(&is) else { return };
        all.push(HostSetting { name: name.into(), file, is, advised, why: why.into() });
    };
    let buffer = path.buffer();
    for (name, what) in [("net.ipv4.tcp_rmem", "receive"), ("net.ipv4.tcp_wmem", "send")] {
        let why = format!("a {what} buffer may grow to twice what is under way on the path");
        add(name, &|is| grown(is, buffer), &why);
    }
    let available = machine.read("proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let bbr = available.split(' ').any(|name| name == "bbr");
    let why = if bbr {
        "BBR keeps its rate where packets are lost"
    } else {
        "BBR is not loaded here (modprobe tcp_bbr)"
    };
    add("net.ipv4.tcp_congestion_control", &|is| Some(if bbr { "bbr".into() } else { is.into() }), why);
    add(
        "net.core.default_qdisc",
        &|_| Some("fq".into()),
        "packets are spread over the round trip, of interfaces made from now on",
    );
    add(
        "net.ipv4.tcp_mtu_probing",
        &|is| Some(if is == "0" { "1".into() } else { is.into() }),
        "connections get through where large packets vanish",
    );
    add(
        "net.ipv4.tcp_slow_start_after_idle",
        &|_| Some("0".into()),
        "a connection that was idle continues at its rate",
    );
    add(
        "net.ipv4.tcp_no_metrics_save",
        &|_| Some("1".into()),
        "a bad moment is not remembered for the next connection",
    );
    add("net.ipv4.tcp_window_scaling", &|_| Some("1".into()), "without it a window ends at 64 KiB");
    add("net.ipv4.tcp_sack", &|_| Some("1".into()), "without it a loss costs a round trip for each segment");
    for (is, file) in machine.governors() {
        let name = file.trim_start_matches("sys/devices/system/").replace('/', ".");
        let why = "a processor that saves power is slow when data comes".to_owned();
        all.push(HostSetting { name, file, is, advised: "performance".into(), why });
    }
    all
}

/// Raises the last of three sizes (minimum, default, maximum) to at least `most`.
fn grown(is: &str, most: u64) -> Option<String> {
    let sizes: Vec<u64> = is.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [least, first, now] = sizes[..] else { return None };
    Some(format!("{least} {first} {}", now.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(gbit: u64, ms: u64) -> TunedPath {
        TunedPath { rate: gbit * 1_000_000_000, rtt: Duration::from_millis(ms) }
    }

    #[test]
    fn buffers_hold_twice_the_product() {
        assert_eq!(path(10, 100).buffer(), 239 << 20, "250 MB in whole MiB");
        assert_eq!(path(1, 1).buffer(), BUFFER_MIN);
        assert_eq!(path(400, 300).buffer(), BUFFER_MAX);
        assert_eq!(TunedPath { rate: u64::MAX, rtt: Duration::MAX }.buffer(), BUFFER_MAX);
    }

    #[test]
    fn limits_are_raised_and_never_lowered() {
        assert_eq!(grown("4096 131072 6291456", 100).as_deref(), Some("4096 131072 6291456"));
        assert_eq!(grown("4096 131072 6291456", 1 << 30).as_deref(), Some("4096 131072 1073741824"));
        assert_eq!(grown("4096 131072", 1), None);
        assert_eq!(grown("a b c", 1), None);
    }
}
