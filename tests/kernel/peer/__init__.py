"""A stock Linux kernel in QEMU as the other end of an NVMe/TCP connection."""
