//! The result cells of the fit T = N t0 + B / R to the times of copies: per-file cost t0 and
//! throughput R. Each round of copies gives one value of each, so that both have a spread.

use longhaul_results::record::{Better, Cell, Code, Place, Validity};

/// The cells of t0 in seconds and of R in bytes a second, for a kind of copy.
pub fn cells(copy: &str) -> [Cell; 2] {
    let number = |what: &str, unit: &str, better, figure: &str, series: &str| {
        let mut cell = Cell::new(format!("{copy}: {what}"), unit, better);
        cell.place = Some(Place {
            figure: figure.into(),
            series: series.into(),
            x: copy.into(),
            x_number: None,
            x_label: "Copy".into(),
        });
        cell
    };
    [
        number("a file", "s", Better::Lower, "What a file costs (t0)", "t0"),
        number("the bytes", "B/s", Better::Higher, "How fast the bytes go (R)", "R"),
    ]
}

/// The validity of R where the fit of a round has no slope: the time does not depend on the bytes.
pub fn of_nothing() -> Validity {
    Validity::not(Code::TooNoisy, "the cost of the bytes is within the noise")
}
