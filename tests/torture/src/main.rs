//! `longhaul-torture VERB PATH …`: the loads of the library, for places where
//! no test harness is.

use anyhow::{Context, Result, bail};
use longhaul_torture::fsx::Fsx;
use longhaul_torture::records;
use longhaul_torture::stress::Plan;
use std::io::Write;
use std::path::Path;

const USAGE: &str = "\
usage: longhaul-torture VERB PATH NUMBER...

  fsx FILE SEED STEPS                     everything that can be done to a file
  stress DIR SEED WORKERS CHANGES         trees that change all the time
  stress-check DIR SEED WORKERS CHANGES   what must be there afterwards
  records DIR SEED                        durable records, each one told, without end
  records-check DIR SEED LAST             all records up to LAST are there";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<u64>, _> = args.iter().skip(2).map(|number| number.parse()).collect();
    let numbers = numbers.context(USAGE)?;
    let [verb, path, ..] = &args[..] else { bail!(USAGE) };
    let path = Path::new(path);
    match (verb.as_str(), &numbers[..]) {
        ("fsx", &[seed, steps]) => {
            let mut fsx = Fsx::new(path, seed)?;
            fsx.run(steps)?;
            println!("{fsx}; refused: {:?}", fsx.refused());
        }
        ("stress", &[seed, workers, changes]) => Plan { workers, changes, seed }.run(path)?,
        ("stress-check", &[seed, workers, changes]) => {
            println!("{} files", Plan { workers, changes, seed }.check(path)?);
        }
        ("records", &[seed]) => {
            let mut out = std::io::stdout();
            // A failed print ends the load: its reader has closed the pipe.
            records::write(path, seed, |number| writeln!(out, "durable {number}").is_ok())?;
        }
        ("records-check", &[seed, last]) => records::check(path, seed, last)?,
        _ => bail!(USAGE),
    }
    Ok(())
}
