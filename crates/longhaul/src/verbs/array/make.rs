//! `longhaul array create` and `assemble`.

use super::{Assemble, CreateArray, show};
use crate::events::ArrayCreated;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_array::{Shape, measure, path_unit, suited_unit};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_device::arrays::{ArrayRecord, ArrayRequest, Registry, RunningArray, open_members, read_labels};
use longhaul_engine::Thread;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

pub(super) fn create(args: CreateArray, output: Output) -> Outcome {
    let opener = args.initiator.opener();
    let known = ArrayRecord::all()?.into_iter().find(|record| record.name == args.name);
    if let Some(known) = &known {
        // With --force and all of its devices the array is created again; else the name is taken.
        let is_given = |device| {
            args.devices.contains(device)
                || args.spares.contains(device)
                || args.witness.as_ref() == Some(device)
        };
        if !args.force || !known.devices.iter().all(is_given) {
            return Err(Failure::usage(format!(
                "an array called {} is known here already ({}): choose another name, or replace it with \
                 --force and all of its devices",
                args.name, known.uuid
            )));
        }
    }
    let open = |names: &[String]| -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
        names.iter().map(|name| Ok(opener.open_blocking(name)?.block())).collect()
    };
    let (devices, spares) = (open(&args.devices)?, open(&args.spares)?);
    let witness = open(args.witness.as_slice())?.pop();
    let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.info()).collect();
    let thread = Thread::start("longhaul-array", opener.config()).map_err(Failure::failed)?;
    let unit = match args.stripe_unit {
        Some(unit) => unit,
        None => {
            let devices = devices.clone();
            let measured = thread.handle().spawn(move || async move { measure(&devices).await }).wait();
            let in_flight = measured.map_err(Failure::failed)??;
            suited_unit(&infos).max(in_flight.map_or(0, path_unit))
        }
    };
    let shape = Shape { name: args.name.clone(), layout: args.layout, unit, force: args.force };
    let made = {
        let (devices, spares) = (devices.clone(), spares.clone());
        let make = move || async move {
            longhaul_array::create_witnessed(&devices, &spares, witness.as_ref(), &shape, Uuid::new_v4).await
        };
        thread.handle().spawn(make).wait()
    };
    let uuid = made.map_err(Failure::failed)??;
    let devices = args.devices.iter().chain(&args.spares).chain(&args.witness).cloned().collect();
    let (name, settings, registry) = (args.name, args.settings.settings(), Registry::own());
    let record = ArrayRecord { uuid, name, devices, members: BTreeMap::new(), settings, registry };
    record.save()?;
    if let Some(known) = known {
        known.forget()?;
    }
    output.event(&ArrayCreated { uuid: uuid.to_string(), name: record.name.clone(), stripe_unit: unit });
    if !output.is_json() {
        output.line(format_args!("array:{} ({uuid})", record.name));
    }
    Ok(())
}

pub(super) fn assemble(args: Assemble, output: Output) -> Outcome {
    let opener = args.initiator.opener();
    let given: Vec<String> = args.devices.iter().chain(&args.witness).cloned().collect();
    let members = open_members(&given, &opener);
    if members.is_empty() {
        return Err(Failure::new(Exit::Unreachable, "none of the devices can be opened"));
    }
    let devices: Vec<Arc<dyn BlockDevice>> = members.iter().map(|(_, device)| Arc::clone(device)).collect();
    let found = read_labels(&devices, &opener.config())?;
    let known = ArrayRecord::all()?;
    let mut record: Option<ArrayRecord> = None;
    for ((name, _), label) in members.iter().zip(found) {
        let Some(label) = label? else {
            return Err(longhaul_array::ArrayError::NoMember(name.clone()).into());
        };
        let record = record.get_or_insert_with(|| ArrayRecord {
            uuid: label.array,
            name: label.name.clone(),
            devices: given.clone(),
            members: BTreeMap::new(),
            settings: args.settings.settings(),
            // The registry that has a record of the array, so that there is one record only.
            registry: known
                .iter()
                .find(|known| known.uuid == label.array)
                .map_or_else(Registry::own, |known| known.registry.clone()),
        });
        if record.uuid != label.array {
            let (device, name, array) = (name.clone(), label.name, label.array);
            return Err(longhaul_array::ArrayError::Foreign { device, name, array }.into());
        }
        record.members.insert(name.clone(), label.member);
    }
    let Some(record) = record else { return Err(Failure::usage("no device was given")) };
    drop((members, devices));
    let running = RunningArray::open_as(&record, &opener, args.degraded)?;
    let status = {
        let opener = opener.clone();
        running.wait(move |device| async move { ArrayRequest::Status.run(&device, &opener).await })??
    };
    running.stop()?;
    record.save()?;
    show::summary(&status, None, output);
    Ok(())
}
