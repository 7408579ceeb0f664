//! What the SGL of a command says about its data.

use longhaul_wire::command::{Direction, SglKind, Sqe, is_fabrics};
use longhaul_wire::completion::Status;

/// Where the data of a command is, and how long it is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKind {
    None,
    InCapsule(u32),
    Host(u32),
}

/// Checks the descriptor of a command whose capsule carries `in_capsule`
/// bytes of data.
#[inline]
pub(super) fn data_of(sqe: &Sqe, in_capsule: u32) -> Result<DataKind, Status> {
    let direction = sqe.direction();
    if direction == Direction::None {
        //= NVMe Base 2.1, Data Pointer: a command without data ignores it; data in its capsule belongs to nothing
        return if in_capsule == 0 { Ok(DataKind::None) } else { Err(Status::INVALID_FIELD) };
    }
    //= NVMe Base 2.1, PSDT: PRPs are not used over fabrics
    if sqe.psdt() == 0 && !is_fabrics(sqe.opcode) {
        return Err(Status::INVALID_FIELD);
    }
    let len = sqe.sgl.length();
    match sqe.sgl.kind() {
        //= NVMe-TCP 1.1, Data transfer: data that is not in the capsule is described by a Transport SGL Data Block
        SglKind::Transport if in_capsule == 0 => {
            Ok(if len == 0 { DataKind::None } else { DataKind::Host(len) })
        }
        SglKind::Transport => Err(Status::DATA_SGL_LENGTH),
        SglKind::InCapsule { .. } if direction != Direction::ToController => Err(Status::SGL_TYPE),
        //= NVMe Base 2.1, SGL Data Block (offset): data begins where ICDOFF, which is 0, says
        SglKind::InCapsule { offset } if offset != 0 => Err(Status::SGL_OFFSET),
        //= NVMe-TCP 1.1, CapsuleCmd PDU: the capsule carries exactly the data that is described
        SglKind::InCapsule { .. } if len != in_capsule => Err(Status::DATA_SGL_LENGTH),
        SglKind::InCapsule { .. } => Ok(if len == 0 { DataKind::None } else { DataKind::InCapsule(len) }),
        //= NVMe Base 2.1, MSDBD: segments would mean more than the one descriptor that is supported
        SglKind::Segment => Err(Status::INVALID_SGL_COUNT),
        SglKind::DataBlock | SglKind::Keyed | SglKind::Unknown => Err(Status::SGL_TYPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_wire::command::Sgl;

    const WRITE: u8 = 0x01;
    const READ: u8 = 0x02;
    const FLUSH: u8 = 0x00;

    fn check(opcode: u8, sgl: Sgl, in_capsule: u32) -> Result<DataKind, Status> {
        data_of(&Sqe::new(opcode).with_sgl(sgl), in_capsule)
    }

    #[test]
    fn good_descriptors() {
        assert_eq!(check(WRITE, Sgl::in_capsule(0, 512), 512), Ok(DataKind::InCapsule(512)));
        assert_eq!(check(WRITE, Sgl::in_capsule(0, 0), 0), Ok(DataKind::None));
        assert_eq!(check(WRITE, Sgl::transport(512), 0), Ok(DataKind::Host(512)));
        assert_eq!(check(READ, Sgl::transport(512), 0), Ok(DataKind::Host(512)));
        assert_eq!(check(READ, Sgl::none(), 0), Ok(DataKind::None));
        assert_eq!(check(FLUSH, Sgl::make(1, 2, 0x77), 0), Ok(DataKind::None));
    }

    //= test: NVMe Base 2.1, SGL Data Block (offset)
    //= test: NVMe Base 2.1, Data Pointer
    //= test: NVMe Base 2.1, MSDBD
    //= test: NVMe Base 2.1, PSDT
    //= test: NVMe-TCP 1.1, CapsuleCmd PDU
    #[test]
    fn bad_descriptors_get_their_status() {
        let offset = Sgl::in_capsule(4, 512);
        assert_eq!(check(WRITE, offset, 516), Err(Status::SGL_OFFSET));
        assert_eq!(check(WRITE, Sgl::in_capsule(0, 512), 508), Err(Status::DATA_SGL_LENGTH));
        assert_eq!(check(WRITE, Sgl::in_capsule(0, 512), 0), Err(Status::DATA_SGL_LENGTH));
        assert_eq!(check(WRITE, Sgl::transport(512), 512), Err(Status::DATA_SGL_LENGTH));
        assert_eq!(check(READ, Sgl::in_capsule(0, 512), 0), Err(Status::SGL_TYPE));
        assert_eq!(check(FLUSH, Sgl::none(), 512), Err(Status::INVALID_FIELD));
        for segment in [0x20, 0x30, 0x10] {
            assert_eq!(check(WRITE, Sgl::make(0, 16, segment), 0), Err(Status::INVALID_SGL_COUNT));
        }
        for other in [0x00, 0x40, 0x5B, 0xF0] {
            assert_eq!(check(READ, Sgl::make(0, 512, other), 0), Err(Status::SGL_TYPE));
        }
        let mut prp = Sqe::new(READ).with_sgl(Sgl::transport(512));
        prp.flags = 0;
        assert_eq!(data_of(&prp, 0), Err(Status::INVALID_FIELD));
    }
}
