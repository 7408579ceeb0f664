//! Data sets: what they are made of and how they are made.
