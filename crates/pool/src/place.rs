//! Placement: which targets get the members of a volume.

use longhaul_block::units::format_size;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A target that may get members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Identifies it.
    pub id: String,
    /// What fails together with it: a host, a rack.
    pub domain: String,
    /// Free bytes.
    pub free: u64,
    /// Round trip of the path to it, if it was measured.
    pub round_trip: Option<Duration>,
    /// It takes one member as a whole, of a file system.
    pub is_whole: bool,
}

/// Round trips below this are alike, and so are those within a factor of two of each other: what a target
/// takes to answer varies by more than that.
const NEAR: Duration = Duration::from_millis(1);

impl Candidate {
    /// How far it is: the number of times that [`NEAR`] doubles to its round trip. One that was not measured
    /// counts as near.
    fn distance(&self) -> u32 {
        let times = self.round_trip.map_or(0, |time| time.as_nanos() / NEAR.as_nanos());
        u128::BITS - times.leading_zeros()
    }
}

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Members and spares.
    pub members: usize,
    /// Bytes of each.
    pub size: u64,
    /// Most members in one failure domain: one, unless the user allows more.
    pub per_domain: usize,
}

/// Why a volume cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What was to be placed.
    pub need: Need,
    /// How many of the members can be placed.
    pub possible: usize,
    /// The failure domains, and the most free bytes of a target in each.
    pub domains: BTreeMap<String, u64>,
    /// Targets that could not be asked, and why.
    pub unreachable: Vec<(String, String)>,
}

/// The targets for the members, in the order of the members. Members go to different failure domains
/// as far as there are any, then to different targets, then to the target with the most free bytes; of
/// equal ones to the nearest, and to the first by identifier. The result depends on the arguments only,
/// not on the order of the candidates.
///
/// # Errors
/// What is missing.
pub fn place(candidates: &[Candidate], need: Need) -> Result<Vec<String>, Shortage> {
    place_beside(candidates, need, &[])
}

/// As [`place`], beside members that are there already: the target of each, and its failure domain.
///
/// # Errors
/// What is missing.
pub(crate) fn place_beside(
    candidates: &[Candidate],
    need: Need,
    others: &[(String, String)],
) -> Result<Vec<String>, Shortage> {
    let mut free: Vec<u64> = candidates.iter().map(|candidate| candidate.free).collect();
    let mut on_target = vec![0; candidates.len()];
    let mut in_domain: BTreeMap<&str, usize> = BTreeMap::new();
    for (target, domain) in others {
        *in_domain.entry(domain).or_default() += 1;
        if let Some(at) = candidates.iter().position(|candidate| candidate.id == *target) {
            on_target[at] += 1;
        }
    }
    let mut placed = Vec::new();
    while placed.len() < need.members {
        let domain = |i: usize| in_domain.get(candidates[i].domain.as_str()).copied().unwrap_or(0);
        let fits = |i: &usize| free[*i] >= need.size && domain(*i) < need.per_domain;
        let order = |i: &usize| {
            (domain(*i), on_target[*i], Reverse(free[*i]), candidates[*i].distance(), &candidates[*i].id)
        };
        let Some(best) = (0..candidates.len()).filter(fits).min_by_key(order) else {
            return Err(shortage(candidates, need, placed.len()));
        };
        free[best] -= need.size;
        on_target[best] += 1;
        *in_domain.entry(&candidates[best].domain).or_default() += 1;
        placed.push(candidates[best].id.clone());
    }
    Ok(placed)
}

fn shortage(candidates: &[Candidate], need: Need, possible: usize) -> Shortage {
    let mut domains = BTreeMap::new();
    for candidate in candidates {
        let most: &mut u64 = domains.entry(candidate.domain.clone()).or_default();
        *most = candidate.free.max(*most);
    }
    Shortage { need, possible, domains, unreachable: Vec::new() }
}

/// How members are spread of which a failure domain has so many at most.
pub(crate) fn spread(per_domain: usize) -> String {
    match per_domain {
        1 => "in a failure domain each".to_owned(),
        usize::MAX => "in any failure domains".to_owned(),
        most => format!("{most} in a failure domain at most"),
    }
}

/// Domains, or targets, that a message names.
pub(crate) const NAMED: usize = 8;

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Need { members, size: bytes, per_domain } = self.need;
        write!(f, "{members} members of {} each are needed, ", format_size(bytes))?;
        write!(f, "{}, and {} can be placed: ", spread(per_domain), self.possible)?;
        if self.domains.is_empty() {
            f.write_str("the pool has no target that can be used")?;
        } else {
            let named = self.domains.iter().take(NAMED);
            let named: Vec<String> =
                named.map(|(name, free)| format!("{name} has {} on a target", format_size(*free))).collect();
            write!(f, "{}", named.join(", "))?;
            if self.domains.len() > NAMED {
                write!(f, " and {} more domains", self.domains.len() - NAMED)?;
            }
        }
        for (target, why) in self.unreachable.iter().take(NAMED) {
            write!(f, "; {target} is not used: {why}")?;
        }
        f.write_str(match per_domain {
            usize::MAX => "; add targets, or ask for fewer or smaller members",
            _ => {
                "; add targets in other failure domains, allow more members in one ('--per-domain'), or ask for fewer or \
                 smaller members"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn candidate(id: &str, domain: &str, free: u64) -> Candidate {
        Candidate { id: id.to_owned(), domain: domain.to_owned(), free, round_trip: None, is_whole: false }
    }

    fn need(members: usize, size: u64, per_domain: usize) -> Need {
        Need { members, size, per_domain }
    }

    #[test]
    fn the_most_free_come_first() {
        let all = [
            candidate("a", "r1", 10),
            candidate("b", "r1", 30),
            candidate("c", "r2", 20),
            candidate("d", "r3", 20),
            candidate("e", "r4", 5),
        ];
        assert_eq!(place(&all, need(3, 10, 1)).expect("placed"), ["b", "c", "d"]);
        assert_eq!(place(&all, need(4, 5, 1)).expect("placed"), ["b", "c", "d", "e"]);
        // Where more than one is allowed, the domains are filled evenly, and targets before doubles.
        let shared = place(&all, need(6, 10, usize::MAX)).expect("placed");
        assert_eq!(shared, ["b", "c", "d", "a", "c", "d"]);
    }

    #[test]
    fn of_equally_free_targets_the_nearest_comes_first() {
        let at = |id: &str, free, micros| Candidate {
            round_trip: Some(Duration::from_micros(micros)),
            ..candidate(id, &format!("r{id}"), free)
        };
        let all =
            [at("a", 20, 30_000), at("b", 20, 700), at("c", 20, 90), at("d", 30, 60_000), at("e", 20, 5_000)];
        // Free bytes come before the path, and what is near is alike.
        assert_eq!(place(&all, need(5, 10, 1)).expect("placed"), ["d", "b", "c", "e", "a"]);
    }

    #[test]
    fn members_that_are_there_are_kept_apart_from() {
        let all = [candidate("a", "r1", 30), candidate("b", "r2", 20), candidate("c", "r3", 10)];
        let there = [("a".to_owned(), "r1".to_owned()), ("x".to_owned(), "r2".to_owned())];
        assert_eq!(place_beside(&all, need(1, 5, 1), &there).expect("placed"), ["c"]);
        assert_eq!(place_beside(&all, need(2, 5, 2), &there).expect("placed"), ["c", "b"]);
        let none = place_beside(&all[..2], need(1, 5, 1), &there).expect_err("taken");
        assert_eq!(none.possible, 0);
    }

    #[test]
    fn an_error_says_what_is_missing() {
        let all = [candidate("a", "rack1", 3 << 30), candidate("b", "rack2", 1 << 20)];
        let mut error = place(&all, need(2, 1 << 30, 1)).expect_err("too few");
        error.unreachable.push(("dtn3:4420".to_owned(), "connection refused".to_owned()));
        assert_eq!(error.possible, 1);
        assert_eq!(
            error.to_string(),
            "2 members of 1 GiB each are needed, in a failure domain each, and 1 can be placed: rack1 has \
             3 GiB on a target, rack2 has 1 MiB on a target; dtn3:4420 is not used: connection refused; \
             add targets in other failure domains, allow more members in one ('--per-domain'), or ask for fewer or \
             smaller members"
        );
        let none = place(&[], need(1, 1, 1)).expect_err("none").to_string();
        assert!(none.contains("the pool has no target that can be used"), "{none}");
    }

    proptest! {
        #[test]
        fn members_are_apart_and_fit(
            targets in prop::collection::vec((0u8..6, 0u64..40), 0..14),
            members in 1usize..10, size in 1u64..20, per_domain in 1usize..4, turn in 0usize..14,
        ) {
            let all: Vec<Candidate> = targets
                .iter()
                .enumerate()
                .map(|(i, (domain, free))| candidate(&format!("t{i:02}"), &format!("d{domain}"), *free))
                .collect();
            let need = need(members, size, per_domain);
            let placed = place(&all, need);
            // What is possible at all: each domain takes what its targets have room for, up to the limit.
            let domains: BTreeSet<&str> = all.iter().map(|c| c.domain.as_str()).collect();
            let room = |domain: &str| -> u64 {
                all.iter().filter(|c| c.domain == domain).map(|c| c.free / size).sum()
            };
            let possible: u64 = domains.iter().map(|domain| room(domain).min(per_domain as u64)).sum();
            prop_assert_eq!(placed.is_ok(), possible >= members as u64);
            match &placed {
                Ok(placed) => {
                    prop_assert_eq!(placed.len(), members);
                    for candidate in &all {
                        let count = placed.iter().filter(|id| **id == candidate.id).count() as u64;
                        prop_assert!(count * size <= candidate.free);
                    }
                    for domain in domains {
                        let is_in = |id: &&String| all.iter().any(|c| c.id == **id && c.domain == domain);
                        prop_assert!(placed.iter().filter(is_in).count() <= per_domain);
                    }
                }
                Err(shortage) => prop_assert_eq!(shortage.possible as u64, possible),
            }
            // The order of the candidates does not matter.
            let mut turned = all.clone();
            turned.rotate_left(turn.min(all.len()));
            prop_assert_eq!(place(&turned, need), placed);
        }
    }
}
