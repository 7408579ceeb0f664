//! Parsers of arguments with a fixed set of values, which shell completions offer.

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::Error;
use clap::{Arg, Command};
use longhaul_array::Layout;
use longhaul_attach::Via;
use longhaul_load::Rw;
use longhaul_pool::VolumeLayout;
use longhaul_transfer::dataset;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

/// Parses by [`FromStr`], whose errors are precise, and offers `words` to completions.
#[derive(Clone, Debug)]
pub(crate) struct OneOf<T> {
    words: Vec<&'static str>,
    parses: PhantomData<fn() -> T>,
}

impl<T> OneOf<T> {
    fn new(words: impl IntoIterator<Item = &'static str>) -> OneOf<T> {
        OneOf { words: words.into_iter().collect(), parses: PhantomData }
    }
}

impl<T> TypedValueParser for OneOf<T>
where
    T: FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        StringValueParser::new().try_map(|text| text.parse::<T>()).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().map(PossibleValue::new)))
    }
}

/// Values of `bench --rw`.
pub(crate) fn patterns() -> OneOf<Rw> {
    OneOf::new(Rw::ALL.map(Rw::name))
}

/// Values of `array create --layout`.
pub(crate) fn layouts() -> OneOf<Layout> {
    OneOf::new(Layout::ALL.map(Layout::name))
}

/// Values of `volume create --layout`.
pub(crate) fn volume_layouts() -> OneOf<VolumeLayout> {
    OneOf::new(VolumeLayout::names())
}

/// Values of `fs create --layout`.
pub(crate) fn file_layouts() -> OneOf<Layout> {
    OneOf::new([Layout::Parity, Layout::DoubleParity, Layout::Mirror, Layout::Stripe].map(Layout::name))
}

/// Layouts that need no superblock on the devices.
pub(crate) fn joins() -> OneOf<Layout> {
    OneOf::new([Layout::Stripe.name()])
}

/// Names of data sets.
pub(crate) fn data_sets() -> OneOf<String> {
    OneOf::new(dataset::DatasetKind::ALL.map(dataset::DatasetKind::name))
}

/// Names of I/O engines.
pub(crate) fn engines() -> OneOf<longhaul_engine::EngineKind> {
    OneOf::new(["auto", "uring", "epoll"])
}

/// Front ends of `--via`.
pub(crate) fn front_ends() -> impl TypedValueParser<Value = Via> {
    let about = |via| match via {
        Via::Auto => "The first that this machine has and permits: ublk, fuse, nbd, nvme",
        Via::Fuse => "A file served by FUSE; needs no root",
        Via::Nvme => "A block device of the kernel's NVMe/TCP host, over loopback",
        Via::Nbd => "A block device of the kernel's NBD client",
        Via::Ublk => "A block device of the kernel's ublk driver",
    };
    let values = Via::ALL.map(|via| PossibleValue::new(via.name()).help(about(via)));
    PossibleValuesParser::new(values).try_map(|text| text.parse::<Via>())
}
