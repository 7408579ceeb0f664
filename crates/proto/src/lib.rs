//! Initiator and controller state machines of NVMe/TCP, without I/O.
