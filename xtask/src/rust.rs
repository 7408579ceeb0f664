//! Just enough of Rust's syntax to distinguish code from comments, strings and tests.

/// Rust source with all comments and string contents blanked: same length, same lines.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes.get(i + 1) == Some(&b'/') => line_end(bytes, i),
            b'/' if bytes.get(i + 1) == Some(&b'*') => comment_end(bytes, i),
            b'"' => string_end(bytes, i),
            b'r' if !within_word(bytes, i) => raw_string_end(bytes, i),
            b'\'' => char_end(bytes, i),
            _ => i,
        };
        for b in &mut out[i..end] {
            if *b != b'\n' {
                *b = b' ';
            }
        }
        i = end.max(i + 1);
    }
    // Only whole characters were blanked, byte by byte.
    String::from_utf8(out).unwrap_or_default()
}

fn within_word(bytes: &[u8], i: usize) -> bool {
    // `br"…"` is a raw string too.
    i > 0 && (bytes[i - 1].is_ascii_alphanumeric() && bytes[i - 1] != b'b' || bytes[i - 1] == b'_')
}

fn line_end(bytes: &[u8], i: usize) -> usize {
    bytes[i..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| i + n)
}

fn comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut i, mut depth) = (start, 0);
    while i + 1 < bytes.len() {
        match &bytes[i..i + 2] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r#"…"#`, or `start` where none begins there.
fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(start + 1 + hashes) != Some(&b'"') {
        return start;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = start + 2 + hashes;
    bytes[body..]
        .windows(close.len())
        .position(|w| w == close)
        .map_or(bytes.len(), |n| body + n + close.len())
}

/// The end of a character literal, or `start` for a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start + 1..];
    if rest.first() == Some(&b'\\') {
        return rest[1..].iter().skip(1).position(|b| *b == b'\'').map_or(start, |n| start + 4 + n);
    }
    // One character of up to four bytes, then the quote.
    match rest.iter().take(5).skip(1).position(|b| *b == b'\'') {
        Some(n) if std::str::from_utf8(&rest[..n + 1]).is_ok_and(|s| s.chars().count() == 1) => start + n + 3,
        _ => start,
    }
}

/// For each line, whether it belongs to an item that is only there for tests.
pub(crate) fn test_lines(blanked: &str) -> Vec<bool> {
    let mut within = vec![false; blanked.lines().count()];
    let starts: Vec<usize> =
        std::iter::once(0).chain(blanked.match_indices('\n').map(|(i, _)| i + 1)).collect();
    let line_of = |offset: usize| starts.partition_point(|s| *s <= offset) - 1;
    let marks = ["#[cfg(test)]", "#[cfg(any(test,"];
    for (at, _) in marks.into_iter().flat_map(|mark| blanked.match_indices(mark)) {
        let end = item_end(blanked, at);
        let last = line_of(end).min(within.len().saturating_sub(1));
        for line in &mut within[line_of(at)..=last] {
            *line = true;
        }
    }
    within
}

/// Where the item that starts at `at` ends: its `;`, or the brace that closes it.
fn item_end(blanked: &str, at: usize) -> usize {
    let mut depth = 0usize;
    for (i, c) in blanked[at..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + i,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + i,
            _ => {}
        }
    }
    blanked.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let text = "let a = \"x.unwrap()\"; // .unwrap()\nlet b = r#\"\"unwrap\"\"#; /* a /* b */ c */ d";
        let left = blank(text);
        assert!(!left.contains("unwrap") && left.ends_with(" d") && left.contains("let b ="), "{left}");
        assert_eq!(left.len(), text.len());
    }

    #[test]
    fn a_quote_is_not_always_a_string() {
        let left = blank("fn f<'a>(x: &'a str) { let q = '\"'; let n = '\\n'; g(q).unwrap() }");
        assert!(left.contains("unwrap") && left.contains("<'a>") && !left.contains('"'), "{left}");
        assert!(!blank("let q = '\\''; let s = \"hidden\";").contains("hidden"));
    }

    #[test]
    fn tests_end_with_their_braces() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { }\n}\nfn c() {}\n";
        assert_eq!(test_lines(text), [false, true, true, true, true, false]);
        assert_eq!(test_lines("#[cfg(test)]\nmod t;\nfn c() {}\n"), [true, true, false]);
    }
}
