//! SVG text by text, with an account of where each stands.

use std::fmt::Write;

/// Height of letters in pixels, and how wide one is on average: taken large,
/// since fonts differ.
pub(super) const FONT: f64 = 12.0;
const LETTER: f64 = 6.9;

/// Light and dark colours of series: distinct also for colour-blind readers
/// (after Okabe and Ito), and by their marks.
const COLOURS: [(&str, &str); 8] = [
    ("#0072b2", "#4da3e0"),
    ("#c25400", "#f08a4b"),
    ("#00855f", "#3cc79b"),
    ("#b0568a", "#e59ac4"),
    ("#7a6200", "#e6c229"),
    ("#2b8cc4", "#8fd0f5"),
    ("#5b3a9e", "#b39ddb"),
    ("#5f5f5f", "#b8b8b8"),
];

/// Room that a text takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Room {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Room {
    #[cfg(test)]
    pub(super) fn meets(&self, other: &Room) -> bool {
        self.x < other.x + other.width
            && other.x < self.x + self.width
            && self.y < other.y + other.height
            && other.y < self.y + self.height
    }
}

/// Where a text is from its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The elements of a picture.
pub(super) struct Canvas {
    pub(super) body: String,
    /// The room that upright texts take, so that none overlaps.
    pub(super) texts: Vec<Room>,
}

/// How wide a text is at most, in pixels.
pub(super) fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// Text as it may stand in XML and HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

impl Canvas {
    pub(super) fn new() -> Canvas {
        Canvas { body: String::new(), texts: Vec::new() }
    }

    pub(super) fn raw(&mut self, text: std::fmt::Arguments<'_>) {
        // A String takes everything.
        let _ = self.body.write_fmt(text);
        self.body.push('\n');
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.raw(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// A text whose baseline's point is `at`.
    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        let wide = width(text);
        let (name, x) = match anchor {
            Anchor::Start => ("start", at.0),
            Anchor::Middle => ("middle", at.0 - wide / 2.0),
            Anchor::End => ("end", at.0 - wide),
        };
        self.texts.push(Room { x, y: at.1 - FONT * 0.8, width: wide, height: FONT });
        self.raw(format_args!(
            r#"<text class="t" x="{:.1}" y="{:.1}" text-anchor="{name}">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        ));
    }

    /// A text that ends at `at` and comes up to it from the lower left.
    pub(super) fn slanted(&mut self, at: (f64, f64), text: &str) {
        self.raw(format_args!(
            r#"<text class="t" transform="translate({:.1} {:.1}) rotate(-45)" text-anchor="end">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        ));
    }

    /// The mark of series `index`: its colour, and a shape of its own.
    pub(super) fn mark(&mut self, index: usize, at: (f64, f64)) {
        self.shape(&format!("f{}", index % 8), index, at, 1.0);
    }

    /// The same as an outline, larger.
    pub(super) fn hollow(&mut self, index: usize, at: (f64, f64)) {
        self.shape(&format!("h l{}", index % 8), index, at, 1.6);
    }

    /// Draws an arrow for a value beyond the axis.
    pub(super) fn arrow(&mut self, class: &str, (x, y): (f64, f64)) {
        self.raw(format_args!(
            r#"<polyline class="{class}" points="{:.1},{y:.1} {x:.1},{:.1} {:.1},{y:.1}"/>"#,
            x - 4.0,
            y - 5.0,
            x + 4.0
        ));
    }

    fn shape(&mut self, class: &str, index: usize, at: (f64, f64), large: f64) {
        let (x, y) = at;
        let points = |points: &[(f64, f64)]| {
            points
                .iter()
                .map(|(dx, dy)| format!("{:.1},{:.1}", x + large * dx, y + large * dy))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let shape = match index % 4 {
            0 => format!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{:.1}"/>"#, 4.0 * large),
            1 => format!(
                r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
                x - 3.7 * large,
                y - 3.7 * large,
                7.4 * large,
                7.4 * large
            ),
            2 => format!(
                r#"<polygon class="{class}" points="{}"/>"#,
                points(&[(0.0, -5.0), (4.8, 3.6), (-4.8, 3.6)])
            ),
            _ => format!(
                r#"<polygon class="{class}" points="{}"/>"#,
                points(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)])
            ),
        };
        self.raw(format_args!("{shape}"));
    }

    /// A published value: a hollow diamond, whatever the series' mark.
    pub(super) fn published(&mut self, class: &str, at: (f64, f64)) {
        let (x, y) = at;
        self.raw(format_args!(
            r#"<polygon class="h {class}" points="{x:.1},{:.1} {:.1},{y:.1} {x:.1},{:.1} {:.1},{y:.1}"/>"#,
            y - 6.0,
            x + 6.0,
            y + 6.0,
            x - 6.0
        ));
    }

    /// A value that does not count: a cross.
    pub(super) fn cross(&mut self, class: &str, at: (f64, f64)) {
        let (x, y) = at;
        self.line(class, (x - 4.5, y - 4.5), (x + 4.5, y + 4.5));
        self.line(class, (x - 4.5, y + 4.5), (x + 4.5, y - 4.5));
    }
}

/// The style of all figures, for light and dark.
pub fn style() -> String {
    let colours = |dark: bool| {
        let mut text = String::new();
        for (i, (light, other)) in COLOURS.iter().enumerate() {
            let colour = if dark { other } else { light };
            // A String takes everything.
            let _ = write!(text, ".fig .f{i}{{fill:{colour}}}.fig .l{i}{{stroke:{colour}}}");
        }
        text
    };
    let ink = |ink: &str, grid: &str, bad: &str, paper: &str| {
        format!(
            ".fig .t{{fill:{ink}}}.fig .axis,.fig .err,.fig .pub{{stroke:{ink}}}.fig .grid{{stroke:{grid}}}\
             .fig .bad{{stroke:{bad}}}.fig .h{{fill:{paper}}}"
        )
    };
    let light = ink("#1c2126", "#d9dde1", "#b00020", "#ffffff") + &colours(false);
    let dark = ink("#e6e9ec", "#3a4148", "#ff6b7d", "#14181c") + &colours(true);
    format!(
        ".fig text{{font:{FONT}px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}\
         .fig line,.fig polyline,.fig .h{{stroke-width:1.5}}.fig polyline{{fill:none;stroke-width:2}}\
         .fig .grid{{stroke-width:1}}.fig .bad{{stroke-width:2.5}}.fig .dash{{stroke-dasharray:6 4}}\
         {light}@media (prefers-color-scheme:dark){{{dark}}}@media print{{{light}}}"
    )
}
