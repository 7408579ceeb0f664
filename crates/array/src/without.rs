//! Mechanisms that can be switched off, to show in simulations that each is needed (the feature
//! `switch-off`).

use crate::core::Core;

/// A mechanism that protects data. Without it:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "switch-off"),
    expect(unreachable_pub, reason = "it is public where it can be used")
)]
pub enum Mechanism {
    /// Partial writes go directly to their members.
    Journal,
    /// Writes under way are not marked.
    Intent,
    /// Any content of a member is accepted.
    Checksums,
    /// Heartbeats are neither written nor read.
    Fence,
    /// The loss of a member is not recorded on the others.
    Publish,
    /// Members that may have lost their cache are not verified.
    Doubt,
    /// Reconstructions are not compared with the checksums of their blocks.
    Vouch,
    /// Records from before a member was offline may be replayed afterwards.
    Pass,
    /// Full stripes are zeroed without an intent mark.
    ZeroIntent,
    /// Repairs are left in the caches of members.
    RepairFlush,
    /// The recorded progress of a rebuild is one row ahead.
    Progress,
    /// Sets of members that were used apart from each other are taken for one.
    Apart,
    /// Both copies of a superblock are written to one slot.
    Slots,
    /// A host does not read the heartbeats again after writing its own.
    SecondLook,
    /// Writes do not wait for a recent check of the heartbeat.
    Gate,
    /// Members are not reserved.
    Reservations,
    /// Reads do not wait for a recent heartbeat.
    Lease,
}

impl Mechanism {
    /// All mechanisms that a simulation may leave out.
    #[cfg(feature = "switch-off")]
    pub const ALL: [Mechanism; 17] = [
        Mechanism::Journal,
        Mechanism::Intent,
        Mechanism::Checksums,
        Mechanism::Fence,
        Mechanism::Publish,
        Mechanism::Doubt,
        Mechanism::Vouch,
        Mechanism::Pass,
        Mechanism::ZeroIntent,
        Mechanism::RepairFlush,
        Mechanism::Progress,
        Mechanism::Apart,
        Mechanism::Slots,
        Mechanism::SecondLook,
        Mechanism::Gate,
        Mechanism::Reservations,
        Mechanism::Lease,
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
    /// Whether a mechanism is switched off.
    #[cfg(feature = "switch-off")]
    pub(crate) fn lacks(&self, what: Mechanism) -> bool {
        self.without == Some(what)
    }

    /// Always false without the feature.
    #[cfg(not(feature = "switch-off"))]
    pub(crate) const fn lacks(&self, _: Mechanism) -> bool {
        false
    }
}

impl Core {
    /// Whether a mechanism is switched off.
    pub(crate) fn lacks(&self, what: Mechanism) -> bool {
        self.options.lacks(what)
    }
}
