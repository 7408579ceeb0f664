//! NVMe, NVMe over Fabrics and NVMe/TCP bytes: checked views and encoders, CRC32C digests.
