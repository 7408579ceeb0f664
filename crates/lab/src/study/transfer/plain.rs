//! Sequential copies, as by the published tool: one file at a time, without overlap, so that
//! the full costs of files show. Also reads and writes of the storage without a copy tool.
//!
//! Over the link, both ends open a file at the same time, and the sender begins the next one
//! after the receiver has closed the file and acknowledged that. So a file costs at least an
//! open at the source, a round trip, and a close at the destination.

use crate::Error;
use longhaul_wan::Wan;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a read or write call.
const CALL: usize = 1 << 20;
/// Bytes of a file's header: its number and its size, 8 bytes each.
const HEADER: usize = 16;
/// The number that ends a copy.
const END: u64 = u64::MAX;

/// Source of a copy: files of a directory, or zeroes in `files` files of `bytes` bytes.
#[derive(Clone, Debug)]
pub(super) enum CopySource {
    Files(Vec<PathBuf>),
    Zeroes { files: u32, bytes: u64 },
}

impl CopySource {
    /// All files of a tree, in the order of their names.
    pub(super) fn tree(dir: &Path) -> io::Result<CopySource> {
        let (mut waiting, mut files) = (vec![dir.to_owned()], Vec::new());
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                if path.is_dir() { waiting.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        Ok(CopySource::Files(files))
    }

    fn count(&self) -> u64 {
        match self {
            CopySource::Files(files) => files.len() as u64,
            CopySource::Zeroes { files, .. } => u64::from(*files),
        }
    }

    /// Opens a file by its number, and returns its size.
    fn open(&self, number: u64) -> io::Result<(Box<dyn Read>, u64)> {
        match self {
            CopySource::Files(files) => {
                let file = File::open(&files[number as usize])?;
                let bytes = file.metadata()?.len();
                Ok((Box::new(file), bytes))
            }
            CopySource::Zeroes { bytes, .. } => Ok((Box::new(io::repeat(0)), *bytes)),
        }
    }
}

/// Reads and discards all files, one after the other.
pub(super) fn read(from: &CopySource) -> io::Result<Duration> {
    let began = Instant::now();
    for number in 0..from.count() {
        let (mut file, bytes) = from.open(number)?;
        pass(&mut file, bytes, &mut io::sink())?;
    }
    Ok(began.elapsed())
}

/// Writes the files to the directory `to`, one after the other.
pub(super) fn write(from: &CopySource, to: &Path) -> io::Result<Duration> {
    let began = Instant::now();
    for number in 0..from.count() {
        let (mut zeroes, bytes) = from.open(number)?;
        pass(&mut zeroes, bytes, &mut File::create(to.join(number.to_string()))?)?;
    }
    Ok(began.elapsed())
}

/// Copies over the first link, into files in `to`, or discards the data.
pub(super) fn send(wan: &Wan, from: &CopySource, to: Option<&Path>) -> Result<Duration, Error> {
    let address = wan.server_address(1);
    let listener = wan.server(1).run(|| TcpListener::bind((address, 0)))?.map_err(Error::failed)?;
    let there = listener.local_addr().map_err(Error::failed)?;
    let copied = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&listener, to));
        let sent =
            wan.client().run(|| TcpStream::connect(there))?.and_then(|stream| one_by_one(stream, from));
        // A sender that fails closes the connection, which ends the receiver. If the sender
        // could not connect, the receiver still waits in `accept`.
        if sent.is_err() {
            let _ = wan.client().run(|| TcpStream::connect(there));
        }
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Error>(sent.and_then(|seconds| received.map(|()| seconds)))
    })?;
    copied.map_err(|e| Error::failed(format!("cannot copy one file after the other: {e}")))
}

fn one_by_one(mut stream: TcpStream, from: &CopySource) -> io::Result<Duration> {
    stream.set_nodelay(true)?;
    let began = Instant::now();
    for number in 0..from.count() {
        // The receiver opens its file at the same time.
        stream.write_all(&number.to_be_bytes())?;
        let (mut file, bytes) = from.open(number)?;
        stream.write_all(&bytes.to_be_bytes())?;
        pass(&mut file, bytes, &mut stream)?;
        drop(file);
        stream.read_exact(&mut [0])?;
    }
    let took = began.elapsed();
    stream.write_all(&END.to_be_bytes())?;
    Ok(took)
}

fn receive(listener: &TcpListener, to: Option<&Path>) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    loop {
        let mut half = [0; HEADER / 2];
        stream.read_exact(&mut half)?;
        let number = u64::from_be_bytes(half);
        if number == END {
            return Ok(());
        }
        let mut file: Box<dyn Write> = match to {
            Some(dir) => Box::new(File::create(dir.join(number.to_string()))?),
            None => Box::new(io::sink()),
        };
        stream.read_exact(&mut half)?;
        pass(&mut stream, u64::from_be_bytes(half), &mut file)?;
        drop(file);
        stream.write_all(&[1])?;
    }
}

/// Copies `bytes` bytes.
fn pass(from: &mut impl Read, bytes: u64, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; CALL.min(bytes as usize).max(1)];
    let mut left = bytes;
    while left > 0 {
        let call = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        from.read_exact(&mut buffer[..call])?;
        to.write_all(&buffer[..call])?;
        left -= call as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(from: &CopySource, to: &Path) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("an address");
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&listener, Some(to)));
            let took = one_by_one(TcpStream::connect(there).expect("connected"), from).expect("sent");
            receiver.join().expect("no panic").expect("received");
            took
        })
    }

    #[test]
    fn files_arrive_as_they_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        std::fs::create_dir_all(from.join("below")).expect("made");
        std::fs::create_dir(&to).expect("made");
        let contents = [vec![7; CALL + 3], Vec::new(), b"short".to_vec()];
        for (name, content) in ["a", "below/b", "c"].into_iter().zip(&contents) {
            std::fs::write(from.join(name), content).expect("written");
        }
        received(&CopySource::tree(&from).expect("read"), &to);
        for (number, content) in contents.iter().enumerate() {
            assert!(std::fs::read(to.join(number.to_string())).expect("arrived") == *content, "{number}");
        }
        assert!(read(&CopySource::tree(&from).expect("read")).is_ok());
    }

    #[test]
    fn zeroes_are_written_in_as_many_files() {
        let dir = tempfile::tempdir().expect("a directory");
        write(&CopySource::Zeroes { files: 3, bytes: 10 }, dir.path()).expect("written");
        let sizes = std::fs::read_dir(dir.path()).expect("read").flatten();
        assert_eq!(sizes.map(|entry| entry.metadata().expect("there").len()).collect::<Vec<_>>(), [10; 3]);
    }
}
