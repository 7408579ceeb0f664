//! Computes lost units from the remaining ones.
//!
//! A lost unit is a sum of the remaining ones, each times a constant (Anvin, section 3). [`rows`]
//! finds the constants, once a call; the kernels compute the sum.

use crate::field::{inverse, multiply, power};
use crate::kernels::{Kernels, MAX_DATA};
use thiserror::Error;

/// Bytes of each unit that are recovered at a time, so that the sources of a
/// second unit are still in the processor's cache: 10 units of a common
/// stripe in a second-level cache of 1 MiB, with room to spare.
const CHUNK: usize = 32 << 10;

/// A unit of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Data unit of this index, counted from 0.
    Data(usize),
    /// The sum of all data units.
    P,
    /// The sum of all data units, each times 2 to the power of its index.
    Q,
}

/// More was lost than the units that are left can give back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{lost} data units are lost, and {parity} parity units are left")]
pub struct Unrecoverable {
    /// Data units that are missing.
    pub lost: usize,
    /// Parity units that are available: 0, 1 or 2.
    pub parity: usize,
}

/// A unit as a sum of units: the factor of each data unit, then of P and Q.
type Row = Vec<u8>;

/// See [`crate::recover`].
pub(crate) fn recover(
    kernels: Kernels,
    data: &[Option<&[u8]>],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    wanted: &mut [(Unit, &mut [u8])],
) -> Result<(), Unrecoverable> {
    assert!(data.len() <= MAX_DATA, "{} data units: Q covers {MAX_DATA} at most", data.len());
    let units: Vec<Option<&[u8]>> = data.iter().copied().chain([p, q]).collect();
    let present: Vec<bool> = units.iter().map(Option::is_some).collect();
    let Some(len) = wanted.first().map(|(_, dst)| dst.len()) else { return Ok(()) };
    for (unit, dst) in wanted.iter() {
        assert_eq!(dst.len(), len, "{unit:?} is of another length");
        assert!(!matches!(unit, Unit::Data(i) if *i >= data.len()), "there is no {unit:?}");
    }
    let rows = rows(&present)?;
    let row = |unit: &Unit| match *unit {
        Unit::Data(i) => &rows[i],
        Unit::P => &rows[data.len()],
        Unit::Q => &rows[data.len() + 1],
    };
    for start in (0..len).step_by(CHUNK) {
        let range = start..len.min(start + CHUNK);
        for (unit, dst) in wanted.iter_mut() {
            let terms = units.iter().zip(row(unit)).filter(|(_, factor)| **factor != 0);
            let (sources, factors): (Vec<&[u8]>, Vec<u8>) =
                terms.filter_map(|(unit, factor)| unit.map(|bytes| (&bytes[range.clone()], *factor))).unzip();
            kernels.combine(&mut dst[range.clone()], &sources, &factors, false);
        }
    }
    Ok(())
}

/// Every unit as a sum of those that are `present` (data, P, Q).
fn rows(present: &[bool]) -> Result<Vec<Row>, Unrecoverable> {
    let n = present.len() - 2;
    let (p, q) = (n, n + 1);
    let alone = |unit: usize| {
        let mut row = vec![0; n + 2];
        row[unit] = 1;
        row
    };
    let lost: Vec<usize> = (0..n).filter(|i| !present[*i]).collect();
    let mut rows: Vec<Row> = (0..n + 2).map(alone).collect();
    // The sums of the remaining units: the lost data is the difference to P and Q.
    let syndrome = |parity: usize, factor: fn(usize) -> u8| {
        let mut row: Row = (0..n).map(|i| if present[i] { factor(i) } else { 0 }).collect();
        row.extend([0, 0]);
        row[parity] = 1;
        row
    };
    match (lost.as_slice(), present[p], present[q]) {
        ([], _, _) => {}
        ([x], true, _) => rows[*x] = syndrome(p, |_| 1),
        ([x], false, true) => rows[*x] = scale(inverse(power(*x)), &syndrome(q, power)),
        ([x, y], true, true) => {
            // S = Dx + Dy and T = 2^x Dx + 2^y Dy, solved for Dx and Dy.
            let (s, t) = (syndrome(p, |_| 1), syndrome(q, power));
            let divisor = inverse(power(*x) ^ power(*y));
            rows[*x] = scale(divisor, &add(&scale(power(*y), &s), &t));
            rows[*y] = add(&s, &rows[*x]);
        }
        (lost, ..) => {
            let parity = usize::from(present[p]) + usize::from(present[q]);
            return Err(Unrecoverable { lost: lost.len(), parity });
        }
    }
    let sum = |rows: &[Row], factor: fn(usize) -> u8| {
        let scaled = rows[..n].iter().enumerate().map(|(i, row)| scale(factor(i), row));
        scaled.fold(vec![0; n + 2], |sum, row| add(&sum, &row))
    };
    if !present[p] {
        rows[p] = sum(&rows, |_| 1);
    }
    if !present[q] {
        rows[q] = sum(&rows, power);
    }
    Ok(rows)
}

fn scale(factor: u8, row: &[u8]) -> Row {
    row.iter().map(|x| multiply(factor, *x)).collect()
}

fn add(a: &[u8], b: &[u8]) -> Row {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}
