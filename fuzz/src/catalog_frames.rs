//! Everything that a client of a catalog server may send, and a server, as bytes.
//!
//! Input: a byte that says which of them, then a stream of frames as it comes on a connection. Whatever can be decoded
//! is within its bounds, and is decoded as the same after it was encoded.

use longhaul_catalog::wire::{Hello, MAX_FRAME, Reply, Request, split};

/// Frames of a stream, until it is malformed or not complete.
fn frames(mut bytes: &[u8], mut take: impl FnMut(&[u8])) {
    while let Ok(Some((frame, length))) = split(bytes, MAX_FRAME) {
        assert!(frame.len() <= MAX_FRAME && length <= bytes.len());
        take(frame);
        bytes = &bytes[length..];
    }
}

/// The one frame that was encoded.
fn whole(bytes: &[u8]) -> &[u8] {
    // Keys that share their beginnings are longer than the frame that they came in.
    let (frame, length) = split(bytes, usize::MAX).expect("a frame").expect("whole");
    assert_eq!(length, bytes.len());
    frame
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((side, bytes)) = data.split_first() else { return };
    let mut out = Vec::new();
    match side & 1 {
        0 => frames(bytes, |frame| {
            if let Ok(hello) = Hello::decode(frame) {
                out.clear();
                hello.encode(&mut out);
                assert_eq!(Hello::decode(whole(&out)), Ok(hello));
            }
            if let Ok((id, request)) = Request::decode(frame) {
                out.clear();
                request.encode(id, &mut out);
                assert_eq!(Request::decode(whole(&out)), Ok((id, request)));
            }
        }),
        _ => frames(bytes, |frame| {
            if let Ok((id, reply)) = Reply::decode(frame) {
                out.clear();
                reply.encode(id, &mut out);
                assert_eq!(Reply::decode(whole(&out)), Ok((id, reply)));
            }
        }),
    }
}
