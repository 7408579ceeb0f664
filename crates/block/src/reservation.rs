//! Reservations: of several hosts that reach a device, the one that may change it.
//!
//! A host registers with a key, and then reserves the device, or takes the reservation over from a
//! host whose key it names. There are two kinds of reservations here:
//!
//! - *exclusive*, which NVMe calls Write Exclusive: the holder writes, every host reads, and a
//!   registration alone gives no right to write. So a registration that arrives late, or twice, changes
//!   nothing for the holder.
//! - *shared*, which NVMe calls Write Exclusive - All Registrants: each registered host holds it, and
//!   writes. So hosts share a device, and each of them can be kept out by ending its registration.

use crate::IoFuture;

/// What a device knows of its reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationState {
    /// Key of the host that holds the reservation, of one of them if it is shared; `None` if the device is
    /// not reserved.
    pub holder: Option<u64>,
    /// All registered hosts hold it.
    pub is_shared: bool,
    /// Keys of all registered hosts, the holder's among them.
    pub registered: Vec<u64>,
}

/// The reservation commands of a device, as one host uses them: see
/// [`BlockIo::reservations`](crate::BlockIo::reservations) for the exclusive kind, and
/// [`BlockIo::shared_reservations`](crate::BlockIo::shared_reservations) for the other one.
///
/// Registrations and the reservation belong to the host, not to its connection, and outlast a
/// restart of the device; with the shared kind only where the device can keep them. Once another host has ended the registration of this one, the device
/// refuses changes with [`IoError::Reserved`](crate::IoError::Reserved), also when it is reserved no
/// more, until it is opened again or [`register`](Self::register) succeeds: nothing registers the
/// host again by itself.
pub trait Reservations {
    /// Registers this host with `key`, whatever its key was before.
    ///
    /// # Errors
    /// The device cannot keep a registration through a restart, or has no room for one more.
    fn register(&self, key: u64) -> IoFuture<()>;

    /// Ends the registration of this host, and its reservation.
    ///
    /// # Errors
    /// [`IoError::Reserved`](crate::IoError::Reserved) if it is not registered with `key`.
    fn unregister(&self, key: u64) -> IoFuture<()>;

    /// Reserves the device for this host, which is registered with `key`. Succeeds again if it holds
    /// the reservation already, as each registered host does if it is shared.
    ///
    /// # Errors
    /// [`IoError::Reserved`](crate::IoError::Reserved) if another host holds it, or this one is not
    /// registered with `key`.
    fn acquire(&self, key: u64) -> IoFuture<()>;

    /// Ends the registration of the host with the key `other`, and takes the reservation over if that
    /// host holds it alone. When this completes, nothing that the other host has sent can change the device
    /// any more. If the answer is lost, it may fail although it was done: [`report`](Self::report)
    /// tells.
    ///
    /// # Errors
    /// [`IoError::Reserved`](crate::IoError::Reserved) if no host is registered with `other`, or this
    /// one not with `key`.
    fn preempt(&self, key: u64, other: u64) -> IoFuture<()>;

    /// The holder, and the registered hosts.
    fn report(&self) -> IoFuture<ReservationState>;
}
