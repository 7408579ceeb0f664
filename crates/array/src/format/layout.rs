//! Layouts of arrays, and the limits of their shape.

use longhaul_block::DeviceInfo;
use std::fmt;
use std::str::FromStr;

/// Minimum number of members.
pub const MIN_WIDTH: usize = 2;
/// Maximum number of members: as many as the superblock has space for.
pub const MAX_WIDTH: usize = 64;
/// Smallest stripe unit in bytes: the largest logical block in common use.
pub const MIN_UNIT: u64 = 4 << 10;
/// Largest stripe unit in bytes: the largest buffer.
pub const MAX_UNIT: u64 = 4 << 20;
/// Stripe unit in bytes if the members have no preference: large enough that a command pays at any
/// distance, small enough that a common large I/O (1 MiB) uses several members.
pub const DEFAULT_UNIT: u64 = 256 << 10;

/// Distribution of data and redundancy over the members. The numbers are those of the
/// superblock: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Layout {
    /// Striped, without redundancy (RAID0).
    Stripe = 0,
    /// The same data on all members (RAID1).
    Mirror = 1,
    /// Striped over mirrored pairs of members (RAID10).
    StripeMirror = 2,
    /// Striped, with one rotating parity unit (RAID5).
    Parity = 3,
    /// Striped, with two rotating parity units (RAID6).
    DoubleParity = 4,
}

impl Layout {
    /// All layouts, in the order in which help lists them.
    pub const ALL: [Layout; 5] =
        [Layout::Stripe, Layout::Mirror, Layout::StripeMirror, Layout::Parity, Layout::DoubleParity];

    /// Number in the superblock.
    pub(crate) fn code(self) -> u16 {
        self as u16
    }

    /// The layout of that number; `None` for one of a later version.
    pub(crate) fn of_code(code: u16) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.code() == code)
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Stripe => "stripe",
            Layout::Mirror => "mirror",
            Layout::StripeMirror => "stripe+mirror",
            Layout::Parity => "parity",
            Layout::DoubleParity => "double-parity",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Layout, String> {
        Layout::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let names = Layout::ALL.map(Layout::name).join(", ");
            format!("'{text}' is not a layout: use one of {names}")
        })
    }
}

/// Why no array can have this shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Too few or too many members.
    #[error("{width} devices do not make an array: it has {MIN_WIDTH} to {MAX_WIDTH}")]
    Width {
        /// Number of members given.
        width: usize,
    },
    /// The stripe unit is out of bounds, or not a power of two.
    #[error("a stripe unit of {unit} bytes is not a power of two between {MIN_UNIT} and {MAX_UNIT}")]
    Unit {
        /// Stripe unit in bytes.
        unit: u64,
    },
    /// The layout does not work with this number of members.
    #[error(
        "{layout} does not work with {width} devices: double-parity needs 3, stripe+mirror an even number"
    )]
    Layout {
        /// The layout given.
        layout: Layout,
        /// Number of members given.
        width: usize,
    },
    /// A member is too small for one stripe.
    #[error("{size} bytes are too few for a member: it needs {least} at least")]
    TooSmall {
        /// Its size in bytes.
        size: u64,
        /// The required size in bytes.
        least: u64,
    },
    /// The superblock has no room for another section.
    #[error(
        "it has been extended {times} times, and its superblock has room for no more: copy the data to a new array"
    )]
    Extended {
        /// Sections that were added.
        times: usize,
    },
    /// The write-intent bitmap has no bits for so large an array.
    #[error(
        "its write-intent bitmap has bits for {most} bytes, and it has {size}: copy the data to a new array"
    )]
    Marks {
        /// Bytes that the bitmap is enough for.
        most: u64,
        /// Bytes of the array.
        size: u64,
    },
}

/// Checks the number of members and the stripe unit.
pub(crate) fn check_shape(width: usize, unit: u64) -> Result<(), LayoutError> {
    if !(MIN_WIDTH..=MAX_WIDTH).contains(&width) {
        return Err(LayoutError::Width { width });
    }
    if !unit.is_power_of_two() || !(MIN_UNIT..=MAX_UNIT).contains(&unit) {
        return Err(LayoutError::Unit { unit });
    }
    Ok(())
}

/// Checks whether a layout works with this number of members.
pub(crate) fn check_layout(layout: Layout, width: usize) -> Result<(), LayoutError> {
    let works = match layout {
        Layout::DoubleParity => width >= 3,
        Layout::StripeMirror => width.is_multiple_of(2),
        Layout::Stripe | Layout::Mirror | Layout::Parity => true,
    };
    if works { Ok(()) } else { Err(LayoutError::Layout { layout, width }) }
}

/// The stripe unit that suits the members: the largest of their preferred I/O sizes, but at least
/// [`DEFAULT_UNIT`].
pub fn suited_unit<'a>(members: impl IntoIterator<Item = &'a DeviceInfo>) -> u64 {
    let largest = members.into_iter().map(|info| u64::from(info.optimal_io)).max().unwrap_or(0);
    largest.next_power_of_two().clamp(DEFAULT_UNIT, MAX_UNIT)
}

/// Units that a path should have in flight: fewer would not fill it evenly, and more only cost
/// commands.
const UNITS_UNDER_WAY: u64 = 64;

/// The stripe unit for paths that need `under_way` bytes in flight each: at least [`DEFAULT_UNIT`].
pub fn path_unit(under_way: u64) -> u64 {
    let share = (under_way / UNITS_UNDER_WAY).max(DEFAULT_UNIT);
    (1 << share.ilog2()).min(MAX_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_block::{BlockDevice, MemDevice};

    #[test]
    fn names_are_read_back() {
        for layout in Layout::ALL {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        let error = "raid5".parse::<Layout>().expect_err("unknown");
        assert!(error.starts_with("'raid5' is not a layout: use one of stripe, mirror,"), "{error}");
    }

    #[test]
    fn shapes_have_bounds() {
        assert_eq!(check_shape(2, 4096), Ok(()));
        assert_eq!(check_shape(64, 4 << 20), Ok(()));
        assert_eq!(check_shape(1, 4096), Err(LayoutError::Width { width: 1 }));
        assert_eq!(check_shape(65, 4096), Err(LayoutError::Width { width: 65 }));
        for unit in [0, 2048, 12 << 10, 8 << 20] {
            assert_eq!(check_shape(4, unit), Err(LayoutError::Unit { unit }));
        }
    }

    #[test]
    fn the_unit_follows_the_preferred_io_size() {
        let mut infos = [1, 2].map(|_| MemDevice::new(1 << 20, 512).expect("mapped").info());
        assert_eq!(suited_unit(&infos), DEFAULT_UNIT);
        infos[1].optimal_io = 768 << 10;
        assert_eq!(suited_unit(&infos), 1 << 20);
        infos[0].optimal_io = 64 << 20;
        assert_eq!(suited_unit(&infos), MAX_UNIT);
    }

    #[test]
    fn the_unit_follows_the_bytes_in_flight() {
        // 1 Gb/s at 15 ms, 10 Gb/s at 100 ms, 100 Gb/s at 200 ms.
        for (under_way, unit) in [(0, 256 << 10), (1_875_000, 256 << 10), (125_000_000, 1 << 20)] {
            assert_eq!(path_unit(under_way), unit);
        }
        assert_eq!(path_unit(2_500_000_000), MAX_UNIT);
        assert_eq!(path_unit(u64::MAX), MAX_UNIT);
    }
}
