//! Get Log Page, and the error log.

use super::action::Action;
use super::event::WARN_TEMPERATURE;
use super::feature::IO_FEATURES;
use super::subsystem::{Content, NvmContent};
use super::{Controller, Env, discovery};
use longhaul_wire::Ascii;
use longhaul_wire::command::{GetLogPage, NSID_ALL, Sqe, admin, io};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::Cc;
use longhaul_wire::feature::fid;
use longhaul_wire::identify::CSI_NVM;
use longhaul_wire::log::{
    AnaGroup, AnaLog, CommandEffects, ErrorEntry, FeatureEffects, FirmwareSlots, SmartHealth, SupportedPages,
    effect, encode_ana, lid, trtype,
};
use std::collections::{BTreeMap, VecDeque};

/// Entries of the error log; ELPE says one less.
pub const ERROR_ENTRIES: usize = 64;

/// Composite temperature in kelvin. There is no sensor to ask, and 0 would
/// make tools warn of a frozen drive: room temperature.
pub(super) const TEMPERATURE: u16 = 298;

/// WCTEMP in kelvin, the default threshold: 70 °C.
pub(super) const TEMPERATURE_WARNING: u16 = 343;

/// CCTEMP in kelvin: 80 °C.
pub(super) const TEMPERATURE_CRITICAL: u16 = 353;

/// Available spare below which tools warn, in percent.
const SPARE_THRESHOLD: u8 = 10;

/// ANA log, LSP: groups without their namespaces.
const LSP_GROUPS_ONLY: u8 = 1;

const ADMIN_COMMANDS: [u8; 8] = [
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    admin::CROSS_CONTROLLER_RESET,
];

const READING_COMMANDS: [u8; 8] = [
    io::FLUSH,
    io::READ,
    io::COMPARE,
    io::VERIFY,
    io::RESERVATION_REGISTER,
    io::RESERVATION_REPORT,
    io::RESERVATION_ACQUIRE,
    io::RESERVATION_RELEASE,
];
const CHANGING_COMMANDS: [u8; 3] = [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT];

/// Data for the host: exactly as long as the SGL says.
pub(super) fn data(sqe: &Sqe, data: Vec<u8>) -> Action {
    //= NVMe Base 2.1, Data SGL Length Invalid: the SGL is as long as the data (SGLS bit 18 is cleared)
    if u64::from(sqe.sgl.length()) != data.len() as u64 {
        return Status::DATA_SGL_LENGTH.dnr().into();
    }
    Action::Data(data)
}

/// A command that failed, for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord {
    /// Queue of the command.
    pub sqid: u16,
    /// Identifier of the failed command.
    pub cid: u16,
    /// Opcode of the command.
    pub opcode: u8,
    /// The status of its completion.
    pub status: Status,
    /// NSID of the command; 0 if it has none.
    pub nsid: u32,
    /// The first logical block in error.
    pub lba: u64,
}

#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    count: u64,
    /// Newest first; at most [`ERROR_ENTRIES`].
    entries: VecDeque<ErrorEntry>,
}

impl ErrorLog {
    fn add(&mut self, record: ErrorRecord) -> Status {
        let status = record.status.more();
        self.count += 1;
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(ErrorEntry {
            error_count: self.count,
            sqid: record.sqid,
            cid: record.cid,
            status: status.to_wire(),
            parameter: u16::MAX,
            lba: record.lba,
            nsid: record.nsid,
            trtype: trtype::TCP,
            csi: CSI_NVM,
            opcode: record.opcode,
            version: 1,
            ..Default::default()
        });
        status
    }

    fn page(&self) -> Vec<u8> {
        let mut page = vec![0; ERROR_ENTRIES * ErrorEntry::LEN];
        for (entry, slot) in self.entries.iter().zip(page.chunks_exact_mut(ErrorEntry::LEN)) {
            entry.encode_into(slot);
        }
        page
    }
}

impl Controller {
    /// Puts a failed I/O command into the error log. Complete the command with the status returned,
    /// whose More bit refers the host to the log.
    pub fn record_error(&mut self, record: ErrorRecord) -> Status {
        self.errors.add(record)
    }

    /// The same for commands that the controller itself refused.
    pub(super) fn log_failure(&mut self, sqid: u16, sqe: &Sqe, action: Action) -> Action {
        let Action::Complete(mut reply) = action else { return action };
        if !reply.status.is_success() {
            let (cid, opcode) = (sqe.cid(), sqe.opcode);
            let nsid = if opcode == admin::FABRICS { 0 } else { sqe.nsid() };
            //= NVMe Base 2.1, Error Information log page: failed commands are listed, and their status has the M bit
            reply.status =
                self.errors.add(ErrorRecord { sqid, cid, opcode, status: reply.status, nsid, lba: 0 });
        }
        Action::Complete(reply)
    }

    pub(super) fn get_log_page(&mut self, sqe: &Sqe, env: Env<'_>) -> Action {
        let request = GetLogPage::of(sqe);
        match self.read_log(&request, sqe, env) {
            Ok(bytes) => {
                if !request.rae {
                    self.events.log_read(request.lid);
                }
                Action::Data(bytes)
            }
            Err(status) => status.dnr().into(),
        }
    }

    fn read_log(&self, request: &GetLogPage, sqe: &Sqe, env: Env<'_>) -> Result<Vec<u8>, Status> {
        //= NVMe Base 2.1, MDTS: a transfer beyond it is an invalid field
        if request.len > env.subsystem.mdts_bytes().into() {
            return Err(Status::INVALID_FIELD);
        }
        //= NVMe Base 2.1, Get Log Page command: the SGL is as long as NUMD says
        if request.len != u64::from(sqe.sgl.length()) {
            return Err(Status::DATA_SGL_LENGTH);
        }
        //= NVMe Base 2.1, Get Log Page command: the offset is in units of 4 bytes, and no index
        if request.index_offset || !request.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let page = self.log_page(request, sqe, env)?;
        //= NVMe Base 2.1, Get Log Page command: an offset past the end of the page is an invalid field
        let from = usize::try_from(request.offset).ok().filter(|&at| at <= page.len());
        let from = from.ok_or(Status::INVALID_FIELD)?;
        // `len` is bounded by MDTS. What lies past the end reads as zeroes.
        let mut out = vec![0; request.len as usize];
        let count = out.len().min(page.len() - from);
        out[..count].copy_from_slice(&page[from..from + count]);
        Ok(out)
    }

    fn log_page(&self, request: &GetLogPage, sqe: &Sqe, env: Env<'_>) -> Result<Vec<u8>, Status> {
        let nvm = match &env.subsystem.content {
            Content::Discovery(content) => {
                return match request.lid {
                    lid::DISCOVERY => Ok(discovery::log(content, &self.host.hostnqn)),
                    lid::ERROR => Ok(self.errors.page()),
                    //= NVMe Base 2.1, Discovery controllers: other log pages are refused
                    _ => Err(Status::INVALID_LOG_PAGE),
                };
            }
            Content::Nvm(nvm) => nvm,
        };
        match request.lid {
            lid::SUPPORTED_PAGES => Ok(supported_pages(nvm)),
            lid::ERROR => Ok(self.errors.page()),
            //= NVMe Base 2.1, SMART / Health Information log page: LPA bit 0 is cleared, so it is for the controller only
            lid::HEALTH if sqe.nsid() != 0 && sqe.nsid() != NSID_ALL => Err(Status::INVALID_FIELD),
            lid::HEALTH => Ok(self.health(env)),
            lid::FIRMWARE_SLOT => {
                Ok(FirmwareSlots { active: 1, slot1: Ascii::new(&env.subsystem.firmware) }.encode())
            }
            lid::CHANGED_NAMESPACES => Ok(self.events.changed_log()),
            lid::RESERVATION_NOTICE => Ok(self.events.reservation_log()),
            //= NVMe Base 2.1, Commands Supported and Effects log page: CSI selects the I/O command set where CC.CSS is 110b
            lid::COMMAND_EFFECTS if self.cc.css() == Cc::CSS_ALL => {
                Ok(command_effects(request.csi == CSI_NVM, nvm.space.is_some()))
            }
            lid::COMMAND_EFFECTS => Ok(command_effects(self.cc.css() == Cc::CSS_NVM, nvm.space.is_some())),
            lid::FEATURE_EFFECTS => Ok(feature_effects()),
            // No command of the management interface is supported.
            lid::MI_COMMAND_EFFECTS => Ok(vec![0; CommandEffects::LEN]),
            lid::ANA => ana(nvm, request.lsp & LSP_GROUPS_ONLY != 0).ok_or(Status::INVALID_LOG_PAGE),
            //= NVMe Base 2.1, Get Log Page command: an unknown log page gets Invalid Log Page
            _ => Err(Status::INVALID_LOG_PAGE),
        }
    }

    fn health(&self, env: Env<'_>) -> Vec<u8> {
        let health = env.health;
        let warning = if self.features.temperature_warning() { WARN_TEMPERATURE } else { 0 };
        SmartHealth {
            critical_warning: warning,
            temperature: TEMPERATURE,
            available_spare: 100,
            spare_threshold: SPARE_THRESHOLD,
            data_units_read: SmartHealth::data_units(health.bytes_read.into()),
            data_units_written: SmartHealth::data_units(health.bytes_written.into()),
            host_reads: health.reads.into(),
            host_writes: health.writes.into(),
            busy_minutes: (health.busy_ms / 60_000).into(),
            power_cycles: 1,
            power_on_hours: (health.uptime_s / 3600).into(),
            unsafe_shutdowns: health.unsafe_shutdowns.into(),
            media_errors: health.media_errors.into(),
            error_entries: self.errors.count.into(),
            ..Default::default()
        }
        .encode()
    }
}

fn supported_pages(nvm: &NvmContent) -> Vec<u8> {
    let mut pages = SupportedPages::new();
    let always = [
        lid::SUPPORTED_PAGES,
        lid::ERROR,
        lid::HEALTH,
        lid::FIRMWARE_SLOT,
        lid::CHANGED_NAMESPACES,
        lid::COMMAND_EFFECTS,
        lid::FEATURE_EFFECTS,
        lid::MI_COMMAND_EFFECTS,
        lid::RESERVATION_NOTICE,
    ];
    always.into_iter().for_each(|lid| pages.add(lid, 0));
    if nvm.ana.is_some() {
        pages.add(lid::ANA, 0);
    }
    pages.into_bytes()
}

/// The admin commands, and the I/O commands of the NVM command set or of
/// another one: of such a one none is supported, and the log says so. It is not
/// refused, since hosts ask for it as soon as CAP.CSS has bit 6 (nvme-cli for
/// the Zoned Namespace command set).
fn command_effects(nvm: bool, space: bool) -> Vec<u8> {
    let mut log = CommandEffects::new();
    ADMIN_COMMANDS.into_iter().for_each(|opcode| log.set_admin(opcode, effect::SUPPORTED));
    if space {
        // Hosts look at their namespaces again after a command of such an effect.
        let effects = effect::SUPPORTED | effect::CONTENT | effect::NAMESPACE_INVENTORY;
        let commands = [admin::NAMESPACE_MANAGEMENT, admin::NAMESPACE_ATTACHMENT];
        commands.into_iter().for_each(|opcode| log.set_admin(opcode, effects));
        log.set_admin(admin::NAMESPACE_CHANGE, effects | effect::NAMESPACE_CAPABILITY);
    }
    if !nvm {
        return log.into_bytes();
    }
    READING_COMMANDS.into_iter().for_each(|opcode| log.set_io(opcode, effect::SUPPORTED));
    CHANGING_COMMANDS.into_iter().for_each(|opcode| log.set_io(opcode, effect::SUPPORTED | effect::CONTENT));
    log.into_bytes()
}

fn feature_effects() -> Vec<u8> {
    let mut log = FeatureEffects::new();
    for id in IO_FEATURES {
        let of_namespace = [fid::ERROR_RECOVERY, fid::RESERVATION_NOTICE_MASK].contains(&id);
        let scope = if of_namespace { effect::SCOPE_NAMESPACE } else { effect::SCOPE_CONTROLLER };
        log.set(id, effect::SUPPORTED | scope);
    }
    log.into_bytes()
}

/// The ANA log: each group that has namespaces, with the state of its first.
fn ana(nvm: &NvmContent, groups_only: bool) -> Option<Vec<u8>> {
    let change_count = nvm.ana?;
    let mut groups = BTreeMap::new();
    for ns in &nvm.namespaces {
        let new = || AnaGroup { id: ns.ana_group, change_count, state: ns.ana_state, nsids: Vec::new() };
        let group = groups.entry(ns.ana_group).or_insert_with(new);
        if !groups_only {
            group.nsids.push(ns.nsid);
        }
    }
    let mut page = encode_ana(&AnaLog { change_count, groups: groups.into_values().collect() });
    // Hosts size the page by Identify (NANAGRPID groups, MNAN namespaces) and
    // read all of that in pieces: it must not end before.
    page.resize(page.len().max(ana_len(nvm)), 0);
    Some(page)
}

/// The longest that the ANA log can get, in bytes: a header, and for each
/// namespace at most a group descriptor and an NSID.
fn ana_len(nvm: &NvmContent) -> usize {
    16 + nvm.max_nsid as usize * (32 + 4)
}
