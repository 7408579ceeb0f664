//! `docs/events.md` and the pages below `docs/events/`: the events that the program prints with `--json`.
//!
//! They are declared as structures, in the modules of [`EVENTS`]: the declaration is the code that
//! prints. A doc comment says what an event or a field means, an alias such as `Bytes` its unit.
//! Each module is a page, and the index lists the pages.

use crate::repo::{File, Finding, Repo};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use syn::{Attribute, Expr, Field, GenericArgument, Item, ItemStruct, Lit, Meta, PathArguments, Type};

const INDEX: &str = "docs/events.md";
/// The directory of the pages.
const PAGES: &str = "docs/events/";
/// A page of this many lines is too long to read.
const LINES: usize = 250;

/// The declarations: a page for each module.
const EVENTS: &str = "crates/longhaul/src/events/";
/// Declarations that events include.
const INCLUDED: [&str; 2] = ["crates/longhaul/src/events.rs", "crates/device/src/arrays/report.rs"];
/// The module of events that any verb may print: first in the index.
const FIRST: &str = "general";
/// The module of lines of the audit log, which are declared as events are.
const LOG: &str = "audit";

const MADE: &str = "<!-- Made by `cargo xtask events` from crates/longhaul/src/events. -->\n";

const HEAD: &str = "
# Events

What `--json` prints: each line of standard output is one JSON object, an event, with its kind in `event`. The
last one is `summary`, or `error`. Text for people goes to standard error.

<!-- given: target dtn1 scratch=mem:256MiB -->
```sh
longhaul info nvme+tcp://dtn1/scratch --json
longhaul list --json
```

| page | events |
|---|---|
";

const FIELDS: &str = "
## How to read the tables

- `a.b` is field `b` of the object in `a`, `a[].b` that of each object in the list `a`, and `a.*` each value of
  an object, by its name.
- *Or null*, *or left out*: where there is no such value.
- Each round trip is in µs, in a field whose name has `round_trip` in it; only results (`--output`) keep `rtt_us`
  of their version 1.
- Later versions may add fields: ignore those that you do not know.
";

/// Writes the pages.
pub(crate) fn write(repo: &Repo) -> Result<()> {
    std::fs::create_dir_all(repo.root.join(PAGES)).with_context(|| format!("cannot make {PAGES}"))?;
    for (path, text) in pages(repo)? {
        std::fs::write(repo.root.join(&path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Fails if a page differs from the generated one.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    if let Some(finding) = differences(repo)?.first() {
        bail!("{finding}");
    }
    println!("{INDEX} and {PAGES} are current");
    Ok(())
}

/// The pages that differ from the generated ones.
pub(crate) fn differences(repo: &Repo) -> Result<Vec<Finding>> {
    let pages = pages(repo)?;
    let finding =
        |path: &str, message: &str| Finding { path: path.to_owned(), line: 0, message: message.to_owned() };
    let mut findings = Vec::new();
    for (path, text) in &pages {
        if repo.file(path).is_none_or(|file| file.text != *text) {
            findings.push(finding(path, "out of date: run `cargo xtask events`"));
        }
    }
    for file in repo.files.iter().filter(|file| file.path.starts_with(PAGES)) {
        if !pages.contains_key(&file.path) {
            findings.push(finding(&file.path, "no module declares these events: remove the page"));
        }
    }
    Ok(findings)
}

/// A module that declares events.
struct Module {
    /// The name of its file, without `.rs`.
    stem: String,
    /// Its documentation: the verbs in the first line, then paragraphs.
    header: String,
    /// The structures of its events, in order.
    events: Vec<String>,
}

/// All pages, by path.
fn pages(repo: &Repo) -> Result<BTreeMap<String, String>> {
    let mut modules = Vec::new();
    let mut declared = Declared::default();
    for file in &repo.files {
        let stem = file.path.strip_prefix(EVENTS).and_then(|name| name.strip_suffix(".rs"));
        if stem.is_some() || INCLUDED.contains(&file.path.as_str()) {
            let (header, events) = declared.read(file).with_context(|| file.path.clone())?;
            modules.extend(stem.map(|stem| Module { stem: stem.to_owned(), header, events }));
        }
    }
    ensure!(!modules.is_empty(), "no events below {EVENTS}");
    modules.sort_by_key(|module| (module.stem != FIRST, module.stem.clone()));
    declared.share(&modules)?;
    let mut pages = BTreeMap::new();
    let mut index = format!("{MADE}{HEAD}");
    for module in &modules {
        let verbs = module.header.lines().next().unwrap_or_default();
        let mut names: Vec<String> = Vec::new();
        for event in &module.events {
            let name = format!("`{}`", declared.event(event)?);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        writeln!(index, "| [{verbs}](events/{}.md) | {} |", module.stem, names.join(", "))?;
        pages.insert(format!("{PAGES}{}.md", module.stem), declared.page(module)?);
    }
    index.push_str(FIELDS);
    pages.insert(INDEX.to_owned(), index);
    for (path, text) in &pages {
        ensure!(text.lines().count() < LINES, "{path} has {LINES} lines or more: split its module");
    }
    Ok(pages)
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

/// What the modules declare.
#[derive(Default)]
struct Declared {
    structs: BTreeMap<String, ItemStruct>,
    /// Units by the names of their aliases.
    units: BTreeMap<String, String>,
    /// Structures that more than one field holds, with the page (its stem) where each has a section.
    shared: BTreeMap<String, String>,
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

    /// Finds the structures that more than one field of these events holds. A section of such a
    /// structure is on the first page that needs it.
    fn share(&mut self, modules: &[Module]) -> Result<()> {
        let mut pages: BTreeMap<String, &str> = BTreeMap::new();
        let mut shared = BTreeMap::new();
        for module in modules {
            let mut left = module.events.clone();
            while let Some(name) = left.pop() {
                for field in &self.structs[&name].fields {
                    let Some(inner) = self.shape(&field.ty)?.inner else { continue };
                    let inner = inner.ident.to_string();
                    if let Some(page) = pages.get(&inner) {
                        shared.insert(inner, (*page).to_owned());
                    } else {
                        left.push(inner.clone());
                        pages.insert(inner, &module.stem);
                    }
                }
            }
        }
        self.shared = shared;
        Ok(())
    }

    /// The name of an event in JSON.
    fn event(&self, name: &str) -> Result<String> {
        let item = &self.structs[name];
        serde_value(&item.attrs, "rename").with_context(|| format!("{name} is an event without a name"))
    }

    /// The page of a module.
    fn page(&self, module: &Module) -> Result<String> {
        let (verbs, more) = module.header.split_once('\n').unwrap_or((&module.header, ""));
        let source = if module.stem == LOG { "`--audit` writes" } else { "`--json` prints" };
        let mut out = format!(
            "{MADE}\n# Events of {verbs}\n\nWhat {source}, by event. [How to read the tables]\
             (../events.md#how-to-read-the-tables).\n{more}"
        );
        if !more.is_empty() {
            out.push('\n');
        }
        for event in &module.events {
            let item = &self.structs[event];
            write!(out, "\n**`{}`**: {}\n", self.event(event)?, doc(&item.attrs))?;
            out.push_str(&table(&self.rows(item, "", &module.stem)?));
        }
        let mut heading = "\n## Objects in several fields\n";
        for (name, _) in self.shared.iter().filter(|(_, page)| **page == module.stem) {
            let item = &self.structs[name];
            let rows = table(&self.rows(item, "", &module.stem)?);
            write!(out, "{heading}\n### {}\n\n{}\n{rows}", title(name), doc(&item.attrs))?;
            heading = "";
        }
        Ok(out)
    }

    /// A link from page `from` to the section of a structure, which page `to` has.
    fn link(words: &str, name: &str, from: &str, to: &str) -> String {
        let page = if from == to { String::new() } else { format!("{to}.md") };
        format!("[{words}]({page}#{})", title(name).to_lowercase().replace(' ', "-"))
    }

    /// Rows of the fields of a structure for a page; their names begin with `prefix`.
    fn rows(&self, item: &ItemStruct, prefix: &str, page: &str) -> Result<Vec<String>> {
        let mut rows = Vec::new();
        for field in &item.fields {
            let shape = self.shape(&field.ty)?;
            let meaning = doc(&field.attrs);
            let shared = shape.inner.and_then(|inner| self.shared.get_key_value(&inner.ident.to_string()));
            let link = |words: &str| shared.map(|(name, to)| Self::link(words, name, page, to));
            if has_serde(&field.attrs, "flatten") {
                let inner = shape.inner.context("a flattened field that is no structure")?;
                match link("these fields") {
                    Some(link) => rows.push(format!("| {link} | | {meaning} |\n")),
                    None => rows.extend(self.rows(inner, prefix, page)?),
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
            let words = match link("object") {
                Some(link) => shape.words.replace("object", &link),
                None => shape.words,
            };
            rows.push(format!("| `{prefix}{name}` | {words}{missing} | {meaning} |\n"));
            if let (Some(inner), None) = (shape.inner, shared) {
                rows.extend(self.rows(inner, &format!("{prefix}{name}{}.", shape.suffix), page)?);
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
    /// The suffix of the field's name in those of the fields of `inner`.
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
        declared.rows(&declared.structs[&events[0]], "", "x")
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

    #[test]
    fn an_object_of_several_fields_has_one_section() {
        let mut declared = Declared::default();
        let event = "#[serde(tag = \"event\", rename = \"x\")]";
        let one = format!(
            "//! `a`\n/// P.\nstruct P {{ /// N.\nn: u64 }}\n/// E.\n{event} struct A {{ /// P.\np: P }}"
        );
        let other = format!("//! `b`\n/// F.\n{event} struct B {{ /// P.\np: Vec<P> }}");
        let mut modules = Vec::new();
        for (stem, text) in [("a", one), ("b", other)] {
            let (header, events) = declared.read(&File { path: stem.into(), text }).expect("a module");
            modules.push(Module { stem: stem.into(), header, events });
        }
        declared.share(&modules).expect("fields of known types");
        let [a, b] = [&modules[0], &modules[1]].map(|module| declared.page(module).expect("a page"));
        assert!(a.contains("| `p` | [object](#p) | P. |") && a.contains("### P\n"), "{a}");
        assert!(b.contains("| `p` | list of [object](a.md#p) | P. |") && !b.contains("###"), "{b}");
    }
}
