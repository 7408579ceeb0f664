use super::*;
use zerocopy::FromBytes;

const DATA_TYPES: [PduType; 3] = [PduType::CapsuleCmd, PduType::H2CData, PduType::C2HData];

fn formats() -> impl Iterator<Item = Format> {
    (0..4 * 32).map(|i| Format { header_digest: i & 1 != 0, data_digest: i & 2 != 0, align: (i >> 2) as u8 })
}

#[test]
fn sizes_are_those_of_the_specification() {
    assert_eq!(size_of::<CommonHeader>(), COMMON_LEN);
    assert_eq!(size_of::<IcReq>(), IC_LEN);
    assert_eq!(size_of::<IcResp>(), IC_LEN);
    assert_eq!(size_of::<TermReq>(), TERM_REQ_LEN);
    assert_eq!(size_of::<CapsuleCmd>(), CAPSULE_CMD_LEN);
    assert_eq!(size_of::<CapsuleResp>(), CAPSULE_RESP_LEN);
    assert_eq!(size_of::<DataPdu>(), DATA_LEN);
}

#[test]
fn fields_are_where_a_term_req_says() {
    let common = CommonHeader { pdu_type: 6, flags: 1, hlen: 2, pdo: 3, plen: 4.into() };
    let data = DataPdu::new(common, 0x0808, 0x0a0a, 0x0c0c_0c0c, 0x1010_1010);
    let bytes = data.as_bytes();
    for (offset, byte) in [
        (field::TYPE, 6),
        (field::FLAGS, 1),
        (field::HLEN, 2),
        (field::PDO, 3),
        (field::PLEN, 4),
        (field::CCCID, 8),
        (field::TTAG, 10),
        (field::OFFSET, 12),
        (field::LENGTH, 16),
    ] {
        assert_eq!(bytes[offset as usize], byte, "field at {offset}");
    }
    let resp = IcResp::new(7, 3, 0x1234);
    let bytes = resp.as_bytes();
    assert_eq!((bytes[field::PDA as usize], bytes[field::DGST as usize]), (7, 3));
    assert_eq!(bytes[field::MAXH2CDATA as usize..][..4], [0x34, 0x12, 0, 0]);
    let term = TermReq::new(PduType::C2HTermReq, Fes::DataOutOfRange, 0x0102_0304, 72);
    assert_eq!(term.as_bytes()[..14], [3, 0, 24, 0, 96, 0, 0, 0, 4, 0, 4, 3, 2, 1]);
}

#[test]
fn codes_round_trip() {
    for code in 0..=u8::MAX {
        if let Some(t) = PduType::from_code(code) {
            assert_eq!(t as u8, code);
        }
    }
    assert_eq!((0..=u8::MAX).filter_map(PduType::from_code).count(), 9);
    for code in 0..=u16::MAX {
        assert_eq!(Fes::from_code(code).map(|f| f as u16), (1..=6).contains(&code).then_some(code));
    }
}

#[test]
fn what_is_built_passes_its_check() {
    for format in formats() {
        for pdu_type in DATA_TYPES {
            for data in [0, 1, 4, 512, 1 << 20] {
                let (common, pad) = CommonHeader::build(pdu_type, 0, data, format);
                let layout = common.check(pdu_type, format).expect("own header");
                assert_eq!((layout.data, usize::from(layout.pad)), (data, pad));
                let sum = u32::from(layout.header)
                    + u32::from(layout.header_digest)
                    + u32::from(layout.pad)
                    + layout.data
                    + u32::from(layout.data_digest);
                assert_eq!(sum, common.plen.get());
                assert!(usize::from(common.pdo) <= PDO_MAX);
                if data > 0 {
                    assert_eq!(u32::from(common.pdo) % (4 * (u32::from(format.align) + 1)), 0);
                }
            }
        }
    }
}

#[test]
fn setup_pdus_pass_and_reserved_flags_are_ignored() {
    let mut common = IcReq::new(0, 0, 0).common;
    common.flags = 0xff;
    assert!(common.check(PduType::IcReq, Format::default()).is_ok());
    for quoted in [0, 1, TERM_REQ_DATA_MAX] {
        let term = TermReq::new(PduType::H2CTermReq, Fes::SequenceError, 0, quoted);
        let layout = term.common.check(PduType::H2CTermReq, Format::default()).expect("valid");
        assert_eq!(layout.data, quoted as u32);
    }
}

/// Changes one thing and names the field that must be blamed.
#[test]
fn each_field_is_blamed_for_itself() {
    let blame = |pdu_type: PduType, format: Format, change: &dyn Fn(&mut CommonHeader)| {
        let (mut common, _) =
            CommonHeader::build(pdu_type, 0, if pdu_type.has_data() { 64 } else { 0 }, format);
        change(&mut common);
        common.check(pdu_type, format).expect_err("refused").offset
    };
    for format in formats() {
        for pdu_type in [DATA_TYPES.as_slice(), &[PduType::CapsuleResp, PduType::R2T]].concat() {
            assert_eq!(blame(pdu_type, format, &|h| h.hlen += 1), field::HLEN);
            assert_eq!(blame(pdu_type, format, &|h| h.flags ^= flags::HDGST), field::FLAGS);
            assert_eq!(blame(pdu_type, format, &|h| h.plen = 8.into()), field::PLEN);
        }
        for pdu_type in DATA_TYPES {
            assert_eq!(blame(pdu_type, format, &|h| h.flags ^= flags::DDGST), field::FLAGS);
            assert_eq!(blame(pdu_type, format, &|h| h.pdo = 0), field::PDO);
            assert_eq!(blame(pdu_type, format, &|h| h.pdo += 1), field::PDO);
            // No room left for data behind padding or before a data digest.
            let (common, pad) = CommonHeader::build(pdu_type, 0, 64, format);
            if pad > 0 || format.data_digest {
                let plen = u32::from(common.pdo) + 4 * u32::from(format.data_digest);
                assert_eq!(blame(pdu_type, format, &|h| h.plen = plen.into()), field::PLEN);
            }
        }
        for pdu_type in [PduType::CapsuleResp, PduType::R2T] {
            assert_eq!(blame(pdu_type, format, &|h| h.plen = u32::MAX.into()), field::PLEN);
        }
    }
    let none = Format::default();
    assert_eq!(blame(PduType::IcReq, none, &|h| h.plen = 129.into()), field::PLEN);
    assert_eq!(blame(PduType::IcResp, none, &|h| h.hlen = 127), field::HLEN);
    assert_eq!(blame(PduType::C2HTermReq, none, &|h| h.plen = 153.into()), field::PLEN);
}

#[test]
fn views_lie_over_any_bytes() {
    let bytes = [0xffu8; 129];
    assert_eq!(DataPdu::ref_from_bytes(&bytes[1..25]).expect("unaligned").length.get(), u32::MAX);
    assert!(IcReq::ref_from_bytes(&bytes).is_err(), "length must fit");
}
