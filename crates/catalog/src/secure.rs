//! Encryption of connections to a catalog server, which programs give to this crate: it has none of its own.

/// The other end of a connection that has proved what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Name of the host: the one that it has proved, and otherwise the one that it gave.
    pub host: String,
    /// Generation of the key that it has proved; none if it has proved nothing.
    pub generation: Option<u32>,
}

/// Why a server does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// There is no key of the host.
    NoKey,
    /// The key of the host cannot be read here.
    KeyUnreadable,
    /// The host has another key.
    WrongKey,
    /// The key of the host is of this generation, which was retired.
    RetiredKey(u32),
    /// It does not use TLS, which it has to; or it does, and this server has no keys.
    NoTls,
    /// Its side of the handshake was not as it has to be.
    Handshake,
    /// It was not let in within the time for that.
    Late,
    /// There are too many connections.
    Connections,
    /// It speaks no version of the protocol that the server knows.
    Protocol,
}

/// Why there is no encrypted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why, for records.
    pub why: Denial,
    /// The name that the peer gave, if it did.
    pub host: String,
    /// The same in words, for the side that has found it.
    pub text: String,
}

/// One end of an encrypted connection, without I/O.
pub trait Secure: Send {
    /// Goes on with the handshake by what was received; appends what is to be sent to `output`. The other end, once
    /// the handshake is done: what was received behind it is kept for [`open`](Self::open).
    ///
    /// # Errors
    /// The connection ends, after `output` was sent.
    fn handshake(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Option<Peer>, Denied>;

    /// Encrypts bytes, and appends them to `output`.
    ///
    /// # Errors
    /// The connection ends, for this reason.
    fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), String>;

    /// Decrypts what was received, and appends it to `plain`; appends what is to be sent to `output`. Whether the
    /// peer may send more.
    ///
    /// # Errors
    /// The connection ends, for this reason.
    fn open(&mut self, input: &[u8], plain: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<bool, String>;

    /// Appends to `output` that nothing more is sent.
    fn end(&mut self, output: &mut Vec<u8>);
}

/// Encrypts the connections of a client.
pub trait Connector: Send + Sync {
    /// A new connection.
    ///
    /// # Errors
    /// This host cannot have one, for this reason: its key is missing, for example.
    fn begin(&self) -> Result<Box<dyn Secure>, String>;
}

/// Encrypts the connections of a server.
pub trait Acceptor: Send + Sync {
    /// A new connection.
    fn begin(&self) -> Box<dyn Secure>;
}
