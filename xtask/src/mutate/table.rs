//! The table of mutations: for a terminal, and as a page.

use super::list::Mutation;
use super::{Outcome, Run};
use std::fmt::Write;

const HEAD: &str = "\
<!-- Made by `cargo xtask mutate --output docs/mutations.md` from xtask/mutations.toml. -->

# Mutations

Bugs that were planted on purpose, one at a time, and the test that failed for each. `cargo xtask
mutate` plants them again, in a copy of the tree; it fails if one of them goes unseen, if the code
that it changes is not there any more, or if a test of the list fails without a mutation.
";

/// The mutations and what is to catch them.
pub(crate) fn listed(mutations: &[&Mutation]) -> String {
    let mut out = String::new();
    for m in mutations {
        let _ = writeln!(out, "{}\n    {}: {}\n    caught by {}", m.name, m.file, m.breaks, m.catcher);
    }
    let _ = writeln!(out, "{} mutations", mutations.len());
    out
}

/// One mutation that was run.
pub(crate) fn line(run: &Run<'_>) -> String {
    let Mutation { name, file, breaks, catcher, .. } = run.mutation;
    let outcome = match run.outcome {
        Outcome::Failed => format!("caught by {catcher}"),
        Outcome::Hung => format!("caught by {catcher}, which does not end"),
        Outcome::Survived => format!("NOT CAUGHT by {catcher}"),
    };
    format!("{name:<44} {file}: {breaks}: {outcome} ({} s)", run.seconds)
}

/// All as a page, in the order of their files.
pub(crate) fn page(runs: &[Run<'_>]) -> String {
    let mut rows: Vec<&Mutation> = runs.iter().map(|run| run.mutation).collect();
    rows.sort_by(|a, b| (&a.file, &a.name).cmp(&(&b.file, &b.name)));
    let mut out = format!("{HEAD}\n{} mutations, all caught.\n\n", rows.len());
    out.push_str("| mutation | in | what it breaks | caught by |\n|---|---|---|---|\n");
    for m in rows {
        let breaks = m.breaks.replace('|', "\\|");
        let _ = writeln!(out, "| {} | [{}](../{}) | {breaks} | `{}` |", m.name, m.file, m.file, m.catcher);
    }
    out
}
