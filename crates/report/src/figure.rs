//! A figure as SVG: axes with marks and units, a legend, error bars, published values beside
//! measured ones, and values that do not count marked as such.
//!
//! No library draws it, since one text must be legible in light and dark display, on paper and on a
//! telephone.
//!
//! Invariants, which the tests hold for both widths:
//! - no two texts overlap, and all are within the picture;
//! - a value that does not count is a cross on a hollow mark in the colour of its series, never a
//!   full mark or a bar, and no axis is scaled to it.

mod canvas;
mod scale;

pub(crate) use canvas::escape;
pub use canvas::style;
pub use scale::Scale;

use canvas::{Anchor, Canvas, FONT, width};
use longhaul_results::stats::Interval;

/// Width for pages, in pixels.
pub const WIDE: f64 = 720.0;
/// Width for telephones.
pub const NARROW: f64 = 350.0;

/// Letters of a name along the axis; a longer name is cut.
const NAME_MAX: usize = 22;
/// Least distance of slanted names, in pixels.
const SLANTED: f64 = 18.0;
/// Largest over smallest number from which an axis is logarithmic.
const POWERS: f64 = 40.0;

/// A plot of series over one axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Heading above the plot.
    pub title: String,
    /// What the horizontal axis is.
    pub x_label: String,
    /// Unit of the values.
    pub unit: String,
    /// Lines, or colours of bars.
    pub series: Vec<Series>,
}

/// A line, or a colour of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name of the series in the legend.
    pub name: String,
    /// Its values, in the order of the axis.
    pub points: Vec<Point>,
}

/// A value of a series, with its spread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Where: a name.
    pub x: String,
    /// Where, if the axis is one of numbers.
    pub x_number: Option<f64>,
    /// The value, if there is one.
    pub value: Option<f64>,
    /// Between which it is.
    pub interval: Option<Interval>,
    /// The published value.
    pub published: Option<f64>,
    /// It does not count.
    pub void: bool,
}

impl Point {
    /// The value, if it counts.
    fn counts(&self) -> Option<f64> {
        self.value.filter(|value| value.is_finite() && !self.void)
    }

    /// There is a value, and it does not count.
    fn is_void(&self) -> bool {
        self.counts().is_none() && self.value.is_some_and(f64::is_finite)
    }

    /// The position of a cross: a value that does not count scales no axis, and may be beyond it.
    fn at(&self) -> f64 {
        self.value.filter(|value| value.is_finite()).unwrap_or(0.0)
    }
}

/// Where things are.
struct Layout {
    width: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    most: f64,
    step: f64,
    scale: Scale,
}

impl Layout {
    fn y(&self, value: f64) -> f64 {
        let share = (value / self.most).clamp(0.0, 1.0);
        self.bottom - share * (self.bottom - self.top)
    }

    fn span(&self) -> f64 {
        self.right - self.left
    }
}

/// The horizontal axis.
enum Axis {
    Names(Vec<String>),
    Numbers { least: f64, most: f64, powers: bool, all: Vec<f64> },
}

impl Axis {
    fn of(figure: &Figure) -> Axis {
        let points = || figure.series.iter().flat_map(|series| &series.points);
        let mut all: Vec<f64> = points().filter_map(|point| point.x_number).collect();
        let numbers = points().all(|point| point.x_number.is_some_and(f64::is_finite));
        all.sort_by(f64::total_cmp);
        all.dedup();
        if numbers && all.len() >= 3 {
            let (least, most) = (all[0], all[all.len() - 1]);
            return Axis::Numbers { least, most, powers: least > 0.0 && most / least >= POWERS, all };
        }
        let mut names: Vec<String> = Vec::new();
        for point in points() {
            if !names.contains(&point.x) {
                names.push(point.x.clone());
            }
        }
        Axis::Names(names)
    }

    /// Where a number is between the ends of the plot.
    fn share(&self, x: f64) -> f64 {
        match self {
            Axis::Names(_) => 0.0,
            Axis::Numbers { least, most, powers: true, .. } => (x / least).ln() / (most / least).ln(),
            Axis::Numbers { least, most, .. } => (x - least) / (most - least),
        }
    }
}

fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 1).chain(['…']).collect()
}

impl Figure {
    /// As SVG to be put into a page, which has the [`style`].
    pub fn svg(&self, wanted: f64) -> String {
        let (canvas, width, height) = self.draw(wanted);
        format!(
            "<svg class=\"fig\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
            escape(&self.title),
            canvas.body
        )
    }

    /// As a file of its own.
    pub fn file(&self) -> String {
        let svg = self.svg(WIDE);
        let (head, body) = svg.split_once('\n').unwrap_or((&svg, ""));
        let title = escape(&self.title);
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{head}\n<title>{title}</title>\n<style>{}</style>\n{body}",
            style()
        )
    }

    fn draw(&self, wanted: f64) -> (Canvas, f64, f64) {
        let mut canvas = Canvas::new();
        let axis = Axis::of(self);
        let (layout, slanted) = self.layout(wanted, &axis);
        self.vertical(&mut canvas, &layout);
        let mut below = horizontal(&mut canvas, &layout, &axis, slanted);
        if !self.x_label.is_empty() {
            below += FONT + 6.0;
            let middle = f64::midpoint(layout.left, layout.right);
            let room = 2.0 * middle.min(layout.width - middle) - 4.0;
            canvas.text((middle, below), Anchor::Middle, &cut_to(&self.x_label, room));
        }
        match &axis {
            Axis::Names(names) => self.bars(&mut canvas, &layout, names),
            Axis::Numbers { .. } => self.lines(&mut canvas, &layout, &axis),
        }
        let height = self.legend(&mut canvas, &layout, &axis, below + 10.0);
        (canvas, layout.width, height)
    }

    /// The largest value that must fit, of those that count and the published ones: a value that
    /// does not count would make all others small. Error bars of few runs may be very long: they
    /// are cut where they would do the same.
    fn most(&self) -> f64 {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let largest = |all: &mut dyn Iterator<Item = f64>| all.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let value = largest(&mut points().flat_map(|p| [p.counts(), p.published]).flatten());
        if value <= 0.0 {
            return largest(&mut points().filter_map(|p| p.value));
        }
        let counting = points().filter(|p| p.counts().is_some());
        value.max(largest(&mut counting.filter_map(|p| p.interval).map(|i| i.high)).min(1.5 * value))
    }

    fn layout(&self, wanted: f64, axis: &Axis) -> (Layout, bool) {
        let narrow = wanted < 500.0;
        let most = self.most();
        let scale = Scale::of(&self.unit, most);
        let (most, step) =
            if most > 0.0 { scale.marks(most, if narrow { 4.0 } else { 5.0 }) } else { (1.0, 1.0) };
        let labels = (0..=12).map(|n| f64::from(n) * step).take_while(|v| *v <= most * 1.001);
        let mut left = labels.map(|v| width(&scale.number(v))).fold(0.0, f64::max) + 14.0;
        let (total, mut slanted) = (wanted, false);
        let right_margin = match axis {
            // Half of the last number stands beyond the axis.
            Axis::Numbers { most, .. } => (width(&number(*most)) / 2.0 + 6.0).max(14.0),
            Axis::Names(_) => 8.0,
        };
        if let Axis::Names(names) = axis {
            let count = names.len().max(1) as f64;
            let longest = names.iter().map(|name| width(&cut(name))).fold(0.0, f64::max);
            slanted = longest + 8.0 > (total - left - right_margin) / count;
            if slanted {
                // A slanted name reaches to the left of its place.
                let group = (total - left - right_margin) / count;
                left = left.max(longest * std::f64::consts::FRAC_1_SQRT_2 + 8.0 - group / 2.0);
            }
        }
        let plot = if narrow { 200.0 } else { 270.0 };
        // A mark at the upper end, and the arrow of a value beyond it, fit below the unit.
        let top = FONT + 22.0;
        let (right, bottom) = (total - right_margin, top + plot);
        (Layout { width: total, left, right, top, bottom, most, step, scale }, slanted)
    }

    fn vertical(&self, canvas: &mut Canvas, layout: &Layout) {
        canvas.text((2.0, FONT), Anchor::Start, &cut_to(layout.scale.unit(), layout.width));
        let mut value = 0.0;
        while value <= layout.most * 1.001 {
            let y = layout.y(value);
            canvas.line("grid", (layout.left, y), (layout.right, y));
            canvas.text((layout.left - 7.0, y + FONT * 0.35), Anchor::End, &layout.scale.number(value));
            value += layout.step;
        }
        canvas.line("axis", (layout.left, layout.top - 4.0), (layout.left, layout.bottom));
        canvas.line("axis", (layout.left, layout.bottom), (layout.right, layout.bottom));
    }

    fn bars(&self, canvas: &mut Canvas, layout: &Layout, names: &[String]) {
        let group = layout.span() / names.len().max(1) as f64;
        let bar = (group * 0.82 / self.series.len().max(1) as f64).min(34.0);
        let first = (group - bar * self.series.len() as f64) / 2.0;
        for (index, series) in self.series.iter().enumerate() {
            for point in &series.points {
                let Some(place) = names.iter().position(|name| *name == point.x) else { continue };
                let x = layout.left + place as f64 * group + first + index as f64 * bar;
                let middle = x + bar / 2.0;
                if let Some(value) = point.counts() {
                    let y = layout.y(value);
                    canvas.raw(format_args!(
                        r#"<rect class="f{}" x="{:.1}" y="{y:.1}" width="{:.1}" height="{:.1}"/>"#,
                        index % 8,
                        x + 0.5,
                        (bar - 1.0).max(1.0),
                        layout.bottom - y
                    ));
                    error(canvas, layout, middle, point);
                } else if point.is_void() {
                    self.void(canvas, layout, (index, middle), point);
                }
                if let Some(published) = point.published {
                    canvas.published("pub", (middle, layout.y(published)));
                }
            }
        }
    }

    fn lines(&self, canvas: &mut Canvas, layout: &Layout, axis: &Axis) {
        let x = |point: &Point| layout.left + axis.share(point.x_number.unwrap_or(0.0)) * layout.span();
        for (index, series) in self.series.iter().enumerate() {
            let mut points: Vec<&Point> = series.points.iter().collect();
            points.sort_by(|a, b| x(a).total_cmp(&x(b)));
            let path = |value: &dyn Fn(&Point) -> Option<f64>| -> String {
                let found =
                    points.iter().filter_map(|p| Some(format!("{:.1},{:.1}", x(p), layout.y(value(p)?))));
                found.collect::<Vec<_>>().join(" ")
            };
            let published = path(&|point| point.published);
            if !published.is_empty() {
                canvas.raw(format_args!(r#"<polyline class="dash l{}" points="{published}"/>"#, index % 8));
            }
            let measured = path(&Point::counts);
            canvas.raw(format_args!(r#"<polyline class="l{}" points="{measured}"/>"#, index % 8));
            // Marks of many points would hide the line.
            let marks = points.len() <= 40;
            for point in points {
                match point.counts() {
                    Some(value) => {
                        error(canvas, layout, x(point), point);
                        if marks {
                            canvas.mark(index, (x(point), layout.y(value)));
                        }
                    }
                    None if point.is_void() => self.void(canvas, layout, (index, x(point)), point),
                    None => {}
                }
                if let Some(published) = point.published {
                    canvas.published(&format!("l{}", index % 8), (x(point), layout.y(published)));
                }
            }
        }
    }

    /// A point that does not count: the mark of its series, hollow and crossed in its
    /// colour; with an arrow if it is beyond the axis.
    fn void(&self, canvas: &mut Canvas, layout: &Layout, (index, x): (usize, f64), point: &Point) {
        let y = layout.y(point.at()).min(layout.bottom - 7.0);
        canvas.hollow(index, (x, y));
        canvas.cross(&format!("bad l{}", index % 8), (x, y));
        if point.at() > layout.most {
            canvas.arrow(&format!("l{}", index % 8), (x, y - 8.0));
        }
    }

    /// Draws what the colours and signs mean; returns the height of it all.
    fn legend(&self, canvas: &mut Canvas, layout: &Layout, axis: &Axis, top: f64) -> f64 {
        let points = || self.series.iter().flat_map(|series| &series.points);
        canvas.raw(format_args!("<g class=\"legend\">"));
        let (mut x, mut y) = (8.0, top + FONT);
        let mut entry = |canvas: &mut Canvas, name: &str| -> (f64, f64) {
            let name = cut_to(name, layout.width - 34.0);
            let wide = 22.0 + width(&name);
            if x > 8.0 && x + wide > layout.width - 4.0 {
                (x, y) = (8.0, y + FONT + 8.0);
            }
            let at = (x + 7.0, y - FONT * 0.35);
            canvas.text((x + 18.0, y), Anchor::Start, &name);
            x += wide + 14.0;
            at
        };
        for (index, series) in self.series.iter().enumerate() {
            let is_measured = series.points.iter().any(|point| point.value.is_some());
            let name =
                if is_measured { series.name.clone() } else { format!("{} (not measured)", series.name) };
            let at = entry(canvas, &name);
            match axis {
                Axis::Names(_) => canvas.raw(format_args!(
                    r#"<rect class="f{}" x="{:.1}" y="{:.1}" width="11" height="11"/>"#,
                    index % 8,
                    at.0 - 5.5,
                    at.1 - 5.5
                )),
                Axis::Numbers { .. } => canvas.mark(index, at),
            }
        }
        if points().any(|point| point.published.is_some()) {
            let at = entry(canvas, "published");
            canvas.published("pub", at);
        }
        if points().any(Point::is_void) {
            let at = entry(canvas, "does not count");
            canvas.cross("bad", at);
        }
        if points().any(|point| point.interval.is_some()) {
            let (x, y) = entry(canvas, "95 % confidence");
            canvas.line("err", (x, y - 6.0), (x, y + 6.0));
            canvas.line("err", (x - 3.0, y - 6.0), (x + 3.0, y - 6.0));
            canvas.line("err", (x - 3.0, y + 6.0), (x + 3.0, y + 6.0));
        }
        canvas.raw(format_args!("</g>"));
        y + 10.0
    }
}

fn cut_to(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut short: String = text.to_owned();
    while width(&short) + width("…") > room && short.pop().is_some() {}
    short + "…"
}

/// The error bar of a point.
fn error(canvas: &mut Canvas, layout: &Layout, x: f64, point: &Point) {
    let Some(interval) = point.interval else { return };
    let (low, high) = (layout.y(interval.low), layout.y(interval.high));
    canvas.line("err", (x, low), (x, high));
    for y in [low, high] {
        canvas.line("err", (x - 4.0, y), (x + 4.0, y));
    }
}

/// Draws the marks of the horizontal axis; returns the last baseline.
fn horizontal(canvas: &mut Canvas, layout: &Layout, axis: &Axis, slanted: bool) -> f64 {
    let base = layout.bottom + FONT + 6.0;
    match axis {
        Axis::Names(names) => {
            let group = layout.span() / names.len().max(1) as f64;
            let mut below = base;
            // Where there is no room for all, names in between are left out.
            let every = (SLANTED / group).ceil().max(1.0) as usize;
            for (place, name) in names.iter().enumerate() {
                let (x, name) = (layout.left + (place as f64 + 0.5) * group, cut(name));
                if slanted && place % every > 0 {
                    continue;
                }
                if slanted {
                    canvas.slanted((x + 4.0, layout.bottom + 12.0), &name);
                    let reach = width(&name) * std::f64::consts::FRAC_1_SQRT_2;
                    below = below.max(layout.bottom + 14.0 + reach);
                } else {
                    canvas.text((x, base), Anchor::Middle, &name);
                }
            }
            below
        }
        Axis::Numbers { most, powers, all, .. } => {
            let mut free = f64::NEG_INFINITY;
            let at = |v: f64| layout.left + axis.share(v) * layout.span();
            let last = at(*most) - width(&number(*most)) / 2.0 - 6.0;
            for value in marks(all, *powers) {
                let (x, text) = (at(value), number(value));
                let half = width(&text) / 2.0;
                // The last one has its place before those ahead of it.
                if x - half < free || (value < *most && x + half > last) {
                    continue;
                }
                free = x + half + 6.0;
                canvas.line("axis", (x, layout.bottom), (x, layout.bottom + 4.0));
                canvas.text((x, base), Anchor::Middle, &text);
            }
            base
        }
    }
}

/// Where numbers stand: at the measured ones if they are few, else at round
/// ones.
fn marks(all: &[f64], powers: bool) -> Vec<f64> {
    let [least, .., most] = *all else { return all.to_vec() };
    if all.len() <= 12 {
        return all.to_vec();
    }
    let mut found = vec![least];
    if powers {
        let mut power = 10f64.powf(least.log10().ceil());
        while power < most {
            found.push(power);
            power *= 10.0;
        }
    } else {
        let (_, step) = Scale::of("", most - least).marks(most - least, 6.0);
        let mut value = (least / step).ceil() * step;
        while value < most {
            found.push(value);
            value += step;
        }
    }
    found.push(most);
    found
}

/// A number along the axis.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 && v % 1e5 == 0.0 => format!("{}M", value / 1e6),
        v if v >= 1e4 && v % 100.0 == 0.0 => format!("{}k", value / 1e3),
        v if v >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{:.1}", value),
        _ => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

#[cfg(test)]
mod tests;
