//! The table of mutations: for a terminal, and as a page.

use super::list::Mutation;
use super::{Outcome, Run};
use std::fmt::Write;

const HEAD: &str = "\
<!-- Made by `cargo xtask mutate --list --output docs/mutations.md` from xtask/mutations.toml. -->

# Mutations

Bugs that are planted on purpose, and the test that must fail for each. `cargo xtask mutate` plants
them one at a time, in a copy of the tree under `target/`, and runs that test. It fails if a test
does not catch its mutation, if the code that a mutation changes does not exist any more, or if a
test fails without a mutation. `--only NAME` plants only those whose name contains `NAME`.

The list shows that the tests catch these bugs, and says nothing about others. Each new promise of
the code should have a mutation that breaks it.
";

/// The mutations and their catchers.
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
pub(crate) fn page(mutations: &[&Mutation]) -> String {
    let mut rows = mutations.to_vec();
    rows.sort_by(|a, b| (&a.file, &a.name).cmp(&(&b.file, &b.name)));
    let mut out = format!("{HEAD}\n{} mutations:\n\n", rows.len());
    out.push_str("| mutation | in | what it breaks | caught by |\n|---|---|---|---|\n");
    for m in rows {
        let breaks = m.breaks.replace('|', "\\|");
        let _ = writeln!(out, "| {} | [{}](../{}) | {breaks} | `{}` |", m.name, m.file, m.file, m.catcher);
    }
    out
}
