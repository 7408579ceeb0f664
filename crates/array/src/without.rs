//! What keeps an array right, each to be left out where it is to be shown that
//! it would be missed: simulations have a switch for it (the feature
//! `switch-off`), and nothing else has.

use crate::core::Core;

/// Something that an array could seem to do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "switch-off"),
    expect(unreachable_pub, reason = "it is public where it can be used")
)]
pub enum Mechanism {
    /// Parts of stripes go straight to their places.
    Journal,
    /// Nobody says where writes are under way.
    Intent,
    /// Whatever a member returns is taken for what was written.
    Checksums,
    /// Nobody says that the array is in use, nor looks whether somebody does.
    Fence,
    /// The loss of a member is not written to the others.
    Publish,
    /// What a member may have lost with its cache is not looked for.
    Doubt,
    /// What comes of parity is not held against the checksum that it must have.
    Vouch,
    /// Records of before an absence may be replayed after it.
    Pass,
    /// Whole stripes are zeroed without their intent mark.
    ZeroIntent,
    /// Scrub writes what it repairs without an intent mark.
    ScrubIntent,
    /// The progress of a rebuild is one stripe more than the member was given.
    Progress,
    /// Sets of members that were used apart from each other are taken for one.
    Apart,
    /// Both copies of a superblock are written to one place.
    Slots,
    /// A host that takes possession does not look again afterwards.
    SecondLook,
    /// Writes do not wait for a recent look at the heartbeat.
    Gate,
}

impl Mechanism {
    /// All of them.
    #[cfg(feature = "switch-off")]
    pub const ALL: [Mechanism; 15] = [
        Mechanism::Journal,
        Mechanism::Intent,
        Mechanism::Checksums,
        Mechanism::Fence,
        Mechanism::Publish,
        Mechanism::Doubt,
        Mechanism::Vouch,
        Mechanism::Pass,
        Mechanism::ZeroIntent,
        Mechanism::ScrubIntent,
        Mechanism::Progress,
        Mechanism::Apart,
        Mechanism::Slots,
        Mechanism::SecondLook,
        Mechanism::Gate,
    ];
}

#[cfg(feature = "switch-off")]
impl std::str::FromStr for Mechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Mechanism, String> {
        let named = |what: &Mechanism| format!("{what:?}").eq_ignore_ascii_case(text);
        Mechanism::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Mechanism::ALL.map(|what| format!("{what:?}").to_lowercase()).join(", ");
            format!("'{text}' is nothing that can be left out: use one of {names}")
        })
    }
}

impl crate::Options {
    /// Whether something is left out.
    #[cfg(feature = "switch-off")]
    pub(crate) fn lacks(&self, what: Mechanism) -> bool {
        self.without == Some(what)
    }

    /// Nothing is left out.
    #[cfg(not(feature = "switch-off"))]
    pub(crate) const fn lacks(&self, _: Mechanism) -> bool {
        false
    }
}

impl Core {
    /// Whether the array does without something.
    pub(crate) fn lacks(&self, what: Mechanism) -> bool {
        self.options.lacks(what)
    }
}
