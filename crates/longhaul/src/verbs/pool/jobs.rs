//! `longhaul pool allocate`, `release` and `jobs`.

use super::{Allocate, Jobs, Release};
use crate::events::{JobAllocated, JobList, JobListed, JobReleased, JobVolume};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::pools::{PoolArgs, end};
use crate::verbs::volume;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use longhaul_block::units::format_size;
use longhaul_catalog::CatalogSpec;
use longhaul_pool::{KnownPool, Removed, SCHEME, VolumeRequest, expand_nodes, format_time, volume_of_job};

/// What a template of NQNs has in place of the name of a node.
const NODE: &str = "{}";

pub(super) fn allocate(args: &Allocate, output: Output) -> Outcome {
    let nodes = args.nodes.as_deref().map(expand_nodes).transpose().map_err(Failure::usage)?;
    if nodes.is_some() && !args.node_nqn.contains(NODE) {
        return Err(Failure::usage(format!(
            "--node-nqn {} has no {NODE} for the name of a node",
            args.node_nqn
        )));
    }
    let (opened, _) = args.access.open_and_collect(&args.pool)?;
    let own = args.access.hostnqn();
    let template = args.shape.request(&opened.pool, String::new())?;
    let template =
        VolumeRequest { job: Some(args.for_job.clone()), lifetime: Some(args.lifetime), ..template };
    // A node, or none for the job as a whole, and the hosts that may use the volume.
    let places: Vec<(Option<String>, Vec<String>)> = match nodes {
        None => vec![(None, args.shape.hosts_or(&own))],
        Some(nodes) => {
            if matches!(opened.known.catalog, CatalogSpec::File(_)) {
                tracing::warn!(
                    "the catalog is a file of this host: nodes open the volumes by one at a server or in etcd"
                );
            }
            let nqn = |node: &String| args.node_nqn.replace(NODE, node);
            nodes.iter().map(|node| (Some(node.clone()), vec![nqn(node)])).collect()
        }
    };
    let requests: Vec<VolumeRequest> = places
        .iter()
        .map(|(node, hosts)| VolumeRequest {
            name: volume_of_job(&args.for_job, node.as_deref()),
            hosts: args.shape.hosts_while_made(hosts, &own),
            ..template.clone()
        })
        .collect();
    let volumes = opened.pool.create_volumes(&requests)?;
    let expires = volumes.iter().filter_map(|volume| volume.expires).min();
    if let Err(failure) = finish(args, &opened.pool, &places) {
        if let Err(e) = opened.pool.release(&args.for_job) {
            tracing::warn!("job {}: {e}", args.for_job);
        }
        return Err(failure);
    }
    for (node, hosts) in places {
        let device = format!("{SCHEME}{}/{}", args.pool, volume_of_job(&args.for_job, node.as_deref()));
        let as_host = match &node {
            Some(_) => hosts.first().map_or_else(String::new, |nqn| format!(" --hostnqn {nqn}")),
            None => String::new(),
        };
        let mount = args.shape.fs.map(|_| format!("longhaul mount{as_host} {device}"));
        if !output.is_json() {
            let whose = node.as_ref().map_or_else(String::new, |node| format!("{node}: "));
            match &mount {
                Some(mount) => output.line(format_args!("{whose}{mount} DIR")),
                None => output.line(format_args!("{whose}{device}")),
            }
        }
        output.event(&JobVolume { node, device, hosts, mount });
    }
    output.event(&JobAllocated { job: args.for_job.clone(), volumes: volumes.len(), expires });
    Ok(())
}

/// Makes the file systems, and leaves the volumes to their hosts.
fn finish(args: &Allocate, pool: &longhaul_pool::Pool, places: &[(Option<String>, Vec<String>)]) -> Outcome {
    let Some(fs) = args.shape.fs else { return Ok(()) };
    for (node, hosts) in places {
        let name = volume_of_job(&args.for_job, node.as_deref());
        volume::make_file_system(pool, &name, fs, hosts, &args.access)?;
    }
    Ok(())
}

/// The pools that are meant: all that are known here, unless some are named.
fn pools(named: &[String], access: &PoolArgs) -> Result<Vec<String>, Failure> {
    match (named, &access.catalog) {
        ([], None) => Ok(KnownPool::all()?.into_iter().map(|pool| pool.name).collect()),
        ([], Some(catalog)) => Ok(KnownPool::new("", catalog)?.host(access.targets()?)?.pools()?),
        (named, _) => Ok(named.to_vec()),
    }
}

pub(super) fn release(args: &Release, output: Output) -> Outcome {
    let job = &args.for_job;
    let (mut volumes, mut waiting) = (Vec::new(), Vec::new());
    let mut failed = None;
    for name in pools(&args.pools, &args.access)? {
        // A pool that cannot be used does not keep the job's volumes in others.
        match release_in(&name, args) {
            Ok((released, left)) => {
                volumes.extend(released.into_iter().map(|volume| format!("{SCHEME}{name}/{volume}")));
                waiting.extend(left);
            }
            Err(failure) => {
                output.note(format_args!("pool {name}: {}", failure.message));
                failed = Some(failure);
            }
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if !output.is_json() {
        for volume in &volumes {
            output.line(format_args!("removed {volume}"));
        }
    }
    output.event(&JobReleased { job: job.clone(), volumes, waiting: waiting.clone() });
    end(&waiting, &format!("job {job}"), output)
}

/// Removes what a job has in one pool: the names of its volumes, and what waits.
fn release_in(name: &str, args: &Release) -> Result<(Vec<String>, Vec<String>), Failure> {
    let opened = args.access.open(name)?;
    let job = &args.for_job;
    let of_job = |jobs: Vec<longhaul_pool::JobStatus>| jobs.into_iter().find(|status| status.job == *job);
    let volumes = of_job(opened.pool.jobs()?).map_or_else(Vec::new, |status| status.volumes);
    let mut waiting = match opened.pool.release(job)? {
        Removed::Whole => Vec::new(),
        Removed::Later(why) => why,
    };
    let collected = opened.pool.collect(longhaul_pool::wall_time())?;
    match of_job(opened.pool.jobs()?) {
        None => waiting.clear(),
        Some(_) if waiting.is_empty() && !collected.waiting.is_empty() => waiting = collected.waiting,
        Some(left) if waiting.is_empty() => waiting.push(format!(
            "{} volumes of job {job} are being made or removed by a host, or by one that was lost a short time \
             ago",
            left.intents
        )),
        Some(_) => {}
    }
    Ok((volumes, waiting))
}

pub(super) fn list(args: &Jobs, output: Output) -> Outcome {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["JOB", "POOL", "VOLUMES", "SIZE", "UNTIL"]);
    let (mut count, mut failed) = (0, None);
    for pool in pools(&args.pools, &args.access)? {
        let jobs = args.access.open_and_collect(&pool).and_then(|(opened, _)| Ok(opened.pool.jobs()?));
        let jobs = match jobs {
            Ok(jobs) => jobs,
            Err(failure) => {
                output.note(format_args!("pool {pool}: {}", failure.message));
                failed = Some(Failure::new(Exit::Partly, "not all pools can be used: see above"));
                continue;
            }
        };
        for status in jobs {
            count += 1;
            let until = status.expires.map_or_else(|| "–".to_owned(), format_time);
            let volumes = match status.intents {
                0 => status.volumes.len().to_string(),
                pending => format!("{} (+{pending} pending)", status.volumes.len()),
            };
            table.add_row([status.job.clone(), pool.clone(), volumes, format_size(status.bytes), until]);
            output.event(&JobListed {
                job: status.job,
                pool: pool.clone(),
                volumes: status.volumes,
                bytes: status.bytes,
                expires: status.expires,
                pending: status.intents,
            });
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    output.event(&JobList { jobs: count });
    if !output.is_json() {
        match count {
            0 => output.line("no job has volumes"),
            _ => output.line(table.trim_fmt()),
        }
    }
    Ok(())
}
