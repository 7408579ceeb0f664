use super::canvas::Room;
use super::*;

fn point(x: &str, value: f64) -> Point {
    let interval = Some(Interval { value, low: value * 0.9, high: value * 1.1 });
    Point { x: x.into(), x_number: x.parse().ok(), value: Some(value), interval, ..Point::default() }
}

fn figure(series: usize, names: &[&str]) -> Figure {
    let series = (0..series).map(|n| Series {
        name: format!("series {n} with a name"),
        points: names.iter().map(|name| point(name, 1e9 * (n + 1) as f64)).collect(),
    });
    Figure {
        title: "Reading <& writing>".into(),
        x_label: "Files at the same time".into(),
        unit: "bit/s".into(),
        series: series.collect(),
    }
}

/// No two upright texts overlap, and none is outside.
fn assert_readable(figure: &Figure) {
    for wanted in [WIDE, NARROW] {
        let (canvas, width, height) = figure.draw(wanted);
        let rooms: &[Room] = &canvas.texts;
        for (i, a) in rooms.iter().enumerate() {
            let inside = a.x >= 0.0 && a.y >= 0.0 && a.x + a.width <= width && a.y + a.height <= height;
            assert!(inside, "{a:?} is not within {width} by {height}\n{}", canvas.body);
            for b in &rooms[i + 1..] {
                assert!(!a.meets(b), "{a:?} and {b:?} overlap at {wanted}\n{}", canvas.body);
            }
        }
    }
}

#[test]
fn texts_have_their_room() {
    assert_readable(&figure(1, &["raw"]));
    assert_readable(&figure(4, &["raw", "ext4", "XFS", "RAID0"]));
    assert_readable(&figure(8, &["1", "10", "100", "1000"]));
    assert_readable(&figure(3, &["0", "0.15", "15", "45", "100"]));
    let many: Vec<String> = (0..30).map(|n| format!("a rather long name number {n}")).collect();
    assert_readable(&figure(6, &many.iter().map(String::as_str).collect::<Vec<_>>()));
    let seconds: Vec<String> = (0..200).map(|n| (n as f64 / 2.0).to_string()).collect();
    assert_readable(&figure(2, &seconds.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_readable(&Figure::default());
    let mut long = figure(2, &["a", "b"]);
    long.series[0].name = "x".repeat(500);
    long.x_label = "y".repeat(500);
    assert_readable(&long);
}

#[test]
fn numbers_make_lines_and_names_make_bars() {
    let (lines, bars) =
        (figure(2, &["1", "10", "100"]).svg(WIDE), figure(2, &["raw", "10", "100"]).svg(WIDE));
    assert!(lines.contains("<polyline") && lines.matches("<circle").count() == 4, "three marks and a legend");
    assert!(!bars.contains("<polyline") && bars.matches("<rect").count() == 8, "six bars and a legend");
    for svg in [&lines, &bars] {
        assert_eq!(svg.matches("class=\"err\"").count(), 6 * 3 + 3, "error bars, and one in the legend");
        assert!(svg.contains("Files at the same time") && svg.contains(">Gb/s<"), "axes");
        assert!(svg.contains("series 1 with a name"), "legend");
    }
}

#[test]
fn powers_are_apart_alike() {
    let axis = Axis::of(&figure(1, &["1", "10", "100", "1000"]));
    assert!((axis.share(10.0) - 1.0 / 3.0).abs() < 1e-12);
    let axis = Axis::of(&figure(1, &["1", "2", "4"]));
    assert!((axis.share(2.0) - 1.0 / 3.0).abs() < 1e-12);
}

#[test]
fn what_does_not_count_is_crossed() {
    for names in [["raw", "ext4", "XFS"], ["1", "10", "100"]] {
        let mut shown = figure(1, &names);
        assert!(!shown.svg(WIDE).contains("does not count"));
        shown.series[0].points[1].void = true;
        shown.series[0].points[2].void = true;
        let svg = shown.svg(WIDE);
        // Two strokes a cross, one cross in the legend.
        assert_eq!(svg.matches("class=\"bad l0\"").count(), 2 * 2, "in the colour of their series: {svg}");
        assert_eq!(svg.matches("class=\"bad\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"h l0\"").count(), 2, "its mark, hollow: {svg}");
        assert!(svg.contains("does not count"));
        // A series without measurements has no mark, and the legend says so.
        shown.series[0].points.iter_mut().for_each(|point| (point.value, point.interval) = (None, None));
        let svg = shown.svg(WIDE);
        assert!(!svg.contains("class=\"bad") && svg.contains("(not measured)"), "{svg}");
    }
}

#[test]
fn no_figure_is_wider_than_it_may_be() {
    let many: Vec<String> = (0..30).map(|n| format!("a rather long name number {n}")).collect();
    let shown = figure(6, &many.iter().map(String::as_str).collect::<Vec<_>>());
    for wanted in [WIDE, NARROW] {
        assert_eq!(shown.draw(wanted).1, wanted);
    }
}

#[test]
fn what_was_published_stands_beside() {
    let mut shown = figure(1, &["1", "2", "3"]);
    shown.series[0].points.iter_mut().for_each(|point| point.published = Some(5e9));
    let svg = shown.svg(WIDE);
    assert!(svg.contains("class=\"dash l0\"") && svg.contains(">published<"), "{svg}");
    // There is room for it.
    let (canvas, ..) = shown.draw(WIDE);
    assert!(canvas.body.contains(">5<"), "{}", canvas.body);
}

#[test]
fn wild_numbers_do_no_harm() {
    let mut shown = figure(1, &["1", "2", "3"]);
    shown.series[0].points[0].interval = Some(Interval { value: 1e9, low: -1e12, high: f64::INFINITY });
    shown.series[0].points[1].value = Some(f64::NAN);
    shown.series[0].points[2].published = Some(0.0);
    let svg = shown.svg(NARROW);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn a_file_is_whole_and_safe() {
    let file = figure(1, &["a"]).file();
    assert!(file.starts_with("<?xml") && file.trim_end().ends_with("</svg>") && file.contains("<style>"));
    assert!(file.contains("<title>Reading &lt;&amp; writing&gt;</title>") && !file.contains("<& w"));
}

#[test]
fn what_does_not_count_sets_no_axis() {
    for names in [["raw", "ext4", "XFS"], ["1", "10", "100"]] {
        let mut shown = figure(2, &names);
        let axis = |figure: &Figure| figure.layout(WIDE, &Axis::of(figure)).0.most;
        let before = axis(&shown);
        let void = &mut shown.series[1].points[2];
        (void.value, void.interval, void.void) = (Some(1e15), None, true);
        assert!(axis(&shown) <= before, "{} for one that does not count", axis(&shown));
        let svg = shown.svg(WIDE);
        assert!(svg.contains("class=\"bad l1\"") && svg.contains("class=\"h l1\""), "whose it is: {svg}");
        assert_eq!(
            svg.matches("<polyline class=\"l1\"").count(),
            1 + usize::from(names[0] == "1"),
            "an arrow: {svg}"
        );
        // Where nothing counts, it has to be somewhere.
        shown.series.iter_mut().flat_map(|series| &mut series.points).for_each(|point| point.void = true);
        assert!(axis(&shown) >= 1e15);
    }
}
