//! Mounts of what is a file system already, by FUSE: a directory of another machine, a file system in a pool.

use super::background;
use super::mount::MountArgs;
use super::observe;
use super::{ready_at, watched};
use crate::events::{FarMountReady, ServiceSummary};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use longhaul_attach::fuse::{FuseTree, Others, TreeOptions};
use longhaul_attach::{Service, ServiceEvent, listen};
use longhaul_device::Opener;
use longhaul_device::attached::{Attachment, log_of};
use longhaul_fs::{Counted, FileSystem};
use longhaul_metrics::FileSystemSource;
use longhaul_poolfs::Replacer;
use std::path::Path;
use std::sync::Arc;

/// What is mounted.
pub(super) struct TreeSource {
    /// As it was named.
    pub(super) name: String,
    /// How, in the record of the mount.
    pub(super) via: &'static str,
    pub(super) files: Arc<dyn FileSystem>,
    /// What other users may do, if they may access it.
    pub(super) others: Others,
    /// It cannot be changed, whatever the options say.
    pub(super) is_read_only: bool,
    /// What is wrong with it now.
    pub(super) trouble: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Replaces members that are lost, as long as it is mounted.
    pub(super) replacer: Option<Replacer>,
}

/// Mounts what `open` opens at `dir`: by a process in the background, unless this is that one.
pub(super) fn run(
    args: &MountArgs,
    dir: &Path,
    output: Output,
    open: impl FnOnce(&Opener) -> Result<TreeSource, Failure>,
) -> Outcome {
    if !args.foreground && !background::is_this() {
        let ready = background::start(&log_of(dir), output)?;
        print_ready(&ready, output);
        return Ok(());
    }
    serve(args, dir, output, open)
}

fn serve(
    args: &MountArgs,
    dir: &Path,
    mut output: Output,
    open: impl FnOnce(&Opener) -> Result<TreeSource, Failure>,
) -> Outcome {
    // From here on a signal is an event, also while it is being opened.
    let (event_sender, events) = observe::events()?;
    let (opener, metrics) = watched(&args.device.using, &args.metrics)?;
    let TreeSource { name, via, mut files, others, is_read_only, trouble, replacer } = open(&opener)?;
    if let Some(metrics) = &metrics {
        let counted = Counted::new(files);
        let (counts, trouble) = (counted.counts(), Arc::downgrade(&trouble));
        // A scrape that is under way does not keep the file system from its end.
        let is_in_trouble = move || trouble.upgrade().is_some_and(|trouble| trouble().is_some());
        metrics.add(Arc::new(FileSystemSource::new(name.clone(), counts, is_in_trouble)));
        files = Arc::new(counted);
    }
    background::leave();
    let read_only = args.device.using.read_only || is_read_only;
    let record = Attachment {
        path: dir.to_owned(),
        devices: args.devices.clone(),
        via: via.into(),
        size: 0,
        read_only,
        pid: std::process::id(),
        trouble: None,
    };
    let mut held = record.hold()?;
    let server = listen(dir, &event_sender)?;
    held.write(&record)?;
    let others = if args.far.allow_other { others } else { Others::Refused };
    let options = TreeOptions { name: name.clone(), others, read_only };
    let ended = move || drop(event_sender.send(ServiceEvent::Ended));
    let tree = FuseTree::new(files, dir, &options, ended)?;
    let ready = FarMountReady {
        path: dir.display().to_string(),
        via: via.into(),
        source: name,
        pid: record.pid,
        read_only,
        metrics: ready_at(metrics.as_ref()),
    };
    print_ready(&ready, output);
    if background::is_this() {
        // The starting process reads standard output only until the `ready` event.
        output = Output::new(false);
    }
    let service = Service {
        front_end: Box::new(tree),
        path: dir,
        size: Box::new(|| 0),
        trouble: Box::new(|| trouble()),
        // The front end is the mount itself.
        release: Box::new(|_| Ok(())),
        released: Box::new(|| false),
        record,
        held: &mut held,
        observer: &output,
    };
    let mut detach_request = None;
    let result = service.run(&events, &mut detach_request);
    background::finish(&log_of(dir), result.is_ok());
    // Released before the reply, so that `longhaul umount` can be followed by a mount at once. With the last
    // of it a file system in a pool ends its session.
    drop((replacer, server, held, metrics, trouble));
    if let Some(request) = detach_request {
        request.answer(result.clone());
    }
    output.event(&ServiceSummary { clean: result.is_ok() });
    Ok(result?)
}

fn print_ready(ready: &FarMountReady, output: Output) {
    output.event(ready);
    if !output.is_json() {
        let how = if ready.read_only { ", read-only" } else { "" };
        output.line(format_args!("ready {} ({}{how})", ready.path, ready.source));
    }
}
