//! Requests and responses of HTTP/1.1 (RFC 9112), as far as a scrape needs them: one request a
//! connection, without a body.
//!
//! Invariants:
//! - a request has no more than [`REQUEST_MAX`] bytes, and is there by the deadline, however it is
//!   spread over packets.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest request in bytes, headers included: those of Prometheus have a few hundred.
pub(crate) const REQUEST_MAX: usize = 8 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Without its query.
    pub(crate) path: String,
    /// The values of all `Accept` headers.
    pub(crate) accept: String,
}

/// Why there is no request.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The peer has gone, or took too long, so that there is no answer.
    Gone,
    /// The request is answered with this status and reason.
    Status(u16, &'static str),
}

/// The end of the headers in what has come so far.
fn end_of_headers(bytes: &[u8]) -> Option<usize> {
    let crlf = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let lf = bytes.windows(2).position(|window| window == b"\n\n");
    crlf.into_iter().chain(lf).min()
}

/// Receives a request until `deadline`.
pub(crate) fn receive(stream: &TcpStream, deadline: Instant) -> Result<Request, Refusal> {
    let mut bytes = Vec::with_capacity(1024);
    let mut part = [0; 1024];
    loop {
        if let Some(end) = end_of_headers(&bytes) {
            return parse(&bytes[..end]);
        }
        if bytes.len() >= REQUEST_MAX {
            return Err(Refusal::Status(431, "the request is longer than 8 KiB"));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Refusal::Status(408, "the request did not come in time"));
        }
        // A time limit of zero would be none.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).map_err(|_| Refusal::Gone)?;
        let most = part.len().min(REQUEST_MAX - bytes.len());
        match (&mut &*stream).read(&mut part[..most]) {
            Ok(0) => return Err(Refusal::Gone),
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => return Err(Refusal::Gone),
        }
    }
}

fn parse(head: &[u8]) -> Result<Request, Refusal> {
    let bad = Refusal::Status(400, "this is not a request of HTTP/1.1");
    let Ok(text) = std::str::from_utf8(head) else { return Err(bad) };
    let mut lines = text.lines();
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = *first else { return Err(bad) };
    if method.is_empty() || !target.starts_with('/') || !version.starts_with("HTTP/1.") {
        return Err(bad);
    }
    let mut accept = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { return Err(bad) };
        if name.eq_ignore_ascii_case("accept") {
            accept.push(value.trim());
        }
    }
    let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    Ok(Request { method: method.to_owned(), path, accept: accept.join(",") })
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
    /// Methods that are allowed, where another one was used.
    pub(crate) allow: Option<&'static str>,
}

impl Response {
    /// A line of text.
    pub(crate) fn text(status: u16, text: &str) -> Response {
        let content_type = "text/plain; charset=utf-8";
        Response { status, content_type, body: format!("{text}\n"), allow: None }
    }

    /// Sends it until `deadline`, to `HEAD` without its body.
    pub(crate) fn send(&self, stream: &TcpStream, is_head: bool, deadline: Instant) -> io::Result<()> {
        let allow = self.allow.map(|allow| format!("Allow: {allow}\r\n")).unwrap_or_default();
        let mut out = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len()
        );
        if !is_head {
            out.push_str(&self.body);
        }
        let mut rest = out.as_bytes();
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
            match (&mut &*stream).write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        _ => "Service Unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_refused() {
        let head = b"GET /metrics?name[]=x HTTP/1.1\r\nHost: x\r\naccept: a\r\nAccept: b;q=1";
        let request = parse(head).expect("a request");
        let expected = Request { method: "GET".into(), path: "/metrics".into(), accept: "a,b;q=1".into() };
        assert_eq!(request, expected);
        let bad: [&[u8]; 6] =
            [b"", b"GET /", b"GET x HTTP/1.1", b"GET / HTTP/2", b"GET / HTTP/1.1\r\nx", b"\xff / HTTP/1.1"];
        for head in bad {
            assert!(matches!(parse(head), Err(Refusal::Status(400, _))), "{head:?}");
        }
        assert_eq!(end_of_headers(b"a\r\n\r\nb\n\n"), Some(1));
        assert_eq!(end_of_headers(b"a\r\n\r"), None);
    }
}
