//! A host's part of the namespace, with what is judged beside content.

use super::Planted;
use super::trouble::{Share, Site};
use futures_util::future::{Either, select};
use longhaul_block::{Advice, BlockIo, IoFuture, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, sleep};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often a planted fault looks whether there is another connection.
const LOOK: Duration = Duration::from_millis(10);

/// The blocks from `start` bytes on.
pub(super) struct Part {
    io: Rc<dyn BlockIo>,
    start: u64,
    share: Rc<Share>,
    site: Rc<Site>,
}

impl Part {
    pub(super) fn new(io: Rc<dyn BlockIo>, start: u64, share: Rc<Share>, site: Rc<Site>) -> Part {
        Part { io, start, share, site }
    }

    fn seen(io: &dyn BlockIo, site: &Site) -> u64 {
        if site.planted == Planted::NoGeneration { 0 } else { io.generation() }
    }

    /// Notes in which generation a change has begun that is acknowledged.
    fn change(&self, change: IoFuture<()>) -> IoFuture<()> {
        let (io, share, site) = (Rc::clone(&self.io), Rc::clone(&self.share), Rc::clone(&self.site));
        let (began, noted) = (io.generation(), Part::seen(&*io, &site));
        IoFuture::new(async move {
            let change = change;
            if site.planted == Planted::ForgetsAtReconnect {
                let lost = std::pin::pin!(async {
                    while io.generation() == began {
                        sleep(LOOK).await;
                    }
                });
                if let Either::Left((result, _)) = select(change, lost).await {
                    result?;
                }
            } else {
                change.await?;
            }
            share.acknowledged.set(Some(noted));
            Ok(())
        })
    }
}

impl BlockIo for Part {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.io.read(self.start + offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.change(self.io.write(self.start + offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        let (io, share, site) = (Rc::clone(&self.io), Rc::clone(&self.share), Rc::clone(&self.site));
        let (losses, flush) = (share.losses.get(), io.flush());
        IoFuture::new(async move {
            flush.await?;
            let generation = Part::seen(&*io, &site);
            // A flush that began after the loss succeeds, and no generation shows the loss.
            if losses > 0 && share.losses.get() == losses && share.doubtful.get() == Some(generation) {
                let why = format!(
                    "the target has lost its power since a change was acknowledged, and flush succeeds in the same \
                     generation {generation}"
                );
                site.failure.borrow_mut().get_or_insert(why);
                site.world.stop();
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.change(self.io.discard(self.start + offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.change(self.io.write_zeroes(self.start + offset, len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.io.advice()
    }

    fn generation(&self) -> u64 {
        Part::seen(&*self.io, &self.site)
    }

    fn away_since(&self) -> Option<Instant> {
        self.io.away_since()
    }
}
