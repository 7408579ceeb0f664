//! Unix sockets for threads that block: control sockets of programs.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Wait after accept(2) has failed for lack of descriptors or memory, which come back only when something ends.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at `path`. A socket there on which nothing listens any more is replaced.
///
/// # Errors
/// Of bind(2): something is there, or the directory cannot be written.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).err().is_some_and(refused) {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path)
}

/// The connections to a socket, for a thread that blocks. A process without descriptors waits for some: accept(2)
/// fails at once then, also while nothing connects. Ends when the listener is shut down.
pub fn connections(listener: &UnixListener) -> impl Iterator<Item = UnixStream> {
    std::iter::from_fn(move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // What shutdown(2) leaves of a listener.
                Err(e) if e.kind() == ErrorKind::InvalidInput => return None,
                Err(e) => {
                    tracing::debug!("a control socket accepts nothing: {e}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    })
}
