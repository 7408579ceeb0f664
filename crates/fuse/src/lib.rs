//! The kernel's FUSE protocol, as `include/uapi/linux/fuse.h` of Linux defines it.
//!
//! A [`Server`] answers [`Request`]s of the kernel, each with its [`Reply`]; a [`Session`] reads them from
//! `/dev/fuse` with several threads. [`mount()`] makes the mount.
//!
//! It is a crate of its own, and not a library, as no library passes on all that locks between hosts need:
//! that a program has given up waiting (`FUSE_INTERRUPT`), which of the two kinds a lock is (`lk_flags`),
//! and which owner's locks end when a file is closed (`lock_owner`).
//!
//! | room | contents |
//! |---|---|
//! | `abi` | structures and numbers of the protocol |
//! | `request` | what the kernel asks, from bytes that are checked |
//! | `reply` | answers, and lists of directory entries |
//! | `session` | threads that read requests, the agreement with the kernel, interrupts, notifications |
//! | `mount` | mounts, by the system call or by the helper |
//!
//! The protocol is 7.31 (Linux 5.4) at least, and 7.40 (Linux 6.9) at most.

#![forbid(unsafe_code)]

pub mod abi;
mod mount;
mod reply;
mod request;
mod session;

pub use abi::Attr;
pub use mount::{HELPER, MountError, MountOptions, MountedAs, UnmountError, mount, unmount};
pub use reply::{Entry, Listing, Reply, Statistics};
pub use request::{Header, Lock, Malformed, NewTime, Operation, Release, Request, SetAttr};
pub use session::{Notifier, Server, Session, SessionOptions};
