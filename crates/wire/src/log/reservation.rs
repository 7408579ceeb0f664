//! Reservation Notification log page (80h).

/// A change of a reservation or a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationNoticeKind {
    /// The host's registration was ended by another host.
    RegistrationPreempted,
    /// A reservation that the host is a registrant of was released.
    ReservationReleased,
    /// The host's reservation was ended by another host.
    ReservationPreempted,
}

impl ReservationNoticeKind {
    /// The value on the wire.
    pub fn code(self) -> u8 {
        match self {
            ReservationNoticeKind::RegistrationPreempted => 1,
            ReservationNoticeKind::ReservationReleased => 2,
            ReservationNoticeKind::ReservationPreempted => 3,
        }
    }

    /// From the value on the wire; none if the page is empty, or for a reserved value.
    pub fn from_code(code: u8) -> Option<ReservationNoticeKind> {
        match code {
            1 => Some(ReservationNoticeKind::RegistrationPreempted),
            2 => Some(ReservationNoticeKind::ReservationReleased),
            3 => Some(ReservationNoticeKind::ReservationPreempted),
            _ => None,
        }
    }

    /// Its bit in Reservation Notification Mask, where 1 means that it is not reported.
    pub fn mask_bit(self) -> u32 {
        1 << self.code()
    }
}

/// The oldest notice, as the page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationNotice {
    /// Counts notices; not 0.
    pub count: u64,
    /// The change of the reservation.
    pub kind: ReservationNoticeKind,
    /// Further notices that wait behind it, 255 at most.
    pub more: u8,
    /// NSID of the namespace with the reservation.
    pub nsid: u32,
}

impl ReservationNotice {
    /// Bytes of the page.
    pub const LEN: usize = 64;

    /// The page; all zero without a notice.
    pub fn page(notice: Option<ReservationNotice>) -> [u8; ReservationNotice::LEN] {
        let mut out = [0; ReservationNotice::LEN];
        if let Some(ReservationNotice { count, kind, more, nsid }) = notice {
            out[..8].copy_from_slice(&count.to_le_bytes());
            (out[8], out[9]) = (kind.code(), more);
            out[12..16].copy_from_slice(&nsid.to_le_bytes());
        }
        out
    }

    /// From the page; none if it is empty.
    pub fn decode(page: &[u8; ReservationNotice::LEN]) -> Option<ReservationNotice> {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let kind = ReservationNoticeKind::from_code(page[8])?;
        Some(ReservationNotice {
            count: number(&page[..8]),
            kind,
            more: page[9],
            nsid: number(&page[12..16]) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_back_from_its_page() {
        use ReservationNoticeKind::*;
        for kind in [RegistrationPreempted, ReservationReleased, ReservationPreempted] {
            let notice = ReservationNotice { count: 0x0102, kind, more: 3, nsid: 0x0A0B };
            let page = ReservationNotice::page(Some(notice));
            assert_eq!(page[..16], [2, 1, 0, 0, 0, 0, 0, 0, kind.code(), 3, 0, 0, 0x0B, 0x0A, 0, 0]);
            assert_eq!(ReservationNotice::decode(&page), Some(notice));
        }
        assert_eq!(ReservationNotice::page(None), [0; 64]);
        assert_eq!(ReservationNotice::decode(&[0; 64]), None);
    }
}
