//! Emulated long-distance links for people and tests.
