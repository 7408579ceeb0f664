//! `docs/conformance.md`.
use crate::repo::Repo;
use anyhow::Result;
pub(crate) fn write(_: &Repo) -> Result<()> {
    Ok(())
}
pub(crate) fn check(_: &Repo) -> Result<()> {
    Ok(())
}
