//! Answering on a Unix socket until a signal comes.

use crate::controller::ControllerService;
use crate::driver::Driver;
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;
use std::fmt;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

/// A Unix socket: `unix:PATH`, `unix://PATH`, or `PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(PathBuf);

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Endpoint, String> {
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if !path.starts_with('/') {
            return Err(
                "a Unix socket with an absolute path is needed, such as unix:///csi/csi.sock".to_owned()
            );
        }
        Ok(Endpoint(PathBuf::from(path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// Removes the socket that a driver has left which was killed.
///
/// # Errors
/// A driver answers there, or it is no socket.
fn clear(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(Error::new(ErrorKind::AlreadyExists, "there is a file"))
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            Err(Error::new(ErrorKind::AddrInUse, "another program answers there"))
        }
        Ok(_) => fs::remove_file(path),
    }
}

/// Answers until SIGTERM or SIGINT, and until the calls that are under way then are done.
///
/// # Errors
/// The socket cannot be made.
pub(crate) fn run(driver: Driver, name: String, endpoint: &Endpoint) -> Result<()> {
    // Each call waits on a thread of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        clear(&endpoint.0)?;
        let listener = UnixListener::bind(&endpoint.0)?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ended = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let driver = Arc::new(driver);
        let controller =
            driver.is_controller.then(|| ControllerServer::new(ControllerService(Arc::clone(&driver))));
        let node = driver.node.is_some().then(|| NodeServer::new(NodeService(Arc::clone(&driver))));
        println!("ready {endpoint}");
        let served = Server::builder()
            .add_service(IdentityServer::new(IdentityService { driver, name }))
            .add_optional_service(controller)
            .add_optional_service(node)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended)
            .await;
        let _ = fs::remove_file(&endpoint.0);
        served.map_err(Error::other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths() {
        for text in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(
                text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()),
                Ok("unix:///csi/csi.sock".into())
            );
        }
        for text in ["csi.sock", "unix:csi.sock", "tcp://127.0.0.1:1", ""] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
