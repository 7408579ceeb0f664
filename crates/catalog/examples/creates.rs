//! How many transactions a second a catalog makes, for some clients at a time, each with a connection of its own.
//!
//! ```text
//! cargo run --release -p longhaul-catalog --example creates -- SECONDS CLIENTS CATALOG...
//! ```
//!
//! A transaction is what the making of a file is: two keys are put that are expected not to be there, and one is
//! replaced. Catalogs take turns, five times each.

use longhaul_catalog::{Access, Catalog, CatalogSpec, Expect, Txn};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;

fn create(catalog: &dyn Catalog, round: usize, client: usize, number: u64) -> longhaul_catalog::Result<()> {
    let key =
        |kind: &str| format!("creates/{}/{kind}/{round}/{client}/{number}", std::process::id()).into_bytes();
    let txn = Txn::new().expect(&key("inode"), Expect::Absent).expect(&key("entry"), Expect::Absent);
    let directory = format!("creates/directory/{client}");
    let txn =
        txn.put(&key("inode"), &[7; 120]).put(&key("entry"), &[7; 12]).put(directory.as_bytes(), &[7; 100]);
    catalog.commit(&txn)?;
    Ok(())
}

fn measure(
    spec: &CatalogSpec,
    round: usize,
    clients: usize,
    time: Duration,
) -> longhaul_catalog::Result<f64> {
    let catalogs: Vec<Arc<dyn Catalog>> =
        (0..clients).map(|_| spec.open(Access::default())).collect::<Result<_, _>>()?;
    // Connections are made before.
    catalogs.iter().try_for_each(|catalog| catalog.get(b"creates").map(drop))?;
    let begun = Instant::now();
    let made: Vec<longhaul_catalog::Result<u64>> = std::thread::scope(|scope| {
        let run = |(client, catalog): (usize, &Arc<dyn Catalog>)| {
            let catalog = Arc::clone(catalog);
            scope.spawn(move || {
                let mut made = 0;
                while begun.elapsed() < time {
                    create(&*catalog, round, client, made)?;
                    made += 1;
                }
                Ok(made)
            })
        };
        let threads: Vec<_> = catalogs.iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(0))).collect()
    });
    let made = made.into_iter().sum::<longhaul_catalog::Result<u64>>()?;
    Ok(made as f64 / begun.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "creates SECONDS CLIENTS CATALOG...";
    let time = Duration::from_secs_f64(args.next().ok_or(usage)?.parse()?);
    let clients: usize = args.next().ok_or(usage)?.parse()?;
    let specs = args.map(|arg| arg.parse()).collect::<Result<Vec<CatalogSpec>, _>>()?;
    let mut found = vec![Vec::new(); specs.len()];
    for round in 0..ROUNDS {
        for (spec, found) in specs.iter().zip(&mut found) {
            found.push(measure(spec, round, clients, time)?);
        }
    }
    for (spec, mut rates) in specs.iter().zip(found) {
        rates.sort_by(f64::total_cmp);
        let (least, most) = (rates[0], rates[ROUNDS - 1]);
        println!("{spec}, {clients} clients: {:.0} transactions/s ({least:.0}-{most:.0})", rates[ROUNDS / 2]);
    }
    Ok(())
}
