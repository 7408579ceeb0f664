use super::*;

const CWR_ECE_FIN_PSH_ACK: u8 = 0b1101_1001;
const SEQUENCE: u32 = 0xffff_f000;
const ID: u16 = 0xfffe;

#[derive(Clone, Copy, Debug)]
struct Kind {
    six: bool,
    tcp: bool,
    /// Bytes of options in the TCP header.
    options: usize,
}

const KINDS: [Kind; 5] = [
    Kind { six: false, tcp: true, options: 12 },
    Kind { six: false, tcp: true, options: 0 },
    Kind { six: true, tcp: true, options: 12 },
    Kind { six: false, tcp: false, options: 0 },
    Kind { six: true, tcp: false, options: 0 },
];

impl Kind {
    fn network(self) -> usize {
        if self.six { 40 } else { 20 }
    }

    fn header(self) -> usize {
        self.network() + if self.tcp { 20 + self.options } else { 8 }
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// The sum of 16-bit words as RFC 1071 defines it, with no regard to speed.
fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for (i, byte) in bytes.iter().enumerate() {
        sum += u64::from(*byte) << if i % 2 == 0 { 8 } else { 0 };
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The value of the checksum field from which the kernel computes the checksum.
fn pseudo(ip: &[u8], kind: Kind) -> u16 {
    let protocol: u8 = if kind.tcp { 6 } else { 17 };
    let mut header = if kind.six { ip[8..40].to_vec() } else { ip[12..20].to_vec() };
    header.extend(((ip.len() - kind.network()) as u32).to_be_bytes());
    header.extend([0, 0, 0, protocol]);
    plain_sum(&header)
}

/// A packet as the kernel hands it over, with `len` bytes in segments of `mss`.
fn large(kind: Kind, len: usize, mss: usize) -> Vec<u8> {
    let at = kind.network();
    let mut ip = vec![0; kind.header()];
    ip.extend(payload(len));
    let total = ip.len();
    if kind.six {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        ip[6] = if kind.tcp { 6 } else { 17 };
        ip[8..40].copy_from_slice(&payload(32));
    } else {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&ID.to_be_bytes());
        ip[8..10].copy_from_slice(&[64, if kind.tcp { 6 } else { 17 }]);
        ip[12..20].copy_from_slice(&[10, 77, 1, 1, 10, 77, 1, 2]);
        let sum = !plain_sum(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    ip[at..at + 4].copy_from_slice(&[0x13, 0x88, 0xc0, 0x01]);
    if kind.tcp {
        ip[at + 4..at + 8].copy_from_slice(&SEQUENCE.to_be_bytes());
        ip[at + 12] = (((20 + kind.options) / 4) << 4) as u8;
        ip[at + 13] = CWR_ECE_FIN_PSH_ACK;
        ip[at + 20..at + 20 + kind.options].fill(1);
    } else {
        ip[at + 4..at + 6].copy_from_slice(&((total - at) as u16).to_be_bytes());
    }
    let offset = if kind.tcp { 16 } else { 6 };
    let sum = pseudo(&ip, kind);
    ip[at + offset..at + offset + 2].copy_from_slice(&sum.to_be_bytes());
    let gso = match (kind.tcp, kind.six) {
        (true, false) => GSO_TCPV4 | GSO_ECN,
        (true, true) => GSO_TCPV6 | GSO_ECN,
        (false, _) => GSO_UDP_L4,
    };
    let mut packet = vec![NEEDS_CSUM, gso];
    for word in [kind.header() as u16, mss as u16, at as u16, offset as u16] {
        packet.extend(word.to_ne_bytes());
    }
    packet.extend(ip);
    packet
}

/// Checks every field of the packets `from..to` of one with `len` bytes.
fn check(part: &[u8], kind: Kind, len: usize, mss: usize, from: usize, to: usize) {
    let (count, at) = (len.div_ceil(mss), kind.network());
    let (vnet, ip) = part.split_at(VNET);
    let content = &payload(len)[from * mss..len.min(to * mss)];
    assert_eq!(&ip[kind.header()..], content);
    assert_eq!(vnet[0], NEEDS_CSUM);
    let word = |at| u16::from_ne_bytes([vnet[at], vnet[at + 1]]);
    if to - from == 1 {
        assert_eq!((vnet[1], word(4)), (GSO_NONE, 0));
    } else {
        assert_eq!(word(4), mss as u16);
        assert_eq!(vnet[1] & GSO_ECN != 0, kind.tcp && from == 0, "CWR is in the first segment");
    }
    if kind.six {
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), ID.wrapping_add(from as u16));
        assert_eq!(plain_sum(&ip[..20]), 0xffff, "checksum of the header");
    }
    let offset = at + if kind.tcp { 16 } else { 6 };
    assert_eq!(u16::from_be_bytes([ip[offset], ip[offset + 1]]), pseudo(ip, kind));
    if !kind.tcp {
        assert_eq!(usize::from(u16::from_be_bytes([ip[at + 4], ip[at + 5]])), ip.len() - at);
        return;
    }
    let sequence = u32::from_be_bytes([ip[at + 4], ip[at + 5], ip[at + 6], ip[at + 7]]);
    assert_eq!(sequence, SEQUENCE.wrapping_add((from * mss) as u32));
    let mut flags = CWR_ECE_FIN_PSH_ACK;
    if from > 0 {
        flags &= !CWR;
    }
    if to < count {
        flags &= !(FIN | PSH);
    }
    assert_eq!(ip[at + 13], flags, "packets {from}..{to} of {count}");
    assert_eq!(&ip[at + 20..at + 20 + kind.options], vec![1; kind.options]);
}

#[test]
fn every_part_of_a_large_packet_is_a_sound_packet() {
    for kind in KINDS {
        for (len, mss) in [(5000, 1000), (5001, 1000), (4999, 1000), (60_000, 1448), (1001, 1000)] {
            let packet = large(kind, len, mss);
            let shape = Shape::of(&packet);
            assert_eq!(shape.count as usize, len.div_ceil(mss), "{kind:?}");
            assert_eq!(shape.header as usize, kind.header());
            for from in 0..shape.count {
                for to in from + 1..=shape.count {
                    let mut out = vec![0xee; MAX];
                    shape.cut(&packet, from, to, &mut out);
                    let part = &out[..shape.cut_len(from, to)];
                    check(part, kind, len, mss, from as usize, to as usize);
                    assert!(out[part.len()..].iter().all(|b| *b == 0xee), "wrote past the end");
                }
            }
        }
    }
}

#[test]
fn parts_are_cut_again_like_the_whole() {
    for kind in KINDS {
        let packet = large(kind, 9_500, 1000);
        let (mut part, mut again) = (vec![0; MAX], vec![0; MAX]);
        Shape::of(&packet).cut(&packet, 3, 9, &mut part);
        part.truncate(Shape::of(&packet).cut_len(3, 9));
        let shape = Shape::of(&part);
        assert_eq!(shape.count, 6);
        shape.cut(&part, 2, 4, &mut again);
        check(&again[..shape.cut_len(2, 4)], kind, 9_500, 1000, 5, 7);
    }
}

#[test]
fn bytes_of_the_wire_count_every_header() {
    let shape = Shape::of(&large(KINDS[0], 4500, 1000));
    assert_eq!((shape.wire(0, 5), shape.unit()), (4500 + 5 * 52, 1052));
    assert_eq!((shape.wire(4, 5), shape.wire(1, 3)), (552, 2104));
    let single = Shape::single(1500);
    assert_eq!((single.count, single.wire(0, 1), single.unit()), (1, 1500, 1500));
}

#[test]
fn a_packet_of_an_unknown_kind_is_not_segmented() {
    let good = large(KINDS[0], 5000, 1000);
    let altered = |at: usize, to: u8| {
        let mut packet = good.clone();
        packet[at] = to;
        Shape::of(&packet)
    };
    let single = Shape::single(good.len() - VNET);
    assert_eq!(altered(0, 0), single, "no checksum to finish");
    assert_eq!(altered(1, 3), single, "an unknown kind");
    assert_eq!(altered(VNET, 0x25), single, "no version of IP");
    assert_eq!(altered(7, 0xff), single, "a transport header past the end");
    for len in 0..good.len().min(200) {
        // Whatever it makes of them, it does not fall.
        let shape = Shape::of(&good[..len]);
        assert!(shape.count >= 1);
    }
}
