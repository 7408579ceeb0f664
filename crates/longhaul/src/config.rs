//! Configuration files: TOML, a table for each verb with its flags' names as
//! keys.
//!
//! The entries of a file become flags before those of the command line, and one parser checks
//! both:
//!
//! - a flag of the command line overrides every file, whole lists included;
//! - the file of the user overrides that of the machine;
//! - every table and key of a file is checked, also of verbs not in use.

use crate::arguments::Keys;
use crate::cli::Cli;
use crate::events::{ConfigSetting, ConfigSummary, ErrorEvent};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The file of the machine.
const SYSTEM: &str = "/etc/longhaul/config.toml";
/// The file of a user, in `XDG_CONFIG_HOME` or `~/.config`.
const PERSONAL: &str = "longhaul/config.toml";
/// Flags that only make sense on the command line.
const NEVER: [&str; 3] = ["help", "version", "show-config"];

/// The verb that takes nothing from files: it has to reach a target whose file is wrong.
const WITHOUT: &str = "ctl";

/// Stand-alone name of a flag while a value in a file is checked.
const CHECKED_KEY: &str = "key-alone";

/// Settings of one verb from the files: for each key its arguments, and the file.
type VerbSettings = BTreeMap<String, (Vec<OsString>, PathBuf)>;

/// The settings of a verb: for each flag its value, in the form of a configuration file.
pub(crate) type VerbValues = BTreeMap<String, Option<Value>>;

/// What files and command line say together.
struct Merged<'a> {
    verb: Vec<(String, &'a Command)>,
    /// Arguments for the parser: flags of the files, and then those of the command line.
    all: Vec<OsString>,
    settings: VerbSettings,
    /// The files that exist.
    files: Vec<PathBuf>,
}

/// Reads the files, and adds what they say to the command line; `None` without a verb.
fn merge<'a>(command: &'a Command, args: &[OsString]) -> Result<Option<Merged<'a>>, Failure> {
    let Some((verb, at)) = find_verb(command, args) else { return Ok(None) };
    let is_free = verb.first().is_some_and(|(name, _)| name == WITHOUT);
    let files = if is_free { Vec::new() } else { files() };
    let files = files.into_iter().map(|path| read(&path)).collect::<Result<Vec<_>, _>>()?;
    let mut settings = VerbSettings::new();
    for (path, table) in files.iter().flatten() {
        check(path, command, table, &[])?;
        settings.extend(settings_of(path, table, &verb)?);
    }
    let last = verb.last().map(|(_, command)| *command).unwrap_or(command);
    settings.retain(|key, _| !is_given(last, key, &args[at..]));
    let mut all = args[..at].to_vec();
    all.extend(settings.values().flat_map(|(flags, _)| flags.clone()));
    all.extend_from_slice(&args[at..]);
    let files = files.into_iter().flatten().map(|(path, _)| path).collect();
    Ok(Some(Merged { verb, all, settings, files }))
}

/// Parses the command line together with the configuration files. Exits after help, version or
/// the configuration were printed, and on arguments that are wrong. Returns the settings of the verb, too.
pub(crate) fn parse() -> Result<(Cli, VerbValues), Failure> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let mut command = Cli::command();
    command.build();
    // Help is printed even if a file has errors.
    if let Err(e) = command.clone().try_get_matches_from(&args)
        && !e.use_stderr()
    {
        e.exit();
    }
    let Some(Merged { verb, all, settings, .. }) = merge(&command, &args)? else {
        // Without a verb, the parser reports the error.
        let matches = command.try_get_matches_from(args).unwrap_or_else(|e| end(&e));
        return Ok((cli(&matches).unwrap_or_else(|e| end(&e)), VerbValues::new()));
    };
    let last = verb.last().map(|(_, command)| *command).unwrap_or(&command);
    if is_given(last, "show-config", &args[1..]) {
        return show(&command, &verb, &all, &settings);
    }
    let matches = match command.clone().try_get_matches_from(all) {
        Ok(matches) => matches,
        Err(e) => return Err(with_file(&e, &settings).unwrap_or_else(|| end(&e))),
    };
    Ok((cli(&matches).unwrap_or_else(|e| end(&e)), values_of(&verb, &matches)))
}

/// Reads the configuration files again, together with the command line that this process has.
///
/// # Errors
/// A file cannot be read, or is wrong. The text names the file, and the key where there is one.
pub(crate) fn read_again() -> Result<(Cli, VerbValues), Failure> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let mut command = Cli::command();
    command.build();
    let Some(Merged { verb, all, settings, files }) = merge(&command, &args)? else {
        return Err(Failure::usage("the command line has no verb"));
    };
    let wrong = |e: &clap::Error| {
        let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
        let at = if files.is_empty() { "without a configuration file".to_owned() } else { files.join(", ") };
        Failure::usage(format_args!("{at}: {}", message_of(e)))
    };
    let parsed = command.clone().try_get_matches_from(all);
    let matches = parsed.map_err(|e| with_file(&e, &settings).unwrap_or_else(|| wrong(&e)))?;
    Ok((cli(&matches).map_err(|e| wrong(&e))?, values_of(&verb, &matches)))
}

/// The settings of a verb.
fn values_of(verb: &[(String, &Command)], matches: &ArgMatches) -> VerbValues {
    let inner = verb.iter().try_fold(matches, |here, (name, _)| here.subcommand_matches(name));
    let (Some(matches), Some((_, command))) = (inner, verb.last()) else { return VerbValues::new() };
    let keys = command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    let keys = keys.filter(|(_, key)| !NEVER.contains(key));
    keys.map(|(arg, key)| (key.to_owned(), value_of(arg, matches))).collect()
}

fn cli(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(matches)
}

/// Whether `--json` is given; for errors that occur before the arguments are parsed.
pub(crate) fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Exits with the parser's help or error; with `--json` the error is also an event.
fn end(e: &clap::Error) -> ! {
    if e.use_stderr() {
        let message = &message_of(e);
        Output::new(wants_json()).event(&ErrorEvent { exit: Exit::Usage as u8, message, reason: None });
    }
    e.exit()
}

/// The first paragraph of the parser's error.
fn message_of(e: &clap::Error) -> String {
    let text = e.to_string();
    let first: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = first.join(" ");
    message.strip_prefix("error: ").unwrap_or(&message).to_owned()
}

/// Paths of the configuration files; a later one overrides an earlier one.
fn files() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".config"));
    let personal = variable("XDG_CONFIG_HOME").or_else(home).map(|dir| dir.join(PERSONAL));
    [Some(PathBuf::from(SYSTEM)), personal].into_iter().flatten().collect()
}

fn read(path: &Path) -> Result<Option<(PathBuf, Table)>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::usage(format!("cannot read {}: {e}", path.display()))),
    };
    let table = text.parse::<Table>().map_err(|e| {
        let line = e.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        Failure::usage(format!("{}, line {line}: {}", path.display(), e.message()))
    })?;
    Ok(Some((path.to_owned(), table)))
}

/// Finds the verb (with its own verb, as in `dataset make`), and the index of its first argument.
/// Global flags, which precede the verb, take no values.
fn find_verb<'a>(command: &'a Command, args: &[OsString]) -> Option<(Vec<(String, &'a Command)>, usize)> {
    let (mut found, mut here, mut at) = (Vec::new(), command, 0);
    for (i, arg) in args.iter().enumerate().skip(1) {
        let arg = arg.to_str()?;
        if arg.starts_with('-') {
            continue;
        }
        let Some(next) = here.find_subcommand(arg) else { break };
        found.push((arg.to_owned(), next));
        (here, at) = (next, i + 1);
        if !here.has_subcommands() {
            break;
        }
    }
    (!found.is_empty()).then_some((found, at))
}

/// Checks every table and key of a file.
fn check(path: &Path, command: &Command, table: &Table, above: &[&str]) -> Result<(), Failure> {
    for (key, value) in table {
        let mut name = above.to_vec();
        name.push(key);
        let name = name.join(".");
        match (command.find_subcommand(key), value) {
            (Some(verb), Value::Table(inner)) => {
                let mut below = above.to_vec();
                below.push(key);
                check(path, verb, inner, &below)?;
            }
            (None, value) if !above.is_empty() && flag(command, key).is_some() => {
                let typed = flags(path, command, &name, key, value)?;
                check_value(path, command, key, &typed)?;
            }
            _ => return Err(unknown(path, command, &name, above)),
        }
    }
    Ok(())
}

/// Checks a value with the parser of its flag, also for verbs not in use; but for keys, which are opened by that and
/// which the user of another verb may not read.
fn check_value(path: &Path, command: &Command, key: &str, typed: &[OsString]) -> Result<(), Failure> {
    let Some(arg) = flag(command, key) else { return Ok(()) };
    if arg.get_value_parser().type_id() == TypeId::of::<Keys>() {
        return Ok(());
    }
    // In a parser of its own: flags that it requires or excludes are checked for the verb in use.
    let mut alone = Arg::new(CHECKED_KEY).long(CHECKED_KEY).action(arg.get_action().clone());
    alone = alone.value_parser(arg.get_value_parser().clone());
    alone = alone.value_names(arg.get_value_names().unwrap_or_default().to_vec());
    if let Some(count) = arg.get_num_args() {
        alone = alone.num_args(count);
    }
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let parser = Command::new(CHECKED_KEY).no_binary_name(true).arg(alone);
    let renamed = typed.iter().map(|text| match text.to_str().and_then(|text| text.split_once('=')) {
        Some((_, value)) => format!("--{CHECKED_KEY}={value}").into(),
        None => OsString::from(format!("--{CHECKED_KEY}")),
    });
    parser.try_get_matches_from(renamed).map(drop).map_err(|e| wrong_value(path, key, &e))
}

/// The error for a value that its flag rejects, with the parser's reason.
fn wrong_value(path: &Path, key: &str, e: &clap::Error) -> Failure {
    let text = e.to_string();
    let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let reason = reason.replace(&format!("--{CHECKED_KEY}"), &format!("--{key}"));
    Failure::usage(format!("{}: key '{key}': {reason}", path.display()))
}

fn unknown(path: &Path, command: &Command, name: &str, above: &[&str]) -> Failure {
    let path = path.display();
    if above.is_empty() {
        let verbs = command.get_subcommands().map(Command::get_name).filter(|name| *name != "help");
        let verbs: Vec<_> = verbs.collect();
        return Failure::usage(format!(
            "{path}: '{name}' is not a table of a verb: use [VERB] with one of {}",
            verbs.join(", ")
        ));
    }
    let verb = above.join(" ");
    Failure::usage(format!(
        "{path}: unknown key '{name}': keys are the flags that 'longhaul {verb} --help' lists, without the dashes"
    ))
}

/// The flag that a key names.
fn flag<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(key) && !NEVER.contains(&key))
}

fn settings_of(path: &Path, table: &Table, verb: &[(String, &Command)]) -> Result<VerbSettings, Failure> {
    let mut here = table;
    let mut name = Vec::new();
    for (verb, _) in verb {
        name.push(verb.as_str());
        match here.get(verb) {
            Some(Value::Table(inner)) => here = inner,
            _ => return Ok(VerbSettings::new()),
        }
    }
    let Some((_, command)) = verb.last() else { return Ok(VerbSettings::new()) };
    let mut settings = VerbSettings::new();
    for (key, value) in here.iter().filter(|(key, _)| flag(command, key).is_some()) {
        let name = format!("{}.{key}", name.join("."));
        settings.insert(key.clone(), (flags(path, command, &name, key, value)?, path.to_owned()));
    }
    Ok(settings)
}

/// A key and its value as arguments of the command line.
fn flags(
    path: &Path,
    command: &Command,
    name: &str,
    key: &str,
    value: &Value,
) -> Result<Vec<OsString>, Failure> {
    let wrong = |what: &str| Failure::usage(format!("{}: '{name}' {what}", path.display()));
    let Some(arg) = flag(command, key) else { return Err(wrong("is not a flag")) };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    };
    let one = |text: String| OsString::from(format!("--{key}={text}"));
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Ok(vec![format!("--{key}").into()]),
        (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(wrong("is either true or false")),
        (ArgAction::Count, Value::Integer(n @ 0..=9)) => {
            Ok(vec![format!("--{key}").into(); usize::try_from(*n).unwrap_or(0)])
        }
        (ArgAction::Count, _) => Err(wrong("is a number from 0 to 9")),
        (ArgAction::Append, Value::Array(all)) => all
            .iter()
            .map(|value| text(value).map(one).ok_or_else(|| wrong("is a list of strings or numbers")))
            .collect(),
        (ArgAction::Append, value) => {
            text(value).map(|t| vec![one(t)]).ok_or_else(|| wrong("is a string or a list of strings"))
        }
        (_, value) => text(value).map(|t| vec![one(t)]).ok_or_else(|| wrong("is a string or a number")),
    }
}

/// Whether a flag is on the command line.
fn is_given(command: &Command, key: &str, args: &[OsString]) -> bool {
    let short = command.get_arguments().find(|arg| arg.get_long() == Some(key)).and_then(Arg::get_short);
    let long = format!("--{key}");
    args.iter().map(|arg| arg.to_string_lossy()).take_while(|arg| arg != "--").any(|arg| {
        let is_long = arg.strip_prefix(&long).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        let cluster = arg.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        is_long || short.is_some_and(|short| cluster.is_some_and(|flags| flags.contains(short)))
    })
}

/// Adds the file to a parser error if the value came from one; `None` for all other errors.
fn with_file(e: &clap::Error, settings: &VerbSettings) -> Option<Failure> {
    let named = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.trim_start_matches('-').split([' ', '=']).next(),
        _ => None,
    };
    let (key, (_, path)) = named.and_then(|key| settings.get_key_value(key))?;
    let is_value = matches!(e.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    is_value.then(|| wrong_value(path, key, e))
}

/// Prints the settings that result from files and command line, then exits.
fn show(
    command: &Command,
    verb: &[(String, &Command)],
    args: &[OsString],
    settings: &VerbSettings,
) -> Result<(Cli, VerbValues), Failure> {
    // Missing arguments are ignored: the settings are only printed.
    let matches = command.clone().ignore_errors(true).try_get_matches_from(args);
    let matches = matches.unwrap_or_else(|e| end(&e));
    let mut here = &matches;
    for (name, _) in verb {
        match here.subcommand_matches(name) {
            Some(inner) => here = inner,
            None => return Err(Failure::usage("the arguments make no sense")),
        }
    }
    let name = verb.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
    let Some((_, command)) = verb.last() else { return Err(Failure::usage("there is no verb")) };
    let output = Output::new(is_given(command, "json", &args[1..]));
    let mut text = format!("[{name}]");
    let mut all = BTreeMap::new();
    for arg in command.get_arguments() {
        let Some(key) = arg.get_long().filter(|key| !NEVER.contains(key)) else { continue };
        let source = match (settings.get(key), here.value_source(arg.get_id().as_str())) {
            (Some((_, path)), _) => path.display().to_string(),
            (None, Some(ValueSource::CommandLine)) => "command line".into(),
            (None, _) => "default".into(),
        };
        let value = value_of(arg, here);
        match &value {
            Some(value) => text += &format!("\n{key} = {value}  # {source}"),
            None => text += &format!("\n# {key} is not set"),
        }
        all.insert(key.to_owned(), ConfigSetting { value, source });
    }
    output.event(&ConfigSummary { verb: name, settings: all });
    if !output.is_json() {
        output.line(text);
    }
    std::process::exit(0)
}

/// The value of a flag in the form of a configuration file; `None` if it is not set.
fn value_of(arg: &Arg, matches: &ArgMatches) -> Option<Value> {
    let id = arg.get_id().as_str();
    let values = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
    match arg.get_action() {
        ArgAction::SetTrue => Some(matches.get_flag(id).into()),
        ArgAction::Count => Some(i64::from(matches.get_count(id)).into()),
        _ if values.is_empty() => None,
        ArgAction::Append => Some(values.into()),
        _ => values.first().cloned().map(Value::String),
    }
}
