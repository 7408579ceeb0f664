//! The codes that the `wire` crate knows: what the table has to be complete about.

use crate::repo::Repo;

/// One named code, such as `IDENTIFY: u8 = 0x06` of `pub mod admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) name: String,
    pub(crate) value: u8,
}

/// The constants of every `pub mod {module}` of the `wire` crate.
pub(crate) fn of_module(repo: &Repo, module: &str) -> Vec<Code> {
    let files = repo.with_extension("rs").filter(|f| f.path.starts_with("crates/wire/src/"));
    files.flat_map(|f| in_text(&f.text, module)).collect()
}

fn in_text(text: &str, module: &str) -> Vec<Code> {
    let head = format!("pub mod {module} {{");
    let body = text.lines().skip_while(|line| *line != head).skip(1).take_while(|line| *line != "}");
    body.filter_map(constant).collect()
}

fn constant(line: &str) -> Option<Code> {
    let (name, value) = line.trim().strip_prefix("pub const ")?.split_once(": u8 = 0x")?;
    let value = u8::from_str_radix(value.strip_suffix(';')?, 16).ok()?;
    Some(Code { name: name.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_module_alone() {
        let text = "pub mod io {\n    pub const READ: u8 = 0x02;\n    // no\n}\npub mod lid {\n    pub const ANA: u8 = 0x0C;\n}\n";
        assert_eq!(in_text(text, "lid"), [Code { name: "ANA".to_owned(), value: 0x0C }]);
        assert_eq!(in_text(text, "cns"), []);
    }
}
