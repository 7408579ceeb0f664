//! `longhaul pool rebalance` and `remove-target`, and `longhaul volume repair`: members that move.

use super::{Rebalance, RemoveTarget};
use crate::arguments::parse_bytes;
use crate::events::{MemberMoves, MembersMoved, MoveProgressed, PoolTargetsChanged};
use crate::exit::{Exit, Failure, Outcome};
use crate::live::eta;
use crate::output::Output;
use crate::pools::{OpenPool, PoolArgs};
use crate::screen::Line;
use longhaul_block::units::format_size;
use longhaul_pool::{Error, MoveProgress, MoveRun, MoveStep, PlannedMove, Removed, shown};
use longhaul_poolfs::HostMembers;

/// How members move.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// Most bytes per second read from each member
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) limit: Option<u64>,
    /// Change nothing, and print what would move
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Moves members of the volumes of a pool, and tells about it.
pub(crate) struct Mover<'a> {
    opened: &'a OpenPool,
    arrays: HostMembers,
    args: &'a MoveArgs,
    output: Output,
    summary: MembersMoved,
}

/// Where from and where to, as messages have it.
fn words(pool: &str, step: &MoveStep) -> String {
    let from = step.from.as_deref().map_or_else(|| "a target that is gone".to_owned(), shown);
    format!("member {} of {pool}/{} from {from} to {}", step.index, step.volume, shown(&step.to))
}

impl<'a> Mover<'a> {
    pub(crate) fn new(
        opened: &'a OpenPool,
        access: &PoolArgs,
        args: &'a MoveArgs,
        output: Output,
    ) -> Mover<'a> {
        let arrays = HostMembers::new(&opened.targets, access.initiator.opener());
        let summary = MembersMoved {
            moved: 0,
            bytes: 0,
            failed: Vec::new(),
            waiting: Vec::new(),
            dry_run: args.dry_run,
        };
        Mover { opened, arrays, args, output, summary }
    }

    /// Reaches the arrays and file systems of the pool.
    pub(crate) fn arrays(&self) -> &HostMembers {
        &self.arrays
    }

    fn name(&self) -> &str {
        &self.opened.known.name
    }

    /// Runs `work`, whose progress is shown.
    fn run<T>(&self, work: impl FnOnce(&mut MoveRun<'_>) -> T) -> T {
        let (line, pool, output) = (Line::new(), self.name(), self.output);
        let mut show = |step: &MoveStep, progress: &MoveProgress| {
            let MoveProgress { done, total, rate, left } = *progress;
            output.event(&MoveProgressed {
                volume: format!("{pool}/{}", step.volume),
                member: step.index,
                done_bytes: done,
                total_bytes: total,
                bytes_per_second: rate,
                remaining_seconds: left.map(|left| left.as_secs_f64()),
            });
            let text = format!(
                "moving {}: {}/{}, {}/s{}",
                words(pool, step),
                format_size(done),
                format_size(total),
                format_size(rate as u64),
                eta(left)
            );
            line.show(Some(done as f64 / total.max(1) as f64), text);
        };
        work(&mut MoveRun { arrays: &self.arrays, limit: self.args.limit, show: &mut show })
    }

    /// Continues the moves that lost hosts have left. What waits is in the result.
    pub(crate) fn resumed(&self) -> Result<Vec<String>, Failure> {
        match self.args.dry_run {
            true => Ok(Vec::new()),
            false => Ok(self.run(|run| self.opened.pool.resume_moves(run))?),
        }
    }

    /// The same; what waits is part of the summary.
    pub(crate) fn resume(&mut self) -> Outcome {
        let waiting = self.resumed()?;
        self.summary.waiting.extend(waiting);
        Ok(())
    }

    /// Moves them one after another, or prints them. One that fails does not keep the others.
    pub(crate) fn carry_out(&mut self, moves: &[PlannedMove]) -> Outcome {
        for planned in moves {
            let step = &planned.step;
            self.output.event(&MemberMoves {
                volume: format!("{}/{}", self.name(), step.volume),
                member: step.index,
                from: step.from.clone(),
                to: step.to.clone(),
                size: step.bytes,
            });
            let words = words(self.name(), step);
            if self.args.dry_run {
                self.summary.bytes += step.bytes;
                if !self.output.is_json() {
                    self.output.line(format_args!("would move {words}, {}", format_size(step.bytes)));
                }
                continue;
            }
            let moved =
                self.run(|run| self.opened.pool.move_member(&step.volume, step.index, &planned.to, run));
            match moved {
                Ok((_, removed)) => {
                    self.summary.moved += 1;
                    self.summary.bytes += step.bytes;
                    if let Removed::Later(why) = removed {
                        self.summary.waiting.extend(why);
                    }
                    if !self.output.is_json() {
                        self.output.line(format_args!("moved {words}, {}", format_size(step.bytes)));
                    }
                }
                Err(e @ Error::Catalog(_)) => return Err(e.into()),
                Err(e) => {
                    let why = format!("{words}: {e}");
                    self.output.note(format_args!("not moved: {why}"));
                    self.summary.failed.push(why);
                }
            }
        }
        Ok(())
    }

    /// Whether all moves were made.
    fn is_done(&self) -> bool {
        self.summary.failed.is_empty()
    }

    /// Ends the command, whose result this is.
    pub(crate) fn end(self) -> Outcome {
        let MembersMoved { failed, waiting, .. } = &self.summary;
        for why in waiting {
            self.output.note(format_args!("waiting: {why}"));
        }
        let (failed, waiting) = (failed.len(), waiting.len());
        self.output.event(&self.summary);
        if failed + waiting == 0 {
            return Ok(());
        }
        let message = match failed {
            0 => format!(
                "pool {}: {waiting} namespaces or moves wait; a later command finishes them",
                self.name()
            ),
            _ => format!("pool {}: {failed} members have not moved; give the command again", self.name()),
        };
        Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) })
    }
}

pub(super) fn rebalance(args: &Rebalance, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.pool)?;
    let mut mover = Mover::new(&opened, &args.access, &args.moves, output);
    mover.resume()?;
    let moves = opened.pool.plan_balance()?;
    mover.carry_out(&moves)?;
    mover.end()?;
    if moves.is_empty() {
        return args
            .nothing
            .nothing(format!("nothing to do: the targets of pool {} are even", args.pool), output);
    }
    Ok(())
}

pub(super) fn remove_targets(args: &RemoveTarget, output: Output) -> Outcome {
    let (opened, _) = args.access.open_and_collect(&args.pool)?;
    let mut mover = Mover::new(&opened, &args.access, &args.moves, output);
    mover.resume()?;
    let removal = opened.pool.plan_removal(&args.targets)?;
    if !removal.stuck.is_empty() {
        let targets: Vec<String> = removal.targets.iter().map(|target| shown(&target.address)).collect();
        let message = format!("target {} is not removed: {}", targets.join(", "), removal.stuck.join("; "));
        return Err(Failure::new(Exit::Refused, message));
    }
    mover.carry_out(&removal.moves)?;
    if args.moves.dry_run || !mover.is_done() {
        return mover.end();
    }
    let mut removed = Vec::new();
    for target in &removal.targets {
        if args.force {
            opened.pool.forget_namespaces(&target.id)?;
        }
        removed.push(opened.pool.remove_target(&target.id)?);
    }
    let capacity = removed.iter().map(|target| target.capacity).sum();
    let targets: Vec<String> = removed.into_iter().map(|target| target.address).collect();
    if !output.is_json() {
        for target in &targets {
            output.line(format_args!("removed {}", shown(target)));
        }
    }
    output.event(&PoolTargetsChanged { targets, capacity });
    Ok(())
}
