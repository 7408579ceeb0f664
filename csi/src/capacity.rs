//! How much room pools have.

use crate::controller::bytes;
use crate::driver::Driver;
use crate::names::Kind;
use crate::program::PoolStatus;
use crate::request::{Capability, Parameters};
use crate::v1::{GetCapacityRequest, GetCapacityResponse};
use tonic::Status;

impl Driver {
    pub(crate) fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let parameters = Parameters::new(&request.parameters)?;
        let wanted: Vec<Capability> = request
            .volume_capabilities
            .iter()
            .map(|given| Capability::new(Some(given)))
            .collect::<Result<_, _>>()?;
        if wanted.iter().any(|wanted| wanted.refusal(parameters.kind).is_some()) {
            return Ok(GetCapacityResponse::default());
        }
        let pools = match &parameters.pool {
            Some(_) => vec![self.pool_of(&parameters)?],
            None => self.pools.clone(),
        };
        let (mut available, mut largest) = (0u64, 0);
        for pool in &pools {
            let room = room_of(&self.program.status(self.manager(), pool)?, &parameters);
            available = available.saturating_add(room.available);
            largest = largest.max(room.largest);
        }
        let maximum_volume_size = Some(bytes(largest));
        Ok(GetCapacityResponse {
            available_capacity: bytes(available),
            maximum_volume_size,
            minimum_volume_size: None,
        })
    }
}

/// Room for volumes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    available: u64,
    largest: u64,
}

/// The room for volumes with these parameters in a pool: an estimate, without what superblocks, journals and
/// checksums take.
fn room_of(status: &PoolStatus, parameters: &Parameters) -> Room {
    /// Members of a volume whose width is not said, as of `volume create`.
    const SUITED: usize = 8;
    // As the pool places members: what is free, less what is promised and not taken yet.
    let mut free: Vec<(u64, &str)> = status
        .targets
        .iter()
        .filter_map(|target| {
            Some((target.free?.min(target.capacity.saturating_sub(target.used)), target.domain.as_str()))
        })
        .collect();
    free.sort_unstable_by_key(|(free, _)| std::cmp::Reverse(*free));
    let all: u64 = free.iter().fold(0, |all, (free, _)| all.saturating_add(*free));
    // One member in a failure domain, on the target there that has most.
    let mut domains = std::collections::BTreeSet::new();
    free.retain(|(_, domain)| domains.insert(*domain));
    let most = free.len().min(SUITED);
    let width = parameters.width.unwrap_or(match parameters.layout.as_str() {
        "single" => 1,
        "mirror" if parameters.kind == Kind::Volume => 2,
        "stripe+mirror" => most / 2 * 2,
        _ => most,
    });
    // The share of the members' bytes that is data.
    let (data, of) = match parameters.layout.as_str() {
        "mirror" if parameters.kind == Kind::Volume => (1, width),
        "mirror" | "stripe+mirror" => (1, 2),
        "parity" => (width.saturating_sub(1), width),
        "double-parity" => (width.saturating_sub(2), width),
        _ => (width, width),
    };
    let share = |bytes: u64| {
        let (data, of) = (data as u128, of.max(1) as u128);
        u64::try_from(u128::from(bytes) * data / of).unwrap_or(u64::MAX)
    };
    let Some((least, _)) = width.checked_sub(1).and_then(|last| free.get(last)) else {
        return Room { available: 0, largest: 0 };
    };
    let quota = status.quota.map_or(u64::MAX, |quota| quota.saturating_sub(status.used));
    let members = least.saturating_mul(width as u64);
    Room { available: share(all.min(quota)), largest: share(members.min(quota)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::PoolTarget;
    use std::collections::HashMap;

    fn pool(free: &[u64], quota: Option<u64>) -> PoolStatus {
        let target = |(number, free): (usize, &u64)| PoolTarget {
            domain: format!("rack{number}"),
            capacity: 1000,
            used: 0,
            free: Some(*free),
        };
        PoolStatus { used: 0, quota, targets: free.iter().enumerate().map(target).collect() }
    }

    fn room(status: &PoolStatus, given: &[(&str, &str)]) -> (u64, u64) {
        let given: HashMap<String, String> =
            given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let room = room_of(status, &Parameters::new(&given).expect("parameters"));
        (room.available, room.largest)
    }

    #[test]
    fn capacity_is_that_of_the_layout() {
        let even = pool(&[90, 90, 90], None);
        assert_eq!(room(&even, &[("layout", "parity")]), (180, 180));
        assert_eq!(room(&even, &[("layout", "stripe")]), (270, 270));
        assert_eq!(room(&even, &[("layout", "mirror")]), (135, 90));
        assert_eq!(room(&even, &[("layout", "single")]), (270, 90));
        assert_eq!(room(&even, &[("layout", "double-parity")]), (90, 90));
        // The smallest of the targets limits a volume, and a quota all of them.
        assert_eq!(room(&pool(&[90, 90, 30], None), &[("layout", "parity")]), (140, 60));
        assert_eq!(room(&pool(&[90, 90, 90], Some(30)), &[("layout", "parity")]), (20, 20));
        // Too few targets.
        assert_eq!(room(&even, &[("layout", "parity"), ("width", "4")]), (0, 0));
        assert_eq!(room(&pool(&[], None), &[]), (0, 0));
    }

    #[test]
    fn what_is_promised_or_cannot_be_asked_is_not_free() {
        let mut status = pool(&[90, 90, 90], None);
        status.targets[0].used = 990;
        status.targets[1].free = None;
        assert_eq!(room(&status, &[("layout", "single")]), (100, 90));
    }
}
