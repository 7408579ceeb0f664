//! A peer that sends arbitrary frames: a client of an agent, or a hostile agent.

use longhaul_engine::Buf;
use longhaul_transfer::Agent;
use longhaul_transfer::wire::{
    Batch, Close, Content, CopyDirection, Entry, EntryKind, Frame, HEADER_LEN, Hash, Header, Hello, Options,
    Placement, RelPath, Request, Time, VERSION, Welcome,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// A connection that sends any bytes that a test chooses.
pub struct Peer(pub TcpStream);

impl Peer {
    pub fn connect(agent: &Agent) -> Peer {
        let stream = TcpStream::connect(agent.address()).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        Peer(stream)
    }

    /// One that has been let in to write below `to`.
    pub fn welcomed(agent: &Agent, to: &str) -> Peer {
        let mut peer = Peer::connect(agent);
        peer.send(hello(CopyDirection::Push, to, VERSION));
        assert!(matches!(peer.hear(), Some(Frame::Welcome(_))));
        peer
    }

    pub fn send(&mut self, frame: Frame) {
        let (head, body) = frame.encode();
        self.raw(&head);
        self.raw(&body.map_or(Vec::new(), |body| body.to_vec()));
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    pub fn hear(&mut self) -> Option<Frame> {
        let mut header = [0; HEADER_LEN];
        self.0.read_exact(&mut header).ok()?;
        let header = Header::decode(header).expect("a header");
        let (mut head, mut body) = (vec![0; header.head], vec![0; header.body]);
        self.0.read_exact(&mut head).ok()?;
        self.0.read_exact(&mut body).ok()?;
        Some(Frame::decode(header, &head, Buf::copy_of(&body)).expect("a frame"))
    }

    /// The last frame received, after any reports of failures.
    pub fn end(&mut self) -> (Vec<String>, Option<Frame>) {
        let mut troubles = Vec::new();
        loop {
            match self.hear() {
                Some(Frame::Trouble(trouble)) => troubles.push(trouble.path.to_string()),
                Some(Frame::Progress(_) | Frame::Limit(_) | Frame::Tuned(_)) => {}
                other => return (troubles, other),
            }
        }
    }
}

pub fn hello(direction: CopyDirection, to: &str, version: u16) -> Frame {
    let request = Request {
        destination: to.as_bytes().to_vec(),
        place: Placement::Into,
        sources: vec![to.as_bytes().to_vec()],
        key: 1,
        options: Options::default(),
        recursive: true,
        ..Request::default()
    };
    let (oldest, newest) = (version, version);
    Frame::Hello(Box::new(Hello { oldest, newest, session: [7; 16], streams: 1, direction, request }))
}

pub fn entry(name: &str, kind: EntryKind, size: u64) -> Entry {
    let path = RelPath::new(name.as_bytes()).expect("a good name");
    Entry {
        path,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        ctime: Time::default(),
        size,
        sparse: false,
        xattrs: Vec::new(),
    }
}

/// A batch with one small file.
pub fn small(name: &str, data: &[u8]) -> Batch {
    let mut batch = Batch::default();
    let content = Content::Inline { len: data.len() as u32, digest: Hash::Quick.of(data) };
    batch.push(&entry(name, EntryKind::File, data.len() as u64), &content, data);
    batch
}

/// Announcement, block and end of a file of one block.
pub fn large(entry: &Entry, number: u64, data: &[u8]) -> Vec<Frame> {
    let mut batch = Batch::default();
    batch.push(entry, &Content::Blocks(number), &[]);
    vec![
        Frame::Batch(batch.into_body()),
        Frame::Block { file: number, offset: 0, digest: Hash::Quick.of(data), data: Buf::copy_of(data) },
        Frame::Close(Close { file: number, blocks: 1, good: true }),
    ]
}

/// A batch of one entry without content.
pub fn bare(entry: &Entry) -> Frame {
    let mut batch = Batch::default();
    batch.push(entry, &Content::None, &[]);
    Frame::Batch(batch.into_body())
}

/// A hostile agent that sends arbitrary entries to a client that requests something.
pub struct FakeAgent {
    pub address: SocketAddr,
    thread: JoinHandle<Option<Frame>>,
}

impl FakeAgent {
    /// For one copy over one connection: after the welcome it sends `frames`, and its
    /// end.
    pub fn sends(frames: Vec<Frame>) -> FakeAgent {
        FakeAgent::answers(
            |_| Welcome { version: VERSION, resume: false, by_content: false, congestion: String::new() },
            frames,
        )
    }

    pub fn answers(welcome: impl FnOnce(Hello) -> Welcome + Send + 'static, frames: Vec<Frame>) -> FakeAgent {
        FakeAgent::start(move |hello| {
            let mut all = vec![Frame::Welcome(welcome(hello))];
            all.extend(frames);
            all.push(Frame::End { whole: true });
            all
        })
    }

    /// It answers with just this.
    pub fn begins(frames: Vec<Frame>) -> FakeAgent {
        FakeAgent::start(|_| frames)
    }

    fn start(says: impl FnOnce(Hello) -> Vec<Frame> + Send + 'static) -> FakeAgent {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accepted");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
            let mut peer = Peer(stream);
            let Some(Frame::Hello(hello)) = peer.hear() else { panic!("no hello") };
            for frame in says(*hello) {
                let (head, body) = frame.encode();
                let body = body.map_or(Vec::new(), |body| body.to_vec());
                // The other end may close the connection once it has received enough.
                if peer.0.write_all(&[head, body].concat()).is_err() {
                    break;
                }
            }
            peer.end().1
        });
        FakeAgent { address, thread }
    }

    /// The last frame received.
    pub fn end(self) -> Option<Frame> {
        self.thread.join().expect("it ran to its end")
    }
}
