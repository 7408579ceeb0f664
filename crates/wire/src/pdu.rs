//! NVMe/TCP protocol data units.
