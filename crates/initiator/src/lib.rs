//! The NVMe/TCP initiator: controllers and queues; a remote namespace as a block device.
