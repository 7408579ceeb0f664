//! What a target offers.

use crate::controller::service;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::queue::Signs;
use crate::setup::{Admin, Endpoint};
use crate::uri::{UNIX, unix_uri};
use longhaul_engine::spawn;
use longhaul_wire::log::{
    DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryEntry, DiscoveryHeader, SubsystemType, adrfam, lid,
    trtype,
};
use longhaul_wire::nqn::{self, DISCOVERY_NQN};
use std::time::Duration;

/// Records read with one command.
const RECORDS_PER_READ: usize = 63;
/// Records of a log at most: what a target says is not believed without end.
const RECORDS_MAX: u64 = 65_536;
/// Tries until the log stays the same while it is read.
const TRIES: usize = 8;

/// One way to reach a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryRecord {
    /// The kind of subsystem at that address.
    pub kind: SubsystemType,
    /// NQN of the subsystem.
    pub subnqn: String,
    /// Transport type ([`longhaul_wire::log::trtype`]).
    pub trtype: u8,
    /// Address family ([`longhaul_wire::log::adrfam`]).
    pub adrfam: u8,
    /// Transport address: an IP address, a host name, or what another transport calls it.
    pub traddr: String,
    /// That is the path of a Unix socket of this machine: the log was read over one.
    pub is_unix: bool,
    /// Service: the TCP port.
    pub trsvcid: String,
    /// Port of the subsystem.
    pub portid: u16,
    /// Controller to connect to, FFFFh for any.
    pub cntlid: u16,
    /// Largest admin queue.
    pub asqsz: u16,
    /// Transport requirements ([`longhaul_wire::log::treq`] bits).
    pub treq: u8,
    /// Security type ([`longhaul_wire::log::tsas`]).
    pub sectype: u8,
}

impl DiscoveryRecord {
    /// Name of its type, as `nvme discover` prints it.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            SubsystemType::Referral => "referral",
            SubsystemType::Nvm => "nvme subsystem",
            SubsystemType::CurrentDiscovery => "current discovery subsystem",
            SubsystemType::Reserved(_) => "reserved",
        }
    }

    /// Name of the transport, as `nvme discover` prints it.
    pub fn transport_name(&self) -> &'static str {
        match self.trtype {
            trtype::RDMA => "rdma",
            trtype::FIBRE_CHANNEL => "fc",
            trtype::TCP => "tcp",
            trtype::LOOP => "loop",
            _ => "unknown",
        }
    }

    /// Its address family.
    pub fn family_name(&self) -> &'static str {
        match self.adrfam {
            adrfam::IPV4 => "ipv4",
            adrfam::IPV6 => "ipv6",
            adrfam::INTRA_HOST => "loop",
            _ => "unknown",
        }
    }

    /// How this initiator names the subsystem, if it can reach it.
    pub fn uri(&self) -> Option<String> {
        let DiscoveryRecord { traddr, trsvcid, subnqn, .. } = self;
        if self.kind != SubsystemType::Nvm {
            return None;
        }
        if self.trtype == trtype::LOOP && self.is_unix {
            return Some(unix_uri(traddr, subnqn, None));
        }
        if self.trtype != trtype::TCP {
            return None;
        }
        let host = if self.adrfam == adrfam::IPV6 { format!("[{traddr}]") } else { traddr.clone() };
        Some(format!("{}://{host}:{trsvcid}/{subnqn}", crate::SCHEME))
    }
}

/// The discovery log of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Changes with the content.
    pub generation: u64,
    /// The records, in the order of the log.
    pub records: Vec<DiscoveryRecord>,
}

/// Asks the discovery controller at `host` and `port`, or for `unix:PATH` at that socket; for code that runs on
/// no engine.
///
/// # Errors
/// Each way in which it can fail is an [`Error`] of its own.
pub fn discover(host: &str, port: u16, options: Options) -> Result<Discovery> {
    let host = host.to_owned();
    service(&options)?
        .spawn(move || async move {
            let endpoint = match host.strip_prefix(UNIX).and_then(|rest| rest.strip_prefix(':')) {
                Some(path) if !path.is_empty() => Endpoint::find(UNIX, path, 0, &options).await?,
                _ => Endpoint::resolve(&host, port).await?,
            };
            read_log(&endpoint, &options).await.map(|(log, _)| log)
        })
        .wait()
        .map_err(|_| Error::Local("the thread that serves admin queues has ended".into()))?
}

/// The subsystem at `endpoint` whose NQN ends with `:name`, and the round trips
/// that it took to find it.
pub(crate) async fn find_subsystem(
    endpoint: &Endpoint,
    name: &str,
    options: &Options,
) -> Result<(String, u32)> {
    let (log, round_trips) = read_log(endpoint, options).await?;
    let mut found: Vec<_> = log
        .records
        .into_iter()
        .filter(|r| r.kind == SubsystemType::Nvm)
        .filter(|r| r.subnqn == name || r.subnqn.strip_suffix(name).is_some_and(|rest| rest.ends_with(':')))
        .map(|r| r.subnqn)
        .collect();
    found.sort();
    found.dedup();
    let at = &endpoint.name;
    match &found[..] {
        [nqn] => Ok((nqn.clone(), round_trips)),
        [] => Err(Error::NotFound(format!("{at} has no subsystem '{name}': see 'longhaul discover {at}'"))),
        many => {
            Err(Error::NotFound(format!("'{name}' at {at} is any of {}: name one in full", many.join(", "))))
        }
    }
}

/// The addresses in the discovery log of `endpoint` at which the subsystem can be reached.
pub(crate) async fn addresses_of(
    endpoint: &Endpoint,
    subnqn: &str,
    options: &Options,
) -> Result<Vec<(String, u16)>> {
    let (log, _) = read_log(endpoint, options).await?;
    let here =
        |r: &DiscoveryRecord| r.kind == SubsystemType::Nvm && r.trtype == trtype::TCP && r.subnqn == subnqn;
    let address = |r: DiscoveryRecord| Some((r.traddr, r.trsvcid.parse().ok()?));
    Ok(log.records.into_iter().filter(here).filter_map(address).collect())
}

/// The log, and the round trips that it took.
async fn read_log(endpoint: &Endpoint, options: &Options) -> Result<(Discovery, u32)> {
    let options = Options { kato: Duration::ZERO, ..options.clone() };
    let (admin, _) = Admin::open(endpoint.clone(), &options, DISCOVERY_NQN, &Signs::default()).await?;
    let (_, header) = admin.enable_and(async || read_header(&admin).await).await?;
    let result = read_stable(&admin, header).await;
    let round_trips = admin.round_trips.get();
    // The caller has its log: the shutdown runs in the background.
    spawn(async move { admin.shut_down().await }).detach();
    result.map(|log| (log, round_trips))
}

/// Reads the log until its generation is the same before and after.
async fn read_stable(admin: &Admin, mut header: DiscoveryHeader) -> Result<Discovery> {
    for _ in 0..TRIES {
        if header.numrec > RECORDS_MAX {
            return Err(admin.endpoint.incompatible(format!("a discovery log of {} records", header.numrec)));
        }
        let records = read_records(admin, header.numrec as usize).await?;
        admin.round_trip();
        let after = read_header(admin).await?;
        if after.genctr == header.genctr {
            return Ok(Discovery { generation: header.genctr, records });
        }
        header = after;
    }
    Err(admin.endpoint.incompatible("its discovery log does not stop changing"))
}

async fn read_header(admin: &Admin) -> Result<DiscoveryHeader> {
    let bytes = admin.log_page("the discovery log", lid::DISCOVERY, 0, 0, DISCOVERY_HEADER_LEN).await?;
    DiscoveryHeader::decode(&bytes).ok_or_else(|| admin.endpoint.incompatible("its discovery log is cut"))
}

async fn read_records(admin: &Admin, n: usize) -> Result<Vec<DiscoveryRecord>> {
    let mut records = Vec::new();
    while records.len() < n {
        let some = (n - records.len()).min(RECORDS_PER_READ);
        let at = DISCOVERY_HEADER_LEN + records.len() * DISCOVERY_ENTRY_LEN;
        admin.round_trip();
        let page = admin
            .log_page("the discovery log", lid::DISCOVERY, 0, at as u64, some * DISCOVERY_ENTRY_LEN)
            .await?;
        for bytes in page.chunks_exact(DISCOVERY_ENTRY_LEN) {
            let entry = DiscoveryEntry::decode(bytes)
                .ok_or_else(|| admin.endpoint.incompatible("a record of its discovery log is cut"))?;
            records.push(record(admin, &entry)?);
        }
    }
    Ok(records)
}

fn record(admin: &Admin, entry: &DiscoveryEntry) -> Result<DiscoveryRecord> {
    let subnqn = nqn::from_field(&entry.subnqn)
        .map_err(|e| admin.endpoint.incompatible(format!("an NQN of its discovery log: {e}")))?;
    Ok(DiscoveryRecord {
        kind: entry.subtype,
        subnqn: subnqn.to_owned(),
        trtype: entry.trtype,
        adrfam: entry.adrfam,
        traddr: entry.traddr.text().into_owned(),
        is_unix: admin.endpoint.name.starts_with("unix:"),
        trsvcid: entry.trsvcid.text().into_owned(),
        portid: entry.portid,
        cntlid: entry.cntlid,
        asqsz: entry.asqsz,
        treq: entry.treq,
        sectype: entry.tsas,
    })
}
