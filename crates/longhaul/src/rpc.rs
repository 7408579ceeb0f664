//! JSON-RPC 2.0 over a Unix socket: a request is a line, its response is a line, and a connection carries any
//! number of requests, one at a time.
//!
//! Invariants:
//! - a socket that exists and takes no connections was left by a process that ended;
//! - a client that says nothing, or too much, costs its own connection and no other one;
//! - a request that was taken is answered before the server ends.

use longhaul_engine::net::connections;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest request and response, in bytes.
const LINE_MAX: u64 = 16 << 20;
/// How long a client may take for its next request.
const IDLE: Duration = Duration::from_secs(60);
/// How long the end of a server waits for answers.
const LAST: Duration = Duration::from_secs(1);
/// Connections at a time: each has a thread.
const CONNECTIONS: usize = 16;

/// Error codes of the specification (JSON-RPC 2.0, section 5.1).
const PARSE_ERROR: i64 = -32_700;
const INVALID_REQUEST: i64 = -32_600;
const METHOD_NOT_FOUND: i64 = -32_601;
const INVALID_PARAMS: i64 = -32_602;

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RpcError {
    /// One of the specification, or an exit code of the program.
    pub(crate) code: i64,
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) data: Value,
}

impl RpcError {
    pub(crate) fn unknown_method(method: &str) -> RpcError {
        RpcError::new(METHOD_NOT_FOUND, format!("there is no method '{method}'"))
    }

    pub(crate) fn invalid_params(why: impl std::fmt::Display) -> RpcError {
        RpcError::new(INVALID_PARAMS, why)
    }

    fn new(code: i64, message: impl std::fmt::Display) -> RpcError {
        RpcError { code, message: message.to_string(), data: Value::Null }
    }
}

pub(crate) type RpcResult = Result<Value, RpcError>;

/// Requests that are being answered.
#[derive(Debug, Default)]
struct Answering {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Answering {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one request until it is dropped.
struct AnsweringOne<'a>(&'a Answering);

impl AnsweringOne<'_> {
    fn new(answering: &Answering) -> AnsweringOne<'_> {
        *answering.count() += 1;
        AnsweringOne(answering)
    }
}

impl Drop for AnsweringOne<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}

/// A server on a socket, which is removed on drop. That waits for the answers to requests, for [`LAST`] at most.
#[derive(Debug)]
pub(crate) struct RpcServer {
    path: PathBuf,
    answering: Arc<Answering>,
}

impl RpcServer {
    /// Listens at `path`, and has `answer` answer each request, a method with its parameters, on a thread of
    /// its connection.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(crate) fn start(
        path: PathBuf,
        answer: impl Fn(&str, &Value) -> RpcResult + Send + Sync + 'static,
    ) -> io::Result<RpcServer> {
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let (answer, open) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let answering = Arc::<Answering>::default();
        let counted = Arc::clone(&answering);
        let accept = move || {
            for stream in connections(&listener) {
                let (answer, mine, counted) = (Arc::clone(&answer), Arc::clone(&open), Arc::clone(&counted));
                if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
                    open.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let serve = move || {
                    if let Err(e) = serve(&stream, &*answer, &counted) {
                        tracing::debug!("control socket: a connection has ended: {e}");
                    }
                    mine.fetch_sub(1, Ordering::AcqRel);
                };
                if std::thread::Builder::new().name("longhaul-ctl".into()).spawn(serve).is_err() {
                    open.fetch_sub(1, Ordering::AcqRel);
                }
            }
        };
        std::thread::Builder::new().name("longhaul-ctl".into()).spawn(accept)?;
        Ok(RpcServer { path, answering })
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let answering = self.answering.count();
        drop(self.answering.changed.wait_timeout_while(answering, LAST, |count| *count > 0));
    }
}

fn serve(
    stream: &UnixStream,
    answer: &dyn Fn(&str, &Value) -> RpcResult,
    answering: &Answering,
) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            // The end, or a line that is too long to be read to its end.
            return Ok(());
        }
        let _one = AnsweringOne::new(answering);
        if let Some(response) = respond(&line, answer) {
            writeln!(&mut &*stream, "{response}")?;
        }
    }
}

/// The response to a line; none to a notification, which has no `id`.
fn respond(line: &[u8], answer: &dyn Fn(&str, &Value) -> RpcResult) -> Option<Value> {
    let (id, result) = match serde_json::from_slice::<Value>(line) {
        Err(e) => (Some(Value::Null), Err(RpcError::new(PARSE_ERROR, format!("the line is not JSON: {e}")))),
        Ok(request) => {
            let id = request.get("id").cloned();
            match (request["jsonrpc"].as_str(), request["method"].as_str()) {
                (Some("2.0"), Some(method)) => (id, answer(method, &request["params"])),
                _ => {
                    let why = "a request has the fields \"jsonrpc\": \"2.0\" and \"method\"";
                    (id.or(Some(Value::Null)), Err(RpcError::new(INVALID_REQUEST, why)))
                }
            }
        }
    };
    let id = id?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    })
}

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No process listens at the socket.
    #[error("no process listens there")]
    Gone,
    /// The response did not come in time.
    #[error("it has not answered within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The socket failed, or the response is not one.
    #[error("{0}")]
    Failed(String),
    /// The server has refused.
    #[error("{}", .0.message)]
    Refused(RpcError),
}

/// Calls a method of the server at `path`.
///
/// # Errors
/// See [`CallError`].
pub(crate) fn call(path: &Path, method: &str, params: Value, limit: Duration) -> Result<Value, CallError> {
    let failed = |e: io::Error| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => CallError::Gone,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => CallError::TimedOut(limit),
        _ => CallError::Failed(e.to_string()),
    };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    writeln!(stream, "{request}").map_err(failed)?;
    let mut line = String::new();
    BufReader::new(Read::take(&stream, LINE_MAX)).read_line(&mut line).map_err(failed)?;
    let strange = || CallError::Failed("the process ended, or answered with something else".to_owned());
    let mut response: Value = serde_json::from_str(&line).map_err(|_| strange())?;
    match response["error"].take() {
        Value::Null => match response.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(strange()),
        },
        error => Err(serde_json::from_value(error).map_or_else(|_| strange(), CallError::Refused)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(method: &str, params: &Value) -> RpcResult {
        match method {
            "echo" => Ok(params.clone()),
            "fail" => Err(RpcError { code: 6, message: "no".into(), data: json!({ "why": "busy" }) }),
            _ => Err(RpcError::unknown_method(method)),
        }
    }

    fn server() -> (tempfile::TempDir, PathBuf, RpcServer) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let server = RpcServer::start(path.clone(), echo).expect("a socket");
        (dir, path, server)
    }

    #[test]
    fn requests_get_the_responses_of_the_specification() {
        let respond = |line: &str| respond(line.as_bytes(), &echo);
        assert_eq!(
            respond(r#"{"jsonrpc":"2.0","id":"a","method":"echo","params":[1]}"#),
            Some(json!({ "jsonrpc": "2.0", "id": "a", "result": [1] }))
        );
        let code = |line: &str| respond(line).expect("a response")["error"]["code"].as_i64();
        assert_eq!(code("{"), Some(PARSE_ERROR));
        assert_eq!(code(r#"{"id":1,"method":"echo"}"#), Some(INVALID_REQUEST));
        assert_eq!(code(r#"[1]"#), Some(INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#), Some(METHOD_NOT_FOUND));
        assert_eq!(respond(r#"{"jsonrpc":"2.0","method":"echo"}"#), None, "a notification");
    }

    #[test]
    fn a_connection_carries_many_requests_and_one_that_fails_ends_nothing() {
        let (_dir, path, server) = server();
        let stream = UnixStream::connect(&path).expect("connected");
        let mut lines = BufReader::new(&stream);
        for request in ["nonsense", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"a":1}}"#] {
            writeln!(&mut &stream, "{request}").expect("written");
        }
        let mut line = String::new();
        lines.read_line(&mut line).expect("an error");
        line.clear();
        lines.read_line(&mut line).expect("a result");
        assert_eq!(serde_json::from_str::<Value>(&line).expect("JSON")["result"]["a"], 1);
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn a_server_that_ends_has_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let (taken, until_taken) = std::sync::mpsc::channel();
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let answer = move |_: &str, _: &Value| {
            taken.send(()).expect("the test waits");
            let _ = gate.lock().expect("one request").recv();
            Ok(json!("late"))
        };
        let server = RpcServer::start(path.clone(), answer).expect("a socket");
        let called = std::thread::spawn(move || call(&path, "x", Value::Null, Duration::from_secs(60)));
        until_taken.recv().expect("taken");
        drop(go_on);
        drop(server);
        assert_eq!(called.join().expect("no panic").expect("a result"), json!("late"));
    }

    #[test]
    fn callers_learn_why_there_is_no_result() {
        let (_dir, path, server) = server();
        let limit = Duration::from_secs(60);
        assert_eq!(call(&path, "echo", json!([2]), limit).expect("a result"), json!([2]));
        match call(&path, "fail", Value::Null, limit) {
            Err(CallError::Refused(e)) => assert_eq!((e.code, &e.data["why"]), (6, &"busy".into())),
            other => panic!("{other:?}"),
        }
        // Clients that say nothing take no other one's place.
        let silent: Vec<_> =
            (0..CONNECTIONS / 2).map(|_| UnixStream::connect(&path).expect("connected")).collect();
        call(&path, "echo", json!([3]), limit).expect("a result");
        drop((silent, server));
        assert!(matches!(call(&path, "echo", Value::Null, limit), Err(CallError::Gone)));
    }
}
