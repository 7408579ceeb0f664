//! `longhaul volume ls` and `info`.

use super::{ListVolumes, VolumeNamed, device};
use crate::events::{
    VolumeInfo, VolumeList, VolumeListed, VolumeMember, VolumeMoving, VolumeResizing, VolumeSource,
};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use longhaul_block::units::format_size;
use longhaul_pool::{KnownPool, VolumeBrief, VolumeName, VolumeState, format_time};
use std::fmt::Write;

pub(super) fn list(args: &ListVolumes, output: Output) -> Outcome {
    let pools = match (&args.pools[..], &args.access.catalog) {
        ([], None) => KnownPool::all()?.into_iter().map(|pool| pool.name).collect(),
        ([], Some(catalog)) => KnownPool::new("", catalog)?.host(args.access.targets()?)?.pools()?,
        (pools, _) => pools.to_vec(),
    };
    let (mut volumes, mut size) = (0, 0u64);
    let mut lines = String::new();
    for pool in &pools {
        let opened = args.access.open(pool)?;
        opened.pool.list_volumes(|volume| {
            volumes += 1;
            size = size.saturating_add(volume.shape.size);
            if output.is_json() {
                add_event(&mut lines, pool, &volume);
            } else {
                add_line(&mut lines, pool, &volume);
            }
        })?;
    }
    // All lines in one write, and no table that is laid out: there may be ten thousand.
    if output.is_json() && volumes > 0 {
        output.document(lines.trim_end());
    }
    output.event(&VolumeList { volumes, size });
    if !output.is_json() {
        let head = format!("{:<32} {:>10} {:<18} {}\n", "VOLUME", "SIZE", "LAYOUT", "FOR");
        output.line(format_args!("{head}{lines}{volumes} volumes, {}", format_size(size)));
    }
    Ok(())
}

fn add_event(lines: &mut String, pool: &str, volume: &VolumeBrief<'_>) {
    let event = VolumeListed {
        pool,
        name: &volume.name,
        size: volume.shape.size,
        layout: volume.shape.layout.name(),
        width: volume.shape.width,
        spares: volume.shape.spares,
        job: volume.job.as_deref(),
        expires: volume.expires,
        creating: volume.state == VolumeState::Creating,
        snapshot_of: volume.snapshot_of.as_ref().map(|of| of.name.as_str()),
    };
    // unwrap: it has text for keys, and writing to memory does not fail.
    lines.push_str(&serde_json::to_string(&event).unwrap_or_default());
    lines.push('\n');
}

fn add_line(lines: &mut String, pool: &str, volume: &VolumeBrief<'_>) {
    let shape = &volume.shape;
    let spares = if shape.spares == 0 { String::new() } else { format!("+{}", shape.spares) };
    let layout = format!("{} {}{spares}", shape.layout, shape.width);
    let name = format!("{pool}/{}", volume.name);
    // Writing to memory does not fail.
    let _ = write!(lines, "{name:<32} {:>10} {layout:<18} ", format_size(shape.size));
    if let Some(job) = &volume.job {
        let _ = write!(lines, "job {job} ");
    }
    if let Some(expires) = volume.expires {
        let _ = write!(lines, "until {} ", format_time(expires));
    }
    if let Some(of) = &volume.snapshot_of {
        let _ = write!(lines, "snapshot of {} ", of.name);
    }
    if volume.state == VolumeState::Creating {
        lines.push_str("(being made)");
    }
    lines.truncate(lines.trim_end_matches(' ').len());
    lines.push('\n');
}

pub(super) fn info(args: &VolumeNamed, output: Output) -> Outcome {
    let opened = args.access.open(&args.volume.pool)?;
    let volume = opened.pool.volume(&args.volume.name)?;
    let uris = opened.pool.member_uris(&volume)?;
    let status = opened.pool.running_status(&volume)?;
    let resizing = opened.pool.resizing(&volume)?.map(|resizing| VolumeResizing {
        size: resizing.size,
        host: resizing.host,
        since: resizing.since,
        under_way: resizing.under_way,
    });
    // Of an array that this host runs it is known how far it has come.
    let filling = |field: &str| status.as_ref().and_then(|status| status["filling"][field].as_u64());
    let moving = opened.pool.moving(&volume)?.map(|moving| VolumeMoving {
        index: moving.index,
        from: moving.from,
        to: moving.to,
        target: moving.target,
        host: moving.host,
        since: moving.since,
        under_way: moving.under_way,
        done: filling("done_bytes"),
        total: filling("total_bytes"),
    });
    let snapshot_of = volume.snapshot_of.as_ref().map(|of| -> Result<VolumeSource, Failure> {
        let present = opened.pool.volume_of(of.volume)?.map(|volume| volume.name);
        let exists = present.is_some();
        Ok(VolumeSource {
            uuid: of.volume.to_string(),
            name: present.unwrap_or_else(|| of.name.clone()),
            exists,
        })
    });
    let snapshot_of = snapshot_of.transpose()?;
    let member = |(uri, member): (Option<String>, &longhaul_pool::Member)| VolumeMember {
        uri,
        namespace: member.namespace.map(|id| id.uuid.to_string()),
        size: volume.shape.member_size,
    };
    let info = VolumeInfo {
        device: device(&args.volume),
        uuid: volume.uuid.to_string(),
        size: volume.shape.size,
        layout: volume.shape.layout.to_string(),
        width: volume.shape.width,
        spares: volume.shape.spares,
        stripe_unit: volume.shape.unit,
        thin: volume.thin,
        array: volume.array.map(|uuid| uuid.to_string()),
        members: uris.into_iter().zip(&volume.members).map(member).collect(),
        hosts: volume.hosts.clone(),
        job: volume.job.clone(),
        expires: volume.expires,
        made_by: volume.made_by.clone(),
        made_at: volume.made_at,
        creating: volume.state == VolumeState::Creating,
        resizing,
        moving,
        snapshot_of,
        health: status.and_then(|status| status["health"].as_str().map(str::to_owned)),
    };
    if !output.is_json() {
        tell(&info, &args.volume, output);
    }
    output.event(&info);
    Ok(())
}

fn tell(info: &VolumeInfo, name: &VolumeName, output: Output) {
    let VolumeInfo { device, size, layout, width, spares, .. } = info;
    let spares = if *spares == 0 { String::new() } else { format!(" and {spares} spares") };
    output.line(format_args!("{device}: {}, {layout} over {width} members{spares}", format_size(*size)));
    for (index, member) in info.members.iter().enumerate() {
        let kind = if index < *width { "member" } else { "spare" };
        let uri = member.uri.as_deref().unwrap_or("missing");
        output.line(format_args!("{kind} {index}: {uri}, {}", format_size(member.size)));
    }
    if let Some(VolumeSource { name: source, exists, .. }) = &info.snapshot_of {
        let gone = if *exists { "" } else { ", which was removed" };
        let source = super::device(&VolumeName { name: source.clone(), ..name.clone() });
        output.line(format_args!("snapshot of {source}{gone}"));
    }
    output.line(format_args!("for {}", info.hosts.join(", ")));
    output.line(format_args!("made by {} on {}", info.made_by, format_time(info.made_at)));
    if let Some(job) = &info.job {
        output.line(format_args!("for job {job}"));
    }
    if let Some(expires) = info.expires {
        output.line(format_args!("may be removed after {}", format_time(expires)));
    }
    if let Some(VolumeResizing { size, host, since, under_way }) = &info.resizing {
        let (size, since) = (format_size(*size), format_time(*since));
        match under_way {
            true => output.line(format_args!("it is being resized to {size}, by {host} since {since}")),
            false => output.line(format_args!(
                "a resize to {size}, begun by {host} on {since}, is unfinished: 'longhaul pool recover {}' \
                 finishes it",
                name.pool
            )),
        }
    }
    if let Some(moving) = &info.moving {
        tell_moving(moving, *width, name, output);
    }
    match (&info.health, info.creating) {
        (_, true) => output.line("it is being made"),
        (Some(health), false) => output.line(format_args!("a process of this host runs its array: {health}")),
        (None, false) => {}
    }
}

fn tell_moving(moving: &VolumeMoving, width: usize, name: &VolumeName, output: Output) {
    let VolumeMoving { index, from, to, target, host, since, under_way, done, total } = moving;
    let kind = if *index < width { "member" } else { "spare" };
    let from = from.as_deref().unwrap_or("a place that is missing");
    let to = to.as_deref().or(target.as_deref()).unwrap_or("a target that is not known any more");
    let progress = match done.zip(*total) {
        Some((done, total)) => format!(", {} of {} are there", format_size(done), format_size(total)),
        None => String::new(),
    };
    let since = format_time(*since);
    match under_way {
        true => output.line(format_args!(
            "{kind} {index} moves from {from} to {to}, by {host} since {since}{progress}"
        )),
        false => output.line(format_args!(
            "a move of {kind} {index} from {from} to {to}, begun by {host} on {since}, is unfinished{progress}: \
             'longhaul pool recover {}' continues it",
            name.pool
        )),
    }
}
