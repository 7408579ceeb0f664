//! Include and exclude rules.
//!
//! The first rule that matches decides; a path that no rule matches is included. As with
//! rsync(1), a pattern is matched against as many trailing components of a path as it has
//! itself, and one that begins with a slash against the whole path, the source's own name
//! included if it is part of it. `*` and `?` do not match a slash, `**` between slashes
//! does; a trailing slash is ignored. Excluded directories are not scanned.

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
    /// Parses rules: `+PATTERN` includes, `-PATTERN` excludes.
    ///
    /// # Errors
    /// A rule or pattern is malformed.
    pub fn new(rules: &[String]) -> Result<Filter, String> {
        let rule = |text: &String| {
            let (take, pattern) = match text.split_at_checked(1) {
                Some(("+", pattern)) => (true, pattern),
                Some(("-", pattern)) => (false, pattern),
                _ => return Err(format!("the rule '{text}' begins with neither + nor -")),
            };
            let wrong = |e| format!("invalid pattern '{pattern}': {e}");
            let names = pattern.trim_matches('/');
            let whole = pattern.starts_with('/') || names.contains('/');
            let anywhere = if whole && !pattern.starts_with('/') { "**/" } else { "" };
            let glob = GlobBuilder::new(&format!("{anywhere}{names}")).literal_separator(true).build();
            let glob = glob.map_err(wrong)?;
            Ok(Rule { take, whole, pattern: glob.compile_matcher() })
        };
        Ok(Filter { rules: rules.iter().map(rule).collect::<Result<_, _>>()? })
    }

    /// Whether there is no rule, so that everything is included.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a path is included.
    pub fn takes(&self, path: &RelPath) -> bool {
        path.is_root() || self.takes_name(path.split().0, path.split().1)
    }

    /// As [`takes`](Self::takes), for a name in a directory that need not be a valid path.
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
