//! Keys of the catalog.
//!
//! | key | value |
//! |---|---|
//! | `pools/NAME` | the pool |
//! | `pool/UUID/usage` | bytes taken, by target and by job: each allocation changes it, so that two cannot take the same |
//! | `pool/UUID/target/ID` | a target |
//! | `pool/UUID/volume/NAME` | a volume |
//! | `pool/UUID/user/UUID` | the host that opened a volume last |
//! | `pool/UUID/intent/UUID` | a volume that is being made or removed |
//! | `pool/UUID/owner/UUID` | the host that does it, under its lease |

use uuid::Uuid;

pub(crate) const POOLS: &[u8] = b"pools/";

pub(crate) fn pool(name: &str) -> Vec<u8> {
    format!("pools/{name}").into_bytes()
}

pub(crate) fn all(pool: Uuid) -> Vec<u8> {
    format!("pool/{pool}/").into_bytes()
}

pub(crate) fn usage(pool: Uuid) -> Vec<u8> {
    format!("pool/{pool}/usage").into_bytes()
}

pub(crate) fn target(pool: Uuid, id: &str) -> Vec<u8> {
    format!("pool/{pool}/target/{id}").into_bytes()
}

pub(crate) fn volume(pool: Uuid, name: &str) -> Vec<u8> {
    format!("pool/{pool}/volume/{name}").into_bytes()
}

pub(crate) fn user(pool: Uuid, volume: Uuid) -> Vec<u8> {
    format!("pool/{pool}/user/{volume}").into_bytes()
}

pub(crate) fn intent(pool: Uuid, intent: &str) -> Vec<u8> {
    format!("pool/{pool}/intent/{intent}").into_bytes()
}

pub(crate) fn owner(pool: Uuid, intent: Uuid) -> Vec<u8> {
    format!("pool/{pool}/owner/{intent}").into_bytes()
}
