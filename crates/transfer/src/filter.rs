//! What to leave out.
//!
//! Rules are tried in the order they were given, and the first that matches
//! decides; what none matches is taken. As with rsync(1), a pattern is compared with
//! as many of the last components of a name as it has itself, and one that begins
//! with a slash with the whole name, that of the source included where it travels. `*`
//! and `?` do not match a slash, `**` between slashes does; a slash at the end says
//! nothing. A directory that is left out is not looked into.

use crate::wire::RelPath;
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A list of rules.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    take: bool,
    whole: bool,
    pattern: GlobMatcher,
}

impl Filter {
    /// From texts: `+PATTERN` takes, `-PATTERN` leaves out.
    ///
    /// # Errors
    /// A pattern makes no sense; in words.
    pub fn new(rules: &[String]) -> Result<Filter, String> {
        let rule = |text: &String| {
            let (take, pattern) = match text.split_at_checked(1) {
                Some(("+", pattern)) => (true, pattern),
                Some(("-", pattern)) => (false, pattern),
                _ => return Err(format!("the rule '{text}' begins with neither + nor -")),
            };
            let wrong = |e| format!("the pattern '{pattern}' makes no sense: {e}");
            let names = pattern.trim_matches('/');
            let whole = pattern.starts_with('/') || names.contains('/');
            let anywhere = if whole && !pattern.starts_with('/') { "**/" } else { "" };
            let glob = GlobBuilder::new(&format!("{anywhere}{names}")).literal_separator(true).build();
            let glob = glob.map_err(wrong)?;
            Ok(Rule { take, whole, pattern: glob.compile_matcher() })
        };
        Ok(Filter { rules: rules.iter().map(rule).collect::<Result<_, _>>()? })
    }

    /// Whether there is no rule: everything is taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether what has this name is taken.
    pub fn takes(&self, path: &RelPath) -> bool {
        path.is_root() || self.takes_name(path.split().0, path.split().1)
    }

    /// The same of a name in a directory, also of one that cannot travel.
    pub(crate) fn takes_name(&self, directory: &[u8], name: &[u8]) -> bool {
        let path = if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
        let matches = |rule: &&Rule| {
            let name = if rule.whole { &path } else { name };
            rule.pattern.is_match(OsStr::from_bytes(name))
        };
        self.rules.iter().find(matches).is_none_or(|rule| rule.take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = ["+keep.tmp", "-*.tmp", "-a/b", "-/c/d", "-/top", "-q/**/deep"].map(String::from);
        let filter = Filter::new(&rules).expect("good");
        let takes = |name: &str| filter.takes(&RelPath::new(name.as_bytes()).expect("good"));
        assert!(takes("x") && takes("d/keep.tmp") && takes(""));
        assert!(!takes("y.tmp") && !takes("d/y.tmp") && !takes("q/r/deep"));
        assert!(!takes("a/b") && !takes("c/a/b") && takes("ca/b") && takes("a/c/b") && takes("a/b/c"));
        assert!(!takes("c/d") && takes("a/c/d") && !takes("top") && takes("a/top"));
        assert!(Filter::new(&["x".into()]).is_err() && Filter::new(&["-[".into()]).is_err());
    }
}
