//! Spreads of the rounds, and both sides of a phase beside each other.

use super::window::MeasuredRate;

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of both.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// That of these numbers; `None` if there are none.
    pub fn of(numbers: &[f64]) -> Option<Spread> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 };
        Some(Spread { median, least, most })
    }
}

/// Rates of one direction, in the order of the rounds.
#[derive(Clone, Debug)]
pub struct Phase {
    /// `write` or `read`.
    pub name: &'static str,
    /// Rates of Longhaul.
    pub ours: Vec<MeasuredRate>,
    /// Rates of plain TCP.
    pub plain: Vec<MeasuredRate>,
}

/// Spreads and processor shares of a phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseSummary {
    /// `write` or `read`.
    pub name: &'static str,
    /// Rate of Longhaul in bytes a second.
    pub ours: Spread,
    /// Rate of plain TCP in bytes a second.
    pub plain: Spread,
    /// The former divided by the latter, round by round.
    pub ratio: Spread,
    /// Share of the processors that Longhaul used.
    pub own_cpu: f64,
    /// Share that other programs used meanwhile.
    pub others_cpu: f64,
    /// Share that plain TCP used.
    pub plain_cpu: f64,
}

impl Phase {
    /// Its numbers beside each other; `None` without a round.
    pub fn compared(&self) -> Option<PhaseSummary> {
        let spread = |of: &dyn Fn(&MeasuredRate) -> f64, all: &[MeasuredRate]| {
            Spread::of(&all.iter().map(of).collect::<Vec<_>>())
        };
        let ratios: Vec<f64> = self.ours.iter().zip(&self.plain).map(|(a, b)| a.rate / b.rate).collect();
        Some(PhaseSummary {
            name: self.name,
            ours: spread(&|c| c.rate, &self.ours)?,
            plain: spread(&|c| c.rate, &self.plain)?,
            ratio: Spread::of(&ratios)?,
            own_cpu: spread(&|c| c.own_cpu, &self.ours)?.median,
            others_cpu: spread(&|c| c.others_cpu, &self.ours)?.median,
            plain_cpu: spread(&|c| c.own_cpu, &self.plain)?.median,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_a_middle() {
        let spread = |median, least, most| Some(Spread { median, least, most });
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), spread(2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0]), spread(2.5, 1.0, 4.0));
        assert_eq!(Spread::of(&[]), None);
    }
}
