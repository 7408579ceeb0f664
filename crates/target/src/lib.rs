//! The NVMe/TCP target: listener, discovery, subsystems and namespaces over block devices.
