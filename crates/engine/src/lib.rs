//! Per-core reactor on io_uring or epoll: sockets, files, timers and the
//! aligned buffer pool.

pub mod buf;

pub use buf::{BUF_ALIGN, BUF_MAX, Buf, BufMut, BufPool, Segment};
