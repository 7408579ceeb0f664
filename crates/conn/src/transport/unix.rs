//! Stream sockets of this machine as a transport.

use super::{Address, FreeStream, Listener, Operation, Stream, Transport};
use longhaul_engine::net::{UnixListener, UnixStream, bind_unix};
use longhaul_engine::{RecvMsg, SendMsg};
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Unix sockets; addresses are paths. A peer is known by its user (`unix:uid=1000`). The permissions of the socket's
/// file and of its directories decide which users may connect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unix;

impl Transport for Unix {
    fn connect<'a>(&'a self, address: &'a str) -> Operation<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(
            async move { Ok(Box::new(UnixStream::connect(Path::new(address)).await?) as Box<dyn Stream>) },
        )
    }

    fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let path = PathBuf::from(address);
        let listener = bind_unix(&path)?;
        let file = identity(&path);
        Ok(Box::new(UnixListening { listener: UnixListener::from_std(listener)?, path, file }))
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[derive(Debug)]
struct UnixListening {
    listener: UnixListener,
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl Listener for UnixListening {
    fn accept(&self) -> Operation<'_, io::Result<(FreeStream, Address)>> {
        Box::pin(async move {
            let stream = self.listener.accept().await?;
            let peer = Address::named(format!("unix:uid={}", stream.credentials()?.uid));
            Ok((FreeStream::new(move || Ok(Box::new(stream.adopt()?))), peer))
        })
    }

    fn address(&self) -> Address {
        Address::named(self.path.to_string_lossy())
    }
}

impl Drop for UnixListening {
    /// Removes the file, unless another listener has replaced it.
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Stream for UnixStream {
    fn recv(&self, msg: RecvMsg) -> Operation<'_, (io::Result<usize>, RecvMsg)> {
        Box::pin(UnixStream::recv(self, msg))
    }

    fn send(&self, msg: SendMsg) -> Operation<'_, (io::Result<()>, SendMsg)> {
        Box::pin(UnixStream::send(self, msg))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        UnixStream::shutdown(self, how)
    }

    fn abandon(&self) {
        // It fails only on a connection that is closed already.
        let _ = UnixStream::shutdown(self, Shutdown::Both);
    }

    fn into_free(self: Box<Self>) -> io::Result<FreeStream> {
        let stream = UnixStream::into_free(*self)?;
        Ok(FreeStream::new(move || Ok(Box::new(stream.adopt()?))))
    }
}
