//! The two numbers of a line through the times of copies, T = N t0 + B / R: what a
//! file costs, and how fast the bytes go. Each round of copies gives one of either,
//! so that they have a spread as all numbers do.

use longhaul_bench::record::{Better, Cell, Code, Place, Validity};

/// What a file costs in seconds, and the rate of the bytes in bytes a second, of a
/// kind of copy.
pub(crate) fn cells(copy: &str) -> [Cell; 2] {
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

/// Why the rate does not count where a round had none.
pub(crate) fn of_nothing() -> Validity {
    Validity::not(Code::TooNoisy, "the bytes cost nothing that could be told from the noise")
}
