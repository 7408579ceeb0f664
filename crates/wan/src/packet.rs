//! Packets as a TUN device passes them: a virtio-net header, then an IP packet that may stand for
//! many on the wire (segmentation offload).
//!
//! Such a large packet is cut here where the model treats its packets separately: a lost one, a
//! full queue. Each part is then again a packet with offloads, whose payload checksums the kernel
//! computes. So only headers are changed: lengths, identification, sequence number, flags, the IPv4
//! header's checksum, and the pseudo header's sum.
//!
//! Source: virtio 1.2, §5.1.6 "Device Operation" of the network device; RFC 9293 §3.1, RFC 768, RFC
//! 791, RFC 8200 for the headers.

#[cfg(test)]
mod tests;

/// Length of the virtio-net header before each packet.
pub(crate) const VNET: usize = 10;

/// Longest packet with its virtio-net header, in bytes: the largest payload of
/// IPv6 behind its header.
pub(crate) const MAX: usize = VNET + 40 + 65_535;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Set beside a TCP type: the first segment carries CWR.
const GSO_ECN: u8 = 0x80;

const TCP: u32 = 6;
const UDP: u32 = 17;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// What a packet is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Packets on the wire; at least one.
    pub(crate) count: u32,
    /// Bytes of IP and transport header that each of them has; none if it
    /// cannot be cut.
    pub(crate) header: u32,
    /// Bytes behind the header in all.
    payload: u32,
    /// Bytes behind the header in each but the last.
    segment: u32,
    /// Where the transport header begins, behind the virtio-net header.
    transport: u32,
    tcp: bool,
}

impl Shape {
    /// Looks at a packet with its virtio-net header.
    pub(crate) fn of(packet: &[u8]) -> Shape {
        Shape::segmented(packet).unwrap_or(Shape::single(packet.len().saturating_sub(VNET)))
    }

    /// A packet that cannot be cut.
    pub(crate) fn single(len: usize) -> Shape {
        let len = len as u32;
        Shape { count: 1, header: 0, payload: len, segment: len.max(1), transport: 0, tcp: false }
    }

    fn segmented(packet: &[u8]) -> Option<Shape> {
        let (vnet, ip) = packet.split_at_checked(VNET)?;
        let [flags, kind] = [vnet[0], vnet[1] & !GSO_ECN];
        let [_, segment, transport, _] = [2, 4, 6, 8].map(|at| u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
        if flags & NEEDS_CSUM == 0 || segment == 0 || !matches!(ip.first()? >> 4, 4 | 6) {
            return None;
        }
        let at = usize::from(transport);
        let (tcp, header) = match kind {
            GSO_TCPV4 | GSO_TCPV6 => (true, at + usize::from(ip.get(at + 12)? >> 4) * 4),
            GSO_UDP_L4 => (false, at + 8),
            _ => return None,
        };
        let payload = ip.len().checked_sub(header).filter(|n| *n > 0)? as u32;
        let segment = u32::from(segment);
        let count = payload.div_ceil(segment);
        Some(Shape { count, header: header as u32, payload, segment, transport: transport.into(), tcp })
    }

    /// IP bytes on the wire of the packets `from..to`.
    pub(crate) fn wire(&self, from: u32, to: u32) -> u64 {
        let payload = (to * self.segment).min(self.payload) - from * self.segment;
        u64::from(payload) + u64::from(to - from) * u64::from(self.header)
    }

    /// IP bytes on the wire of each packet but the last, which may be shorter.
    pub(crate) fn unit(&self) -> u64 {
        u64::from(self.segment + self.header)
    }

    /// Room that the packets `from..to` take as one packet with offloads.
    pub(crate) fn cut_len(&self, from: u32, to: u32) -> usize {
        let payload = (to * self.segment).min(self.payload) - from * self.segment;
        VNET + (self.header + payload) as usize
    }

    /// Writes the packets `from..to` of `packet` as one packet with offloads
    /// to the beginning of `out`, which has room for
    /// [`cut_len`](Self::cut_len) bytes.
    pub(crate) fn cut(&self, packet: &[u8], from: u32, to: u32, out: &mut [u8]) {
        if from == 0 && to == self.count {
            return out[..packet.len()].copy_from_slice(packet);
        }
        let len = self.cut_len(from, to);
        let head = VNET + self.header as usize;
        let begin = head + (from * self.segment) as usize;
        let out = &mut out[..len];
        out[..head].copy_from_slice(&packet[..head]);
        out[head..].copy_from_slice(&packet[begin..begin + len - head]);
        let (vnet, ip) = out.split_at_mut(VNET);
        vnet[2..4].copy_from_slice(&(self.header as u16).to_ne_bytes());
        if to - from == 1 {
            vnet[1] = GSO_NONE;
            vnet[4..6].fill(0);
        } else if from > 0 {
            vnet[1] &= !GSO_ECN;
        }
        let addresses = network(ip, from);
        self.transport(&mut ip[self.transport as usize..], addresses, from, to);
    }

    /// Updates the transport header; `sum` is that of the addresses.
    fn transport(&self, header: &mut [u8], sum: u32, from: u32, to: u32) {
        let len = header.len() as u32;
        let sum = |protocol| fold(sum + protocol + len).to_be_bytes();
        if !self.tcp {
            header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            return header[6..8].copy_from_slice(&sum(UDP));
        }
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        header[4..8].copy_from_slice(&sequence.wrapping_add(from * self.segment).to_be_bytes());
        if from > 0 {
            header[13] &= !CWR;
        }
        if to < self.count {
            header[13] &= !(FIN | PSH);
        }
        header[16..18].copy_from_slice(&sum(TCP));
    }
}

/// Updates the IP header of a part that begins with packet `from`; returns the
/// sum of the addresses.
fn network(ip: &mut [u8], from: u32) -> u32 {
    let len = ip.len() as u16;
    if ip[0] >> 4 == 6 {
        ip[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        return sum16(&ip[8..40]);
    }
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(from as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let header = usize::from(ip[0] & 15) * 4;
    let sum = !fold(sum16(&ip[..header]));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    sum16(&ip[12..20])
}

/// Sum of the 16-bit words of `bytes` (RFC 1071), not folded; fits for headers.
fn sum16(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
