//! `longhaul volume ls` and `info`.

use super::{ListVolumes, VolumeNamed, device};
use crate::events::{VolumeInfo, VolumeList, VolumeListed, VolumeMember};
use crate::exit::Outcome;
use crate::output::Output;
use longhaul_block::units::format_size;
use longhaul_pool::{KnownPool, VolumeBrief, VolumeState, format_time};
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
        let _ = write!(lines, "until {}", format_time(expires));
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
        health: status.and_then(|status| status["health"].as_str().map(str::to_owned)),
    };
    if !output.is_json() {
        tell(&info, output);
    }
    output.event(&info);
    Ok(())
}

fn tell(info: &VolumeInfo, output: Output) {
    let VolumeInfo { device, size, layout, width, spares, .. } = info;
    let spares = if *spares == 0 { String::new() } else { format!(" and {spares} spares") };
    output.line(format_args!("{device}: {}, {layout} over {width} members{spares}", format_size(*size)));
    for (index, member) in info.members.iter().enumerate() {
        let kind = if index < *width { "member" } else { "spare" };
        let uri = member.uri.as_deref().unwrap_or("missing");
        output.line(format_args!("{kind} {index}: {uri}, {}", format_size(member.size)));
    }
    output.line(format_args!("for {}", info.hosts.join(", ")));
    output.line(format_args!("made by {} on {}", info.made_by, format_time(info.made_at)));
    if let Some(job) = &info.job {
        output.line(format_args!("for job {job}"));
    }
    if let Some(expires) = info.expires {
        output.line(format_args!("may be removed after {}", format_time(expires)));
    }
    match (&info.health, info.creating) {
        (_, true) => output.line("it is being made"),
        (Some(health), false) => output.line(format_args!("a process of this host runs its array: {health}")),
        (None, false) => {}
    }
}
