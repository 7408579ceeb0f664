//! Header and data digests: CRC32C.
