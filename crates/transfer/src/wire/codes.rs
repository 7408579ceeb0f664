//! The numbers that stand for choices in frames. They are those of the protocol
//! version, and never follow the order of a list in the code.

use super::codec::{Fields, Malformed};
use super::frame::{Action, Limit, Op, Stage};
use super::hello::{Compare, CopyDirection, Durability, Hash, Placement, RefusalKind};

/// A choice that a frame has as a number of one byte.
pub(crate) trait Coded: Copy + PartialEq + 'static {
    /// Its name in the error for a number that is not in the table.
    const NAME: &'static str;
    /// Each choice with its number.
    const CODES: &'static [(Self, u8)];

    /// The number that stands for the variant in frames.
    fn code(self) -> u8 {
        // The test below finds a choice that is not in the table.
        Self::CODES.iter().find(|(choice, _)| *choice == self).map_or(u8::MAX, |(_, code)| *code)
    }

    /// The choice of a number, if there is one.
    fn of_code(code: u8) -> Option<Self> {
        Self::CODES.iter().find(|(_, own)| *own == code).map(|(choice, _)| *choice)
    }

    /// Takes the next byte of a frame for its number.
    fn decode_code(from: &mut Fields<'_>) -> Result<Self, Malformed> {
        Self::of_code(from.u8()?).ok_or(Malformed::Value(Self::NAME))
    }
}

macro_rules! codes {
    ($($type:ty, $name:literal: { $($choice:expr => $code:literal),+ $(,)? })+) => {
        $(impl Coded for $type {
            const NAME: &'static str = $name;
            const CODES: &'static [($type, u8)] = &[$(($choice, $code)),+];
        })+
    };
}

codes! {
    bool, "flag": { false => 0, true => 1 }
    CopyDirection, "direction": {
        CopyDirection::Push => 0, CopyDirection::Pull => 1, CopyDirection::Onward => 2, CopyDirection::Mount => 3,
    }
    Hash, "checksum": { Hash::Quick => 0, Hash::Strong => 1 }
    Compare, "comparison": {
        Compare::Nothing => 0, Compare::Exists => 1, Compare::Size => 2, Compare::Mtime => 3,
        Compare::Checksum => 4,
    }
    Durability, "durability": { Durability::None => 0, Durability::End => 1, Durability::File => 2 }
    Placement, "place": { Placement::Guess => 0, Placement::Into => 1, Placement::Contents => 2 }
    RefusalKind, "refusal": {
        RefusalKind::NotAllowed => 0, RefusalKind::Version => 1, RefusalKind::NoSuchPath => 2,
        RefusalKind::Busy => 3, RefusalKind::Protocol => 4, RefusalKind::Storage => 5,
        RefusalKind::Unreachable => 6, RefusalKind::Failed => 7, RefusalKind::TimedOut => 8,
    }
    Op, "operation": {
        Op::Scan => 0, Op::Read => 1, Op::Changed => 2, Op::Write => 3, Op::Metadata => 4,
        Op::Verify => 5, Op::Delete => 6, Op::Skip => 7,
    }
    Action, "action": {
        Action::Send => 0, Action::Make => 1, Action::Metadata => 2, Action::Delete => 3,
    }
    Stage, "stage": { Stage::Scan => 0, Stage::Read => 1, Stage::Send => 2, Stage::Write => 3 }
    // No limit is 0.
    Limit, "limit": {
        Limit::Stage(Stage::Scan) => 1, Limit::Stage(Stage::Read) => 2,
        Limit::Stage(Stage::Send) => 3, Limit::Stage(Stage::Write) => 4,
        Limit::Rate => 5, Limit::Silence => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RelPath;
    use crate::wire::frame::{Frame, Planned, Trouble, Tuned};
    use crate::wire::hello::{Refusal, VERSION};
    use std::fmt::Debug;

    fn hold<T: Coded + Debug>(choices: usize) {
        assert_eq!(T::CODES.len(), choices, "{}: all choices have a number", T::NAME);
        for (choice, code) in T::CODES {
            assert_eq!((choice.code(), T::of_code(*code)), (*code, Some(*choice)), "{}", T::NAME);
        }
        assert_eq!(T::of_code(u8::MAX), None);
    }

    #[test]
    fn each_choice_has_a_number_of_its_own() {
        hold::<bool>(2);
        hold::<CopyDirection>(4);
        hold::<Hash>(2);
        hold::<Compare>(5);
        hold::<Durability>(3);
        hold::<Placement>(3);
        hold::<RefusalKind>(9);
        hold::<Op>(8);
        hold::<Action>(4);
        hold::<Stage>(4);
        hold::<Limit>(6);
    }
    /// Peers of this version know these bytes: they change with the version alone.
    #[test]
    fn bytes_of_version_4_are_fixed() {
        let path = RelPath::new(b"a/b").expect("a path");
        let frames = [
            Frame::Trouble(Trouble { path: path.clone(), op: Op::Skip, message: "why".into() }),
            Frame::Planned(Planned { path, action: Action::Delete }),
            Frame::Tuned(Tuned { stage: Stage::Write, from: 1, to: 2, why: "more".into() }),
            Frame::Limit(Some(Limit::Silence)),
            Frame::Limit(None),
        ];
        let mut bytes: Vec<u8> = frames.into_iter().flat_map(|frame| frame.encode().0).collect();
        Refusal::new(RefusalKind::TimedOut, "late").encode(&mut bytes);
        let text: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = "0a000b0000000000070300612f620300776879\
                     1200060000000000030300612f62\
                     0f000b0000000000030100020004006d6f7265\
                     100001000000000006100001000000000000\
                     0804006c617465";
        assert_eq!((VERSION, text.concat().as_str()), (4, known));
    }
}
