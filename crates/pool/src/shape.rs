//! How a volume lies on its members.

use crate::error::{Error, Result};
use longhaul_array::{DEFAULT_UNIT, Geometry, Layout};
use longhaul_block::units::format_size;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Sizes of members are multiples of this: every block size divides it.
const ROUND: u64 = 1 << 20;
/// Largest volume in bytes: sums of sizes of a pool cannot overflow.
const MAX_SIZE: u64 = 1 << 56;
/// Most members of a volume whose width the user does not say: beyond it a stripe takes more memory
/// and round trips than it saves capacity.
const SUITED_WIDTH: usize = 8;
/// The name of the layout of one namespace.
const SINGLE: &str = "single";
/// What names of layouts of file systems begin with.
const FILES: &str = "files+";
/// Fewest and most bytes of a segment of a file system on one member: what a host takes at a time.
const SEGMENT_LEAST: u64 = 1 << 20;
const SEGMENT_MOST: u64 = 64 << 20;
/// Segments that a member has at least, so that several hosts have some.
const SEGMENTS: u64 = 32;

/// Distribution of a volume over its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeLayout {
    /// One namespace, without a superblock: for hosts without Longhaul.
    Single,
    /// An array.
    Array(Layout),
    /// The data of a file system, whose stripes its hosts place: namespaces without an array.
    Files(Layout),
}

impl VolumeLayout {
    /// Its name, such as `parity`.
    pub fn name(self) -> &'static str {
        match self {
            VolumeLayout::Single => SINGLE,
            VolumeLayout::Array(layout) => layout.name(),
            VolumeLayout::Files(Layout::Stripe) => "files+stripe",
            VolumeLayout::Files(Layout::Mirror) => "files+mirror",
            VolumeLayout::Files(Layout::StripeMirror) => "files+stripe+mirror",
            VolumeLayout::Files(Layout::Parity) => "files+parity",
            VolumeLayout::Files(Layout::DoubleParity) => "files+double-parity",
        }
    }

    /// The name of its redundancy alone, such as `parity` also of the data of a file system.
    pub fn redundancy(self) -> &'static str {
        match self {
            VolumeLayout::Files(layout) => layout.name(),
            other => other.name(),
        }
    }

    /// Whether an array is made over the members.
    pub fn has_array(self) -> bool {
        matches!(self, VolumeLayout::Array(_))
    }

    /// Whether it is the data of a file system.
    pub fn is_files(self) -> bool {
        matches!(self, VolumeLayout::Files(_))
    }

    /// Most data units and the units of parity that a stripe of a file system has on `width` members; `None`
    /// for what is no layout of file systems, or with too few members.
    pub fn file_stripe(self, width: usize) -> Option<(usize, usize)> {
        let VolumeLayout::Files(layout) = self else { return None };
        let (data, parity) = match layout {
            Layout::Stripe => (width, 0),
            // Two copies, on any two of the members.
            Layout::Mirror => (width.checked_sub(1)?.min(1), 1),
            Layout::Parity => (width.checked_sub(1)?, 1),
            Layout::DoubleParity => (width.checked_sub(2)?, 2),
            Layout::StripeMirror => return None,
        };
        (data > 0 && width <= MAX_FILE_WIDTH).then_some((data, parity))
    }

    /// Names of all that `volume create` makes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Layout::ALL.into_iter().map(Layout::name).chain([SINGLE])
    }

    /// Fewest members that a volume has.
    pub(crate) fn least_width(self) -> usize {
        let fits = |width: &usize| Shape::fit(self, *width, 0, DEFAULT_UNIT, ROUND).is_ok();
        (1..=MAX_FILE_WIDTH).find(fits).unwrap_or(1)
    }

    /// How many members a volume has, unless the user says, where there are places for so many.
    pub(crate) fn suited_width(self, places: usize) -> usize {
        let most = places.min(SUITED_WIDTH);
        match self {
            VolumeLayout::Single => 1,
            VolumeLayout::Array(Layout::Mirror) => 2,
            VolumeLayout::Array(Layout::StripeMirror) => most / 2 * 2,
            // Copies are on any two members, which share the load.
            VolumeLayout::Array(_) | VolumeLayout::Files(_) => most,
        }
    }
}

impl fmt::Display for VolumeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for VolumeLayout {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<VolumeLayout, String> {
        match text {
            SINGLE => Ok(VolumeLayout::Single),
            text if text.starts_with(FILES) => text[FILES.len()..].parse().map(VolumeLayout::Files),
            text => text.parse().map(VolumeLayout::Array).map_err(|e: String| format!("{e}, {SINGLE}")),
        }
    }
}

impl Serialize for VolumeLayout {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VolumeLayout {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<VolumeLayout, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The shape of a volume. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Distribution over the members.
    pub layout: VolumeLayout,
    /// Members, without spares.
    pub width: usize,
    /// Members that wait to replace one.
    pub spares: usize,
    /// Stripe unit; zero for a single namespace.
    pub unit: u64,
    /// Size that was asked for.
    pub size: u64,
    /// Size of each member and spare.
    pub member_size: u64,
}

impl Shape {
    /// The shape with the smallest members that a volume of `size` bytes fits on.
    ///
    /// # Errors
    /// [`Error::Shape`] for a layout that does not work with these members, or a size of zero.
    pub fn fit(layout: VolumeLayout, width: usize, spares: usize, unit: u64, size: u64) -> Result<Shape> {
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(Error::Shape(format!("a volume has 1 to {MAX_SIZE} bytes, not {size}")));
        }
        let shape = |unit, member_size: u64| {
            let member_size = member_size.next_multiple_of(ROUND);
            Shape { layout, width, spares, unit, size, member_size }
        };
        match layout {
            VolumeLayout::Single if (width, spares) == (1, 0) => Ok(shape(0, size)),
            VolumeLayout::Single => {
                Err(Error::Shape("a single namespace has one member, and no spare".to_owned()))
            }
            VolumeLayout::Array(layout) => {
                if spares > longhaul_array::MAX_SPARES {
                    let most = longhaul_array::MAX_SPARES;
                    return Err(Error::Shape(format!("{spares} spares are more than {most}")));
                }
                Ok(shape(unit, array_member(layout, width, unit, size)?))
            }
            VolumeLayout::Files(files) => {
                let Some((data, parity)) = layout.file_stripe(width) else {
                    let why = format!("a file system of layout {files} cannot have {width} members");
                    return Err(Error::Shape(why));
                };
                if spares > 0 {
                    return Err(Error::Shape("a file system has no spares".to_owned()));
                }
                if !(unit.is_power_of_two() && (FILE_UNIT_LEAST..=SEGMENT_LEAST).contains(&unit)) {
                    let most = format_size(SEGMENT_LEAST);
                    let why = format!("a stripe unit of a file system is a power of two up to {most}");
                    return Err(Error::Shape(why));
                }
                let raw = u128::from(size) * (data + parity) as u128 / data as u128;
                let member = u64::try_from(raw.div_ceil(width as u128)).unwrap_or(MAX_SIZE);
                // A host has one segment that is not full, and stripes do not fill the last bytes of one.
                let segment = file_segment(member);
                let member = (member + member / 64 + 2 * segment).next_multiple_of(segment);
                Ok(shape(unit, member))
            }
        }
    }

    /// The shape that a volume has after it has grown to `size` bytes. An array that grows takes a little
    /// more of its members than one that is made: checksums for its next growth, half a percent at most.
    ///
    /// # Errors
    /// [`Error::Shape`] for less than it has.
    pub(crate) fn grown(&self, size: u64) -> Result<Shape> {
        if size < self.size {
            let (now, asked) = (format_size(self.size), format_size(size));
            return Err(Error::Shape(format!(
                "it has {now}, and does not shrink to {asked}: make a smaller volume, and copy the data"
            )));
        }
        let fitted = Shape::fit(self.layout, self.width, self.spares, self.unit, size)?.member_size;
        let member = match self.layout {
            // Its segments stay as large as they are.
            VolumeLayout::Files(_) => fitted.next_multiple_of(file_segment(self.member_size)),
            VolumeLayout::Single => fitted,
            VolumeLayout::Array(_) => fitted + fitted / 200 + 16 * self.unit,
        };
        let member_size = member.next_multiple_of(ROUND).max(self.member_size);
        Ok(Shape { size, member_size, ..*self })
    }

    /// Members and spares.
    pub fn members(&self) -> usize {
        self.width + self.spares
    }

    /// How many members may be missing.
    pub fn redundancy(&self) -> usize {
        match self.layout {
            VolumeLayout::Single => 0,
            VolumeLayout::Array(layout) => {
                Geometry::fit(layout, self.width, self.unit, self.member_size).map_or(0, |g| g.redundancy())
            }
            VolumeLayout::Files(_) => self.layout.file_stripe(self.width).map_or(0, |(_, parity)| parity),
        }
    }

    /// Bytes of all namespaces.
    pub fn bytes(&self) -> u64 {
        self.member_size * self.members() as u64
    }
}

/// Most members of a file system: as many as a stripe can have units.
const MAX_FILE_WIDTH: usize = 64;
/// Smallest stripe unit of a file system.
const FILE_UNIT_LEAST: u64 = 64 << 10;

/// Bytes of a segment on members of this size, of a file system: a power of two.
pub fn file_segment(member_size: u64) -> u64 {
    let suited = member_size / SEGMENTS;
    let power = if suited == 0 { 1 } else { 1 << suited.ilog2() };
    power.clamp(SEGMENT_LEAST, SEGMENT_MOST)
}

/// Bytes of the smallest member whose array has `size` bytes, but for the rounding.
fn array_member(layout: Layout, width: usize, unit: u64, size: u64) -> Result<u64> {
    let fit = |member: u64| Geometry::fit(layout, width, unit, member);
    let shape = |e: longhaul_array::LayoutError| Error::Shape(e.to_string());
    // The regions before the data take a part that depends on the size: the guess rises by what is
    // missing, which is less each time.
    let mut member = match fit(u64::from(u32::MAX)) {
        Ok(geometry) => size / geometry.stripe() * unit,
        Err(e) => return Err(shape(e)),
    };
    loop {
        match fit(member) {
            Ok(geometry) if geometry.size() >= size => return Ok(member),
            Ok(geometry) => member += (size - geometry.size()).div_ceil(geometry.stripe()) * unit,
            Err(longhaul_array::LayoutError::TooSmall { least, .. }) => member = least.max(member + 1),
            Err(e) => return Err(shape(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_grown_volume_has_room_for_what_its_array_takes() {
        const MIB: u64 = 1 << 20;
        for (layout, width) in
            [(Layout::Mirror, 2), (Layout::Parity, 4), (Layout::DoubleParity, 6), (Layout::Stripe, 3)]
        {
            for sizes in [[100 * MIB, 101 * MIB, 300 * MIB], [5000 * MIB, 20_000 * MIB, 80_001 * MIB]] {
                let layout = VolumeLayout::Array(layout);
                let mut shape = Shape::fit(layout, width, 0, 256 << 10, sizes[0]).expect("fits");
                let VolumeLayout::Array(kind) = layout else { unreachable!() };
                let mut array = Geometry::fit(kind, width, shape.unit, shape.member_size).expect("fits");
                for size in &sizes[1..] {
                    shape = shape.grown(*size).expect("grows");
                    array = array.grown(shape.member_size).expect("grows");
                    assert!(array.size() >= *size, "{kind}: {} of {size}", array.size());
                }
                assert!(shape.grown(sizes[1]).expect_err("smaller").to_string().contains("does not shrink"));
            }
        }
    }

    #[test]
    fn layouts_are_read_back() {
        for name in ["single", "stripe", "mirror", "stripe+mirror", "parity", "double-parity"] {
            let layout: VolumeLayout = name.parse().expect("a layout");
            assert_eq!(layout.to_string(), name);
            let text = serde_json::to_string(&layout).expect("written");
            assert_eq!(serde_json::from_str::<VolumeLayout>(&text).expect("read"), layout);
        }
        let files: VolumeLayout = "files+parity".parse().expect("a layout");
        assert_eq!(
            (files.to_string().as_str(), files.is_files(), files.has_array()),
            ("files+parity", true, false)
        );
        assert!(!VolumeLayout::names().any(|name| name.starts_with("files")));
        let error = "raid5".parse::<VolumeLayout>().expect_err("unknown");
        assert!(error.ends_with("double-parity, single"), "{error}");
    }

    #[test]
    fn the_width_follows_the_failure_domains() {
        let width = |name: &str, domains| name.parse::<VolumeLayout>().expect(name).suited_width(domains);
        assert_eq!((width("parity", 6), width("double-parity", 20), width("stripe", 3)), (6, 8, 3));
        assert_eq!((width("mirror", 6), width("stripe+mirror", 5), width("single", 6)), (2, 4, 1));
        let least = |name: &str| name.parse::<VolumeLayout>().expect(name).least_width();
        assert_eq!((least("single"), least("mirror"), least("double-parity")), (1, 2, 3));
        assert_eq!((least("files+stripe"), least("files+parity"), least("files+double-parity")), (1, 2, 3));
    }

    #[test]
    fn the_members_of_a_file_system_have_room_for_its_content() {
        const MIB: u64 = 1 << 20;
        for (layout, width, stripe) in [
            (Layout::Stripe, 3, (3, 0)),
            (Layout::Mirror, 2, (1, 1)),
            (Layout::Mirror, 5, (1, 1)),
            (Layout::Parity, 6, (5, 1)),
            (Layout::DoubleParity, 6, (4, 2)),
        ] {
            let layout = VolumeLayout::Files(layout);
            assert_eq!(layout.file_stripe(width), Some(stripe));
            for size in [1, 100 * MIB, 1 << 40] {
                let shape = Shape::fit(layout, width, 0, 256 << 10, size).expect("fits");
                let segment = file_segment(shape.member_size);
                let room = |shape: &Shape| {
                    let whole = shape.member_size / segment * segment * width as u64;
                    whole * stripe.0 as u64 / (stripe.0 + stripe.1) as u64
                };
                assert!(room(&shape) >= size, "{layout} {size}");
                assert_eq!(shape.redundancy(), stripe.1);
                // Its segments stay as large as they are.
                let grown = shape.grown(size * 2).expect("grows");
                assert!(room(&grown) >= size * 2, "{layout} {size}");
            }
        }
        for (layout, width, spares, unit) in [
            (Layout::Mirror, 1, 0, 256 << 10),
            (Layout::Parity, 1, 0, 256 << 10),
            (Layout::DoubleParity, 2, 0, 256 << 10),
            (Layout::StripeMirror, 4, 0, 256 << 10),
            (Layout::Parity, 3, 1, 256 << 10),
            (Layout::Parity, 3, 0, 3 << 16),
            (Layout::Parity, 65, 0, 256 << 10),
        ] {
            let shape = Shape::fit(VolumeLayout::Files(layout), width, spares, unit, MIB);
            assert!(matches!(shape, Err(Error::Shape(_))), "{shape:?}");
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let parity = VolumeLayout::Array(Layout::Parity);
        for (layout, width, spares, unit, size) in [
            (VolumeLayout::Single, 2, 0, 0, 1),
            (VolumeLayout::Single, 1, 1, 0, 1),
            (VolumeLayout::Single, 1, 0, 0, 0),
            (parity, 1, 0, 256 << 10, 1),
            (parity, 3, 17, 256 << 10, 1),
            (parity, 3, 0, 1000, 1),
            (parity, 3, 0, 256 << 10, u64::MAX),
            (VolumeLayout::Array(Layout::StripeMirror), 3, 0, 256 << 10, 1),
        ] {
            let shape = Shape::fit(layout, width, spares, unit, size);
            assert!(matches!(shape, Err(Error::Shape(_))), "{shape:?}");
        }
    }

    proptest! {
        #[test]
        fn a_volume_fits_and_wastes_little(
            code in 0usize..5, width in 2usize..20, unit in 12u32..23, size in 1u64..1 << 50,
        ) {
            let layout = Layout::ALL[code];
            let width = if layout == Layout::StripeMirror { width.next_multiple_of(2) } else { width.max(3) };
            let unit = 1 << unit;
            let shape = Shape::fit(VolumeLayout::Array(layout), width, 1, unit, size).expect("fits");
            let geometry = Geometry::fit(layout, width, unit, shape.member_size).expect("fits");
            prop_assert!(geometry.size() >= size);
            // A member that is smaller by more than the rounding is too small.
            let smaller = shape.member_size.saturating_sub(ROUND + 2 * unit);
            let less = Geometry::fit(layout, width, unit, smaller).map_or(0, |g| g.size());
            prop_assert!(less < size, "{less} of {size} on {smaller}");
        }
    }
}
