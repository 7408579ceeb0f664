//! `longhaul pool create`, `add-target`, `import`, `export`, `destroy`, `recover`.

use super::moves::{MoveArgs, Mover};
use super::{AddTarget, CreatePool, Domain, Import, PoolNamed, TargetSpec};
use crate::events::{IncompleteVolume, PoolGone, PoolImported, PoolMade, PoolRecovered, PoolTargetsChanged};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::pools::end;
use longhaul_block::units::format_size;
use longhaul_pool::{KnownPool, Pool, Quota, Targets, default_catalog, machine, shown};
use std::sync::Arc;

/// The address of each target and its failure domain.
fn locate(targets: &Targets, specs: &[TargetSpec], domain: Domain) -> Result<Vec<(String, String)>, Failure> {
    let locate = |spec: &TargetSpec| -> Result<(String, String), Failure> {
        let address = targets.find(&spec.name)?;
        let default = match domain {
            Domain::Host => machine(&address).to_owned(),
            Domain::Target => shown(&address),
        };
        Ok((address, spec.domain.clone().unwrap_or(default)))
    };
    // All at the same time: each takes several round trips.
    std::thread::scope(|scope| {
        let threads: Vec<_> = specs.iter().map(|spec| scope.spawn(move || locate(spec))).collect();
        let joined = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(joined).collect()
    })
}

pub(super) fn create(args: &CreatePool, output: Output) -> Outcome {
    let catalog = args.access.catalog.clone().unwrap_or_else(default_catalog);
    let known = KnownPool::new(&args.name, &catalog)?;
    longhaul_pool::check_name("pool", &args.name)?;
    if let Some(other) = KnownPool::all()?.into_iter().find(|pool| pool.name == args.name)
        && other.catalog != known.catalog
    {
        let (name, catalog) = (&args.name, &other.catalog);
        let why = format!("this host knows a pool {name} already, in catalog {catalog}: choose another name");
        return Err(Failure::new(Exit::Refused, why));
    }
    let targets = args.access.targets()?;
    let found = locate(&targets, &args.targets, args.domain.domain)?;
    let host = known.host(Arc::clone(&targets))?;
    let quota = Quota { pool: args.quota, job: args.job_quota };
    let pool = Pool::create(&host, &args.name, &found, quota)?;
    known.save()?;
    let capacity = pool.capacity()?;
    let uuid = pool.record().uuid.to_string();
    let (name, catalog) = (args.name.clone(), known.catalog.to_string());
    output.event(&PoolMade { name, uuid, catalog, targets: found.len(), capacity });
    if !output.is_json() {
        output.line(format_args!("pool {} of {} targets, {}", args.name, found.len(), format_size(capacity)));
    }
    Ok(())
}

pub(super) fn add_targets(args: &AddTarget, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.pool)?;
    let found = locate(&opened.targets, &args.targets, args.domain.domain)?;
    let mut added = Vec::new();
    for (address, domain) in &found {
        added.push(opened.pool.add_target(address, domain)?);
    }
    let capacity = added.iter().map(|target| target.capacity).sum();
    let targets: Vec<String> = added.into_iter().map(|target| target.address).collect();
    if !output.is_json() {
        for target in &targets {
            output.line(format_args!("added {}", shown(target)));
        }
    }
    output.event(&PoolTargetsChanged { targets, capacity });
    Ok(())
}

pub(super) fn import(args: &Import, output: Output) -> Outcome {
    let targets = args.access.targets()?;
    let addresses: Vec<String> =
        args.targets.iter().map(|target| targets.find(target)).collect::<Result<_, _>>()?;
    let catalog = args.access.catalog.clone().unwrap_or_else(default_catalog);
    // The name is in the labels: the record of this host is written after that.
    let host = KnownPool::new("", &catalog)?.host(targets)?;
    let bring_in = if args.force { longhaul_pool::take_over } else { longhaul_pool::import };
    let (pool, found) = bring_in(&host, &addresses, args.pool.as_deref(), args.name.as_deref())?;
    let known = KnownPool::new(&pool.record().name, &catalog)?;
    known.save()?;
    let missing: Vec<IncompleteVolume> = found
        .missing
        .iter()
        .map(|missing| IncompleteVolume {
            volume: missing.volume.clone(),
            members: missing.members.clone(),
            usable: missing.is_usable,
        })
        .collect();
    let unreadable: Vec<String> =
        found.unreadable.iter().map(|(address, why)| format!("target {}: {why}", shown(address))).collect();
    let name = pool.record().name.clone();
    for one in &found.missing {
        let numbers: Vec<String> = one.members.iter().map(usize::to_string).collect();
        let state = if one.is_usable { "it serves, degraded" } else { "it cannot serve without them" };
        output.note(format_args!(
            "volume {name}/{} lacks members {}: {state}",
            one.volume,
            numbers.join(", ")
        ));
    }
    for (from, to) in &found.renamed {
        output.note(format_args!("two volumes are called {from}: one of them is {to} now"));
    }
    for why in &unreadable {
        output.note(format_args!("a label is left alone: {why}"));
    }
    let volumes = found.whole.len() + found.missing.len();
    let lacking = found.missing.len();
    output.event(&PoolImported {
        name: name.clone(),
        uuid: pool.record().uuid.to_string(),
        catalog: known.catalog.to_string(),
        whole: found.whole,
        missing,
        left_over: found.left_over,
        unreadable,
    });
    if !output.is_json() {
        output.line(format_args!("pool {name} of {} targets, {volumes} volumes", addresses.len()));
    }
    if lacking > 0 {
        let message = format!("{lacking} volumes lack members: import the pool with all of its targets");
        return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
    }
    Ok(())
}

pub(super) fn export(args: &PoolNamed, output: Output) -> Outcome {
    // Of a pool that another catalog has taken over, nothing is to be finished.
    let opened = args.access.open(&args.pool)?;
    if opened.pool.check_managed().is_ok() {
        opened.pool.collect(longhaul_pool::wall_time())?;
    }
    let unaware = opened.pool.export()?;
    for why in &unaware {
        output.note(format_args!("{why}: an import that reads this target alone needs --force"));
    }
    gone(&opened.known, "exported", output)
}

pub(super) fn destroy(args: &PoolNamed, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.pool)?;
    opened.pool.destroy()?;
    gone(&opened.known, "destroyed", output)
}

fn gone(known: &KnownPool, done: &str, output: Output) -> Outcome {
    known.forget()?;
    output.event(&PoolGone { name: known.name.clone() });
    if !output.is_json() {
        output.line(format_args!("{done} {}", known.name));
    }
    Ok(())
}

pub(super) fn recover(args: &PoolNamed, output: Output) -> Outcome {
    let opened = args.access.open(&args.pool)?;
    opened.pool.check_managed()?;
    let moves = MoveArgs { limit: None, dry_run: false };
    let left = Mover::new(&opened, &args.access, &moves, output).resumed()?;
    let mut recovered = opened.pool.recover()?;
    recovered.waiting.extend(left);
    recovered.waiting.sort_unstable();
    recovered.waiting.dedup();
    if !output.is_json() {
        output.line(format_args!(
            "{} volumes finished, {} held by a host, {} namespaces removed",
            recovered.finished, recovered.held, recovered.swept
        ));
    }
    let waiting = recovered.waiting.clone();
    let longhaul_pool::Recovered { finished, held, swept, .. } = recovered;
    output.event(&PoolRecovered { finished, held, swept, waiting: waiting.clone() });
    end(&waiting, &format!("pool {}", args.pool), output)
}
