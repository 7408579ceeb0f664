//! Lists of nodes, as Slurm writes them.

/// Most nodes of one list.
pub const MAX_NODES: usize = 1024;

/// The names that a list stands for: `n[1-3,07]` is `n1`, `n2`, `n3` and `n07`; lists are joined by
/// commas.
///
/// # Errors
/// A sentence about what is wrong with it.
pub fn expand_nodes(list: &str) -> Result<Vec<String>, String> {
    let wrong = |why: &str| format!("'{list}' is no list of nodes: {why}; the form is n[1-8],m[01-04]");
    let mut all = Vec::new();
    for part in split(list).ok_or_else(|| wrong("a bracket is not closed"))? {
        expand(part, String::new(), &mut all).map_err(wrong)?;
    }
    let mut sorted = all.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(wrong(&format!("it names {} twice", pair[0]))),
        None => Ok(all),
    }
}

/// Parts between commas that are not within brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut from, mut is_within) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !is_within => is_within = true,
            ']' if is_within => is_within = false,
            '[' | ']' => return None,
            ',' if !is_within => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    (!is_within).then_some(parts)
}

/// Adds the names that begin with `begin` and go on as `rest` says.
fn expand(rest: &str, begin: String, all: &mut Vec<String>) -> Result<(), &'static str> {
    let Some((fixed, tail)) = rest.split_once('[') else {
        let name = begin + rest;
        if name.is_empty() {
            return Err("a name is empty");
        }
        if all.len() == MAX_NODES {
            return Err("it has more than 1024 nodes");
        }
        all.push(name);
        return Ok(());
    };
    let (ranges, tail) = tail.split_once(']').ok_or("a bracket is not closed")?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| "a range is not of numbers");
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err("a range ends before it begins");
        }
        for number in from..=to {
            let width = first.len();
            expand(tail, format!("{begin}{fixed}{number:0width$}"), all)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded() {
        for (list, nodes) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-11,2],m", "n08 n09 n10 n11 n2 m"),
            ("r[1-2]n[1-2].x", "r1n1.x r1n2.x r2n1.x r2n2.x"),
        ] {
            assert_eq!(expand_nodes(list).expect(list).join(" "), nodes);
        }
        for (list, why) in [
            ("", "a name is empty"),
            ("n1,", "a name is empty"),
            ("n[1-3", "a bracket is not closed"),
            ("n]1[", "a bracket is not closed"),
            ("n[3-1]", "a range ends before it begins"),
            ("n[a-b]", "a range is not of numbers"),
            ("n[]", "a range is not of numbers"),
            ("n[1-2],n2", "it names n2 twice"),
            ("n[0-4294967295]", "it has more than 1024 nodes"),
        ] {
            let error = expand_nodes(list).expect_err(list);
            assert!(error.contains(why), "{error}");
        }
    }
}
