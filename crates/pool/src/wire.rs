//! Labels, addresses and errors, as the initiator has them.

use crate::label::Label;
use crate::shape::VolumeLayout;
use crate::spaces::SpaceError;
use longhaul_array::ArrayError;
use longhaul_block::IoError;
use longhaul_device::ErrorKind;
use longhaul_initiator::namespaces::{AllocatedNamespace, LabelError, ManagementError, NamespaceLabel};
use longhaul_initiator::{SCHEME, Uri, UriOptions};

impl From<ManagementError> for SpaceError {
    fn from(e: ManagementError) -> SpaceError {
        match e {
            ManagementError::Full { .. } | ManagementError::TooMany { .. } => SpaceError::Full(e.to_string()),
            ManagementError::NotPermitted { .. } | ManagementError::NoClones { .. } => {
                SpaceError::Refused(e.to_string())
            }
            ManagementError::Connection(e) => e.into(),
            e => SpaceError::Failed(e.to_string()),
        }
    }
}

impl From<longhaul_initiator::Error> for SpaceError {
    fn from(e: longhaul_initiator::Error) -> SpaceError {
        longhaul_device::Error::from(e).into()
    }
}

impl From<IoError> for SpaceError {
    fn from(e: IoError) -> SpaceError {
        longhaul_device::Error::from(e).into()
    }
}

impl From<ArrayError> for SpaceError {
    fn from(e: ArrayError) -> SpaceError {
        longhaul_device::Error::from(e).into()
    }
}

impl From<longhaul_device::Error> for SpaceError {
    fn from(e: longhaul_device::Error) -> SpaceError {
        match e.kind() {
            ErrorKind::Unreachable | ErrorKind::TimedOut => SpaceError::Unreachable(e.to_string()),
            _ => SpaceError::Failed(e.to_string()),
        }
    }
}

/// `HOST:PORT`, with an IPv6 address in brackets.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The URI of a space, or of one of its namespaces.
pub(crate) fn uri_of(address: &str, nsid: Option<u32>) -> std::result::Result<Uri, SpaceError> {
    let uri = format!("{SCHEME}://{address}").parse::<Uri>();
    let uri = uri.map_err(|e| SpaceError::Failed(e.to_string()))?;
    Ok(Uri { nsid, options: UriOptions::default(), ..uri })
}

/// The label as a target keeps it.
pub(crate) fn to_wire(label: &Label, volume_hosts: &[String]) -> NamespaceLabel {
    let shape = &label.shape;
    let place = match shape.layout {
        VolumeLayout::Single => shape.layout.to_string(),
        // Counted from one, as people do.
        layout => format!("{layout} {}/{}", label.index + 1, shape.members()),
    };
    let wire = NamespaceLabel {
        hosts: volume_hosts.to_vec(),
        pool: label.pool_name.clone(),
        volume: label.name.clone(),
        layout: place,
        job: label.job.clone().unwrap_or_default(),
        expiry: label.expires,
        thin: label.thin,
        detail: Label { hosts: Vec::new(), ..label.clone() }.to_text(),
    };
    match wire.encode() {
        // A volume of so many hosts goes without.
        Err(LabelError::TooLong(_)) if label.manager.is_some() => {
            to_wire(&Label { manager: None, ..label.clone() }, volume_hosts)
        }
        _ => wire,
    }
}

/// The label that a pool wrote; none on a namespace that no pool made.
pub(crate) fn from_wire(namespace: &AllocatedNamespace) -> Option<std::result::Result<Label, String>> {
    let label = &namespace.label;
    match &namespace.unreadable {
        Some(why) => Some(Err(why.to_string())),
        None if label.pool.is_empty() || label.detail.is_empty() => None,
        None => {
            let found = Label::parse(&label.detail).map_err(|e| e.to_string());
            Some(found.map(|found| Label { hosts: label.hosts.clone(), ..found }))
        }
    }
}
