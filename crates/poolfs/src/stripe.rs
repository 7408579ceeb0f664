//! Stripes: content cut into units, with parity and checksums, and put together again.

use crate::extent::{BLOCK, Stripe, StripeUnit};
use crate::members::{Members, Pending};
use crate::runs::Span;
use crate::settings::FsSettings;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::buf::{BUF_MAX, BufPool};
use longhaul_engine::{Buf, BufMut};
use longhaul_parity::Unit;
use std::ops::Range;
use std::sync::Arc;

/// Content below this is in one unit: smaller units cost operations and save nothing.
pub(crate) const SMALL: u64 = 64 << 10;

/// How content lies in a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripePlan {
    pub(crate) data: usize,
    pub(crate) parity: usize,
    /// Bytes of a unit.
    pub(crate) unit: u64,
}

impl StripePlan {
    /// The plan for the first bytes of content of `len` bytes while `live` members can be written to; how
    /// many bytes these are is at most [`room`](Self::room). `None` with more members missing than the
    /// layout allows.
    pub(crate) fn new(settings: &FsSettings, live: usize, len: u64) -> Option<StripePlan> {
        StripePlan::with(settings, live, len, settings.unit, SMALL)
    }

    /// The same for content that is packed: it takes not much more room than it has bytes, in small units.
    pub(crate) fn packed(settings: &FsSettings, live: usize, len: u64) -> Option<StripePlan> {
        StripePlan::with(settings, live, len, SMALL.min(settings.unit), BLOCK)
    }

    fn with(settings: &FsSettings, live: usize, len: u64, most: u64, least: u64) -> Option<StripePlan> {
        let FsSettings { members, parity, data, .. } = settings;
        if live == 0 || live + parity < *members {
            return None;
        }
        // A stripe is narrower while a member is missing; the parity is given up last.
        let data = (*data).min(live.saturating_sub(*parity).max(1));
        let parity = (*parity).min(live - data);
        let len = len.min(most * data as u64);
        let data = usize::try_from(len.div_ceil(least)).unwrap_or(data).clamp(1, data);
        let unit = len.div_ceil(data as u64).next_multiple_of(BLOCK).max(BLOCK);
        Some(StripePlan { data, parity, unit })
    }

    /// The same with units that fit into what is left of a segment on its members, if that is worth a stripe.
    pub(crate) fn within(self, left: u64) -> StripePlan {
        if (SMALL / 4..self.unit).contains(&left) { StripePlan { unit: left, ..self } } else { self }
    }

    /// Bytes of content that it has room for.
    pub(crate) fn room(&self) -> u64 {
        self.unit * self.data as u64
    }

    pub(crate) fn units(&self) -> usize {
        self.data + self.parity
    }

    /// The units of `content`, which is filled up with zeroes: data, then parity. What lies in one buffer is not
    /// copied; other units are of `pool` while it has some.
    pub(crate) fn encode(&self, mut content: Span<'_>, pool: &BufPool) -> Vec<Buf> {
        let unit = self.unit as usize;
        let mut units: Vec<Buf> = (0..self.data)
            .map(|_| {
                let part = content.take(unit);
                if let Some(kept) = part.kept().filter(|kept| kept.len() == unit) {
                    return kept;
                }
                let mut bytes = buffer(pool, unit);
                part.copy_to(&mut bytes);
                // A buffer of a pool has what was in it before.
                bytes[part.len()..].fill(0);
                bytes.freeze()
            })
            .collect();
        let data: Vec<&[u8]> = units.iter().map(|unit| &unit[..]).collect();
        let mut parity: Vec<BufMut> = (0..self.parity).map(|_| buffer(pool, unit)).collect();
        match &mut parity[..] {
            [] => {}
            [p] => longhaul_parity::xor(p, &data),
            [p, q, ..] => longhaul_parity::pq(&data, p, q),
        }
        units.extend(parity.into_iter().map(BufMut::freeze));
        units
    }
}

/// A buffer of `pool`, or of its own while the pool has none. The content is unspecified.
pub(crate) fn buffer(pool: &BufPool, len: usize) -> BufMut {
    let pooled = if len <= BUF_MAX { pool.try_alloc(len) } else { None };
    pooled.unwrap_or_else(|| BufMut::zeroed(len))
}

/// The stripe of units at these places.
pub(crate) fn stripe(plan: &StripePlan, places: &[(u8, u64)], units: &[Buf]) -> Stripe {
    let unit = |((member, at), bytes): (&(u8, u64), &Buf)| StripeUnit {
        member: *member,
        block: at / BLOCK,
        sum: crc_fast::crc32_iscsi(bytes),
    };
    Stripe {
        unit: plan.unit as u32,
        data: plan.data as u8,
        units: places.iter().zip(units).map(unit).collect(),
    }
}

/// A read of a part of a stripe's content, under way.
pub(crate) struct StripeRead {
    stripe: Arc<Stripe>,
    range: Range<u64>,
    /// Data units that are read, by index.
    under_way: Vec<(usize, Pending<BufMut>)>,
}

fn start(members: &Members, stripe: &Stripe, index: usize) -> Pending<BufMut> {
    let unit = &stripe.units[index];
    members.read(unit.member, unit.block * BLOCK, stripe.unit as usize)
}

/// A unit whose checksum is right.
fn finish(members: &Members, stripe: &Stripe, index: usize, pending: Pending<BufMut>) -> IoResult<BufMut> {
    let unit = &stripe.units[index];
    let (at, len, place) = (unit.block * BLOCK, stripe.unit as usize, pending.place());
    let is_right = |bytes: &BufMut| crc_fast::crc32_iscsi(bytes) == unit.sum;
    let failed = match members.wait(pending) {
        Ok(bytes) if is_right(&bytes) => return Ok(bytes),
        Ok(_) => None,
        Err(e) => Some(e),
    };
    let other = members.read_other(unit.member, (at, len), place);
    if let Some(bytes) = other.and_then(|other| members.wait(other).ok())
        && is_right(&bytes)
    {
        return Ok(bytes);
    }
    if let Some(e) = failed {
        return Err(e);
    }
    if members.is_filling(unit.member, at) {
        return Err(IoError::Offline(format!("member {} has no unit at {at} yet", unit.member)));
    }
    let why = format!("unit at block {} of member {}", unit.block, unit.member);
    tracing::warn!("checksum mismatch: {why}");
    Err(IoError::Integrity(why))
}

impl StripeRead {
    /// Begins to read bytes of the content.
    pub(crate) fn start(members: &Members, stripe: &Arc<Stripe>, range: Range<u64>) -> StripeRead {
        let unit = u64::from(stripe.unit);
        let needed = (range.start / unit) as usize..=((range.end - 1) / unit) as usize;
        let under_way = needed.map(|index| (index, start(members, stripe, index))).collect();
        StripeRead { stripe: Arc::clone(stripe), range, under_way }
    }

    /// Waits for it, and copies the bytes to `to`. Units that are missing or wrong are made from the others;
    /// whether one was wrong.
    pub(crate) fn finish(self, members: &Members, to: &mut [u8]) -> IoResult<bool> {
        let StripeRead { stripe, range, under_way } = self;
        let mut units: Vec<Option<BufMut>> = (0..stripe.units.len()).map(|_| None).collect();
        let (mut failed, mut is_wrong) = (None, false);
        let needed: Vec<usize> = under_way.iter().map(|(index, _)| *index).collect();
        for (index, pending) in under_way {
            match finish(members, &stripe, index, pending) {
                Ok(bytes) => units[index] = Some(bytes),
                Err(e) => {
                    is_wrong |= matches!(e, IoError::Integrity(_));
                    failed = Some(e);
                }
            }
        }
        if let Some(e) = failed {
            rebuild(members, &stripe, &needed, &mut units).map_err(|()| e)?;
        }
        let unit = u64::from(stripe.unit);
        for index in needed {
            let Some(bytes) = &units[index] else { continue };
            let first = index as u64 * unit;
            let (from, until) = (range.start.max(first), range.end.min(first + unit));
            let part = &bytes[(from - first) as usize..(until - first) as usize];
            to[(from - range.start) as usize..(until - range.start) as usize].copy_from_slice(part);
        }
        Ok(is_wrong)
    }
}

/// What the unit of this index is in a stripe with `data` data units.
fn kind(index: usize, data: usize) -> Unit {
    match index.checked_sub(data) {
        None => Unit::Data(index),
        Some(0) => Unit::P,
        Some(_) => Unit::Q,
    }
}

/// A unit: read, or made from the others.
pub(crate) fn unit(members: &Members, stripe: &Stripe, index: usize) -> IoResult<BufMut> {
    let mut units: Vec<Option<BufMut>> = (0..stripe.units.len()).map(|_| None).collect();
    let e = match finish(members, stripe, index, start(members, stripe, index)) {
        Ok(bytes) => return Ok(bytes),
        Err(e) => e,
    };
    rebuild(members, stripe, &[index], &mut units).map_err(|()| e.clone())?;
    units[index].take().ok_or(e)
}

/// What the units of a stripe are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StripeHealth {
    /// Units with another checksum.
    pub(crate) wrong: usize,
    /// Units that cannot be read.
    pub(crate) missing: usize,
    /// Content is lost.
    pub(crate) is_lost: bool,
}

/// Reads all units of a stripe.
pub(crate) fn examine(members: &Members, stripe: &Stripe) -> StripeHealth {
    let under_way: Vec<_> =
        (0..stripe.units.len()).map(|index| (index, start(members, stripe, index))).collect();
    let mut health = StripeHealth::default();
    for (index, pending) in under_way {
        match finish(members, stripe, index, pending) {
            Ok(_) => {}
            Err(IoError::Integrity(_)) => health.wrong += 1,
            Err(_) => health.missing += 1,
        }
    }
    health.is_lost = health.wrong + health.missing > stripe.parity();
    health
}

/// Makes the units that are `needed` and not there from those that can be read.
fn rebuild(
    members: &Members,
    stripe: &Stripe,
    needed: &[usize],
    units: &mut [Option<BufMut>],
) -> Result<(), ()> {
    let missing: Vec<usize> = needed.iter().copied().filter(|index| units[*index].is_none()).collect();
    let others: Vec<(usize, Pending<BufMut>)> = (0..units.len())
        .filter(|index| units[*index].is_none() && !missing.contains(index))
        .map(|index| (index, start(members, stripe, index)))
        .collect();
    for (index, pending) in others {
        units[index] = finish(members, stripe, index, pending).ok();
    }
    let data = usize::from(stripe.data);
    let bytes = |index: usize| units.get(index).and_then(Option::as_deref);
    let known: Vec<Option<&[u8]>> = (0..data).map(bytes).collect();
    let parity = |index: usize| if stripe.parity() > index { bytes(data + index) } else { None };
    let mut made: Vec<(usize, BufMut)> =
        missing.iter().map(|index| (*index, members.buffer(stripe.unit as usize))).collect();
    let mut wanted: Vec<(Unit, &mut [u8])> =
        made.iter_mut().map(|(index, bytes)| (kind(*index, data), &mut bytes[..])).collect();
    longhaul_parity::recover(&known, parity(0), parity(1), &mut wanted).map_err(drop)?;
    drop(wanted);
    for (index, bytes) in made {
        // What was made of the right units is right, unless the record of the stripe is not.
        if crc_fast::crc32_iscsi(&bytes) != stripe.units[index].sum {
            return Err(());
        }
        units[index] = Some(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn settings(data: usize, parity: usize) -> FsSettings {
        let (unit, segment, segments) = (256 << 10, 4 << 20, 16);
        let members = if data == 1 { 2 } else { data + parity };
        let (pool, places) = (Uuid::nil(), Vec::new());
        FsSettings { format: 1, pool, members, data, parity, unit, segment, segments, places, fences: None }
    }

    #[test]
    fn a_stripe_has_as_few_units_as_its_content_needs() {
        let parity = settings(4, 1);
        let plan = |live, len| {
            StripePlan::new(&parity, live, len).map(|plan| (plan.data, plan.parity, plan.unit >> 10))
        };
        assert_eq!(plan(5, 1), Some((1, 1, 4)));
        assert_eq!(plan(5, 64 << 10), Some((1, 1, 64)));
        assert_eq!(plan(5, 100 << 10), Some((2, 1, 52)));
        assert_eq!(plan(5, 10 << 20), Some((4, 1, 256)));
        assert_eq!(plan(4, 10 << 20), Some((3, 1, 256)));
        assert_eq!(plan(3, 1), None);
        let double = settings(1, 2);
        let double = FsSettings { members: 3, ..double };
        let plan = |live| StripePlan::new(&double, live, 1).map(|plan| (plan.data, plan.parity));
        assert_eq!((plan(3), plan(2), plan(1), plan(0)), (Some((1, 2)), Some((1, 1)), Some((1, 0)), None));
        let mirror = settings(1, 1);
        let plan = |live| StripePlan::new(&mirror, live, 1 << 20).map(|plan| (plan.data, plan.parity));
        assert_eq!((plan(2), plan(1)), (Some((1, 1)), Some((1, 0))));
    }

    #[test]
    fn parity_of_one_unit_is_its_copy() {
        let plan = StripePlan { data: 1, parity: 2, unit: 4096 };
        let units = plan.encode(Span::of(0, b"content"), &BufPool::new(0));
        assert_eq!((&units[0][..7], &units[0][..], units.len()), (&b"content"[..], &units[1][..], 3));
        assert_eq!(&units[0][..], &units[2][..], "Q of the first unit is that unit too");
    }
}
