//! `docs/events.md`: the events that the program prints with `--json`.
//!
//! They are declared as structures, in the modules of [`EVENTS`]: the declaration is the code that
//! prints. A doc comment says what an event or a field means, an alias such as `Bytes` its unit.

use crate::repo::{File, Finding, Repo};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use syn::{Attribute, Expr, Field, GenericArgument, Item, ItemStruct, Lit, Meta, PathArguments, Type};

const PAGE: &str = "docs/events.md";

/// The declarations; a section of the page for each module.
const EVENTS: &str = "crates/longhaul/src/events/";
/// Declarations that events include.
const INCLUDED: [&str; 2] = ["crates/longhaul/src/events.rs", "crates/device/src/arrays/report.rs"];

const HEAD: &str = "\
<!-- Made by `cargo xtask events` from crates/longhaul/src/events. -->

# Events

With `--json` each line of standard output is one JSON object, an event. Its kind is in `event`. The last
event is `summary`, or `error`. What is for people goes to standard error then.

In the tables, `a.b` is field `b` of the object in `a`, `a[].b` that of each object in the list `a`, and `a.*`
each value of an object, by its name. *Or null*, *or left out*: where there is no such value. Later versions
may add fields: ignore those that you do not know. Each round trip is in µs, in a field whose name has
`round_trip` in it; only results (`--output`) keep `rtt_us` of their version 1.
";

/// Writes the page.
pub(crate) fn write(repo: &Repo) -> Result<()> {
    let path = repo.root.join(PAGE);
    std::fs::write(&path, page(repo)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Fails if the page is not what would be written.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    if let Some(finding) = differs(repo)? {
        bail!("{finding}");
    }
    println!("{PAGE} is current");
    Ok(())
}

/// That the page is not what would be written.
pub(crate) fn differs(repo: &Repo) -> Result<Option<Finding>> {
    let written = repo.file(PAGE).map_or("", |f| f.text.as_str());
    let message = "out of date: run `cargo xtask events`".to_owned();
    Ok((written != page(repo)?).then(|| Finding { path: PAGE.to_owned(), line: 0, message }))
}

fn page(repo: &Repo) -> Result<String> {
    let mut sections = Vec::new();
    let mut declared = Declared::default();
    for file in &repo.files {
        let is_section = file.path.starts_with(EVENTS);
        if is_section || INCLUDED.contains(&file.path.as_str()) {
            let (header, events) = declared.read(file).with_context(|| file.path.clone())?;
            if is_section {
                sections.push((header, events));
            }
        }
    }
    ensure!(!sections.is_empty(), "no events below {EVENTS}");
    sections.sort_by(|a, b| a.0.cmp(&b.0));
    declared.count(sections.iter().flat_map(|(_, events)| events))?;
    let mut out = HEAD.to_owned();
    for (header, events) in sections {
        write!(out, "\n## {header}\n")?;
        for event in events {
            let item = &declared.structs[&event];
            let name = serde_value(&item.attrs, "rename").context("an event without a name")?;
            write!(out, "\n**`{name}`**: {}\n", doc(&item.attrs))?;
            out.push_str(&table(&declared.rows(item, "")?));
        }
    }
    write!(out, "\n## Objects in several events\n")?;
    for name in &declared.shared {
        let item = &declared.structs[name];
        write!(out, "\n### {}\n\n{}\n{}", title(name), doc(&item.attrs), table(&declared.rows(item, "")?))?;
    }
    Ok(out)
}

fn table(rows: &[String]) -> String {
    match rows {
        [] => String::new(),
        rows => format!("\n| field | type | meaning |\n|---|---|---|\n{}", rows.concat()),
    }
}

/// The heading of a structure: the words of its name.
fn title(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(if words.is_empty() { letter } else { letter.to_ascii_lowercase() });
    }
    words
}

/// A reference to the section of a structure.
fn link(words: &str, name: &str) -> String {
    format!("[{words}](#{})", title(name).to_lowercase().replace(' ', "-"))
}

/// What the modules declare.
#[derive(Default)]
struct Declared {
    structs: BTreeMap<String, ItemStruct>,
    /// Units by the names of their aliases.
    units: BTreeMap<String, String>,
    /// Structures that more than one field holds: each has a section of its own.
    shared: BTreeSet<String>,
}

impl Declared {
    /// Reads a module; returns its header and the names of its events, in order.
    fn read(&mut self, file: &File) -> Result<(String, Vec<String>)> {
        let parsed = syn::parse_file(&file.text)?;
        let mut events = Vec::new();
        for item in parsed.items {
            match item {
                Item::Struct(item) => {
                    let name = item.ident.to_string();
                    if serde_value(&item.attrs, "tag").is_some_and(|tag| tag == "event") {
                        events.push(name.clone());
                    }
                    ensure!(!self.structs.contains_key(&name), "{name} is declared twice");
                    self.structs.insert(name, item);
                }
                Item::Type(alias) => {
                    self.units.insert(alias.ident.to_string(), doc(&alias.attrs));
                }
                _ => {}
            }
        }
        // The first line is the heading; paragraphs stay.
        let header = lines(&parsed.attrs).join("\n");
        Ok((header, events))
    }

    /// Finds the structures that more than one field of these events holds.
    fn count<'a>(&mut self, events: impl Iterator<Item = &'a String>) -> Result<()> {
        let mut seen = BTreeSet::new();
        let mut shared = BTreeSet::new();
        let mut left: Vec<String> = events.cloned().collect();
        while let Some(name) = left.pop() {
            for field in &self.structs[&name].fields {
                let Some(inner) = self.shape(&field.ty)?.inner else { continue };
                let inner = inner.ident.to_string();
                if seen.insert(inner.clone()) {
                    left.push(inner);
                } else {
                    shared.insert(inner);
                }
            }
        }
        self.shared = shared;
        Ok(())
    }

    /// Rows of the fields of a structure, whose names begin with `prefix`.
    fn rows(&self, item: &ItemStruct, prefix: &str) -> Result<Vec<String>> {
        let mut rows = Vec::new();
        for field in &item.fields {
            let shape = self.shape(&field.ty)?;
            let meaning = doc(&field.attrs);
            let shared =
                shape.inner.map(|inner| inner.ident.to_string()).filter(|at| self.shared.contains(at));
            if has_serde(&field.attrs, "flatten") {
                let inner = shape.inner.context("a flattened field that is no structure")?;
                match shared {
                    Some(at) => rows.push(format!("| {} | | {meaning} |\n", link("these fields", &at))),
                    None => rows.extend(self.rows(inner, prefix)?),
                }
                continue;
            }
            let name = name(field)?;
            ensure!(!meaning.is_empty(), "{}.{name} has no doc comment", item.ident);
            let missing = match (shape.null, has_serde(&field.attrs, "skip_serializing_if")) {
                (_, true) => " or left out",
                (true, false) => " or null",
                _ => "",
            };
            let words = match &shared {
                Some(at) => shape.words.replace("object", &link("object", at)),
                None => shape.words,
            };
            rows.push(format!("| `{prefix}{name}` | {words}{missing} | {meaning} |\n"));
            if let (Some(inner), None) = (shape.inner, shared) {
                rows.extend(self.rows(inner, &format!("{prefix}{name}{}.", shape.suffix))?);
            }
        }
        Ok(rows)
    }

    fn shape<'a>(&'a self, ty: &Type) -> Result<Shape<'a>> {
        let (ident, arguments) = match ty {
            Type::Reference(reference) => return self.shape(&reference.elem),
            Type::Slice(slice) => return Ok(self.shape(&slice.elem)?.listed()),
            Type::Path(path) => {
                let last = path.path.segments.last().context("an empty path")?;
                (last.ident.to_string(), &last.arguments)
            }
            _ => bail!("a type of field that this reader does not know"),
        };
        let argument = |at: usize| -> Result<&Type> {
            let PathArguments::AngleBracketed(all) = arguments else { bail!("{ident} without arguments") };
            let mut types = all.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            types.nth(at).with_context(|| format!("{ident} without arguments"))
        };
        Ok(match ident.as_str() {
            "Option" => Shape { null: true, ..self.shape(argument(0)?)? },
            "Vec" => self.shape(argument(0)?)?.listed(),
            "BTreeMap" => {
                let each = self.shape(argument(1)?)?;
                Shape { words: format!("object of {}", each.words), suffix: ".*", ..each }
            }
            "Reply" => self.shape(argument(0)?)?,
            "String" | "str" => Shape::of("text"),
            "bool" => Shape::of("true or false"),
            "Value" => Shape::of("any"),
            "Validity" => Shape::of("object"),
            "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "f64" => Shape::of("number"),
            name => match (self.units.get(name), self.structs.get(name)) {
                (Some(unit), _) => Shape { words: format!("number, {unit}"), ..Shape::of("") },
                (None, Some(item)) => Shape { inner: Some(item), ..Shape::of("object") },
                (None, None) => bail!("{name} is declared nowhere"),
            },
        })
    }
}

/// What a field holds.
struct Shape<'a> {
    words: String,
    null: bool,
    /// The structure, if it is one or a list of them.
    inner: Option<&'a ItemStruct>,
    /// What follows the field's name in those of the fields of `inner`.
    suffix: &'static str,
}

impl Shape<'_> {
    fn of(words: &str) -> Shape<'static> {
        Shape { words: words.to_owned(), null: false, inner: None, suffix: "" }
    }

    fn listed(self) -> Self {
        Shape { words: format!("list of {}", self.words), suffix: "[]", ..self }
    }
}

/// The name of a field in JSON.
fn name(field: &Field) -> Result<String> {
    let ident = field.ident.as_ref().context("a field without a name")?;
    Ok(serde_value(&field.attrs, "rename").unwrap_or_else(|| ident.to_string()))
}

/// The lines of a doc comment.
fn lines(attributes: &[Attribute]) -> Vec<String> {
    let text = |attribute: &Attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let Expr::Lit(literal) = &pair.value else { return None };
        let Lit::Str(text) = &literal.lit else { return None };
        pair.path.is_ident("doc").then(|| text.value().trim().to_owned())
    };
    attributes.iter().filter_map(text).collect()
}

/// A doc comment as one line.
fn doc(attributes: &[Attribute]) -> String {
    lines(attributes).join(" ")
}

/// The value of `#[serde(key = "value")]`.
fn serde_value(attributes: &[Attribute], key: &str) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        // Other keys may have any form; what cannot be parsed is for serde to refuse.
        let _ = attribute.parse_nested_meta(|meta| {
            let value = match meta.value() {
                Ok(value) => value.parse::<syn::LitStr>()?.value(),
                Err(_) => String::new(),
            };
            if meta.path.is_ident(key) {
                found = Some(value);
            }
            Ok(())
        });
    }
    found
}

/// Whether there is `#[serde(key)]`.
fn has_serde(attributes: &[Attribute], key: &str) -> bool {
    serde_value(attributes, key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let mut declared = Declared::default();
        let (_, events) = declared.read(&File { path: "x.rs".into(), text: text.to_owned() })?;
        declared.rows(&declared.structs[&events[0]], "")
    }

    #[test]
    fn fields_are_listed_with_unit_and_path() {
        let rows = read(
            "/// B\ntype Bytes = u64;
            /// It ended.
            #[derive(Serialize)]
            #[serde(tag = \"event\", rename = \"summary\")]
            struct Ended { /// Parts.\nparts: Vec<Part>, /// How.\n#[serde(rename = \"loop\")] way: Option<String> }
            /// A part.
            struct Part { /// Its size.\n#[serde(skip_serializing_if = \"Option::is_none\")] size: Option<Bytes> }",
        );
        let rows = rows.expect("rows").concat();
        assert_eq!(
            rows,
            "| `parts` | list of object | Parts. |\n| `parts[].size` | number, B or left out | Its size. |\n\
             | `loop` | text or null | How. |\n"
        );
    }

    #[test]
    fn a_field_has_a_meaning_and_a_known_type() {
        let event = "#[serde(tag = \"event\", rename = \"x\")] struct X";
        assert!(read(&format!("{event} {{ a: u64 }}")).is_err_and(|e| e.to_string().contains("X.a")));
        assert!(read(&format!("{event} {{ /// A.\na: Odd }}")).is_err_and(|e| e.to_string().contains("Odd")));
    }
}
