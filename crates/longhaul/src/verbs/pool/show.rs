//! `longhaul pool ls` and `status`.

use super::{ListPools, PoolNamed};
use crate::events::{PendingVolume, PoolList, PoolListed, PoolManager, PoolSummary, PoolTargetListed};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use longhaul_block::units::format_size;
use longhaul_pool::{IntentKind, KnownPool, Pool, Status, format_time, shown};

pub(super) fn list(args: &ListPools, output: Output) -> Outcome {
    let targets = args.access.targets()?;
    let mut found = Vec::new();
    if let Some(catalog) = &args.access.catalog {
        let host = KnownPool::new("", catalog)?.host(targets)?;
        for name in host.pools()? {
            found.push((KnownPool::new(&name, catalog)?, None));
        }
    } else {
        for known in KnownPool::all()? {
            let opened = known.host(targets.clone()).and_then(|host| Pool::open(&host, &known.name));
            found.push((known, opened.err().map(|e| e.to_string())));
        }
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["POOL", "CATALOG"]);
    for (known, error) in &found {
        let (name, catalog) = (known.name.clone(), known.catalog.to_string());
        let note = error.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        table.add_row([name.clone(), format!("{catalog}{note}")]);
        output.event(&PoolListed { name, catalog, error: error.clone() });
    }
    output.event(&PoolList { pools: found.len() });
    if !output.is_json() {
        match found.len() {
            0 => output.line("no pool is known on this host"),
            _ => output.line(table.trim_fmt()),
        }
    }
    Ok(())
}

pub(super) fn status(args: &PoolNamed, output: Output) -> Outcome {
    let (opened, waiting) = args.access.open_and_collect(&args.pool)?;
    let status = opened.pool.status()?;
    for target in &status.targets {
        output.event(&PoolTargetListed { target: target.into() });
    }
    let summary = summary(&status, opened.known.catalog.to_string(), waiting);
    if !output.is_json() {
        tell(&status, &summary, output);
    }
    output.event(&summary);
    if summary.unreachable > 0 {
        let (missing, all) = (summary.unreachable, summary.targets);
        let message = format!("{missing} of the {all} targets of pool {} cannot be asked", args.pool);
        return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
    }
    Ok(())
}

fn summary(status: &Status, catalog: String, waiting: Vec<String>) -> PoolSummary {
    let pending = status.intents.iter().map(|intent| PendingVolume {
        volume: intent.volume.name.clone(),
        doing: match intent.kind {
            IntentKind::Create => "create",
            IntentKind::Remove => "remove",
            IntentKind::Resize => "resize",
            IntentKind::Move => "move",
        },
        host: intent.host.clone(),
        since: intent.since,
    });
    PoolSummary {
        name: status.record.name.clone(),
        uuid: status.record.uuid.to_string(),
        catalog,
        manager: status.record.manager.as_ref().map(Into::into),
        targets: status.targets.len(),
        unreachable: status.targets.iter().filter(|target| target.space.is_err()).count(),
        volumes: status.volumes.len(),
        capacity: status.targets.iter().map(|target| target.record.capacity).sum(),
        used: status.usage.total(),
        quota: status.record.quota.pool,
        job_quota: status.record.quota.job,
        pending: pending.collect(),
        waiting,
    }
}

fn tell(status: &Status, summary: &PoolSummary, output: Output) {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["TARGET", "DOMAIN", "SIZE", "USED", "FREE"]);
    for target in &status.targets {
        let record = &target.record;
        let free = match &target.space {
            Ok(space) => format_size(space.free),
            Err(why) => why.to_string(),
        };
        let (size, used) = (format_size(record.capacity), format_size(target.used));
        table.add_row([shown(&record.address), record.domain.clone(), size, used, free]);
    }
    let limit = summary.quota.map_or_else(String::new, |quota| format!(", limit {}", format_size(quota)));
    output.line(format_args!(
        "{}\npool {} ({}): {} volumes, {} of {} promised{limit}\ncatalog {}",
        table.trim_fmt(),
        summary.name,
        summary.uuid,
        summary.volumes,
        format_size(summary.used),
        format_size(summary.capacity),
        summary.catalog
    ));
    if let Some(PoolManager { host, hostnqn, since, .. }) = &summary.manager {
        output.line(format_args!("managed by {host} ({hostnqn}) since {}", format_time(*since)));
    }
    for pending in &summary.pending {
        let PendingVolume { volume, doing, host, since } = pending;
        output.line(format_args!("{doing} {volume}: begun by {host} on {}", format_time(*since)));
    }
    for why in &summary.waiting {
        output.line(format_args!("waiting: {why}"));
    }
}
