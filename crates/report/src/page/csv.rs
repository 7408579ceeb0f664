//! All numbers as a table for other programs (RFC 4180).

use longhaul_results::Document;
use longhaul_results::stats::Summary;

const HEADER: &str = "result,number,figure,series,x,x_label,unit,runs,mean,low,high,deviation,samples,left_out,\
                      published,source,found,counts,reason";

/// The table: a line a cell.
pub fn csv(documents: &[Document]) -> String {
    let mut text = format!("{HEADER}\r\n");
    for document in documents {
        for cell in &document.record.cells {
            let place = cell.place.clone().unwrap_or_default();
            let summary = Summary::of(&cell.samples);
            let interval = summary.interval();
            let some = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let list = |values: &mut dyn Iterator<Item = f64>| {
                values.map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
            };
            let published = cell.published.first();
            let fields = [
                document.label(),
                cell.name.clone(),
                place.figure,
                place.series,
                place.x,
                place.x_label,
                cell.unit.clone(),
                summary.n.to_string(),
                some((summary.n > 0).then_some(summary.mean)),
                some(interval.map(|i| i.low)),
                some(interval.map(|i| i.high)),
                some((summary.n > 1).then_some(summary.deviation)),
                list(&mut cell.samples.iter().copied()),
                list(&mut cell.left_out.iter().map(|run| run.value)),
                some(published.map(|p| p.value)),
                published.map_or_else(|| cell.found_source.clone(), |p| p.source.clone()),
                cell.found.clone(),
                (cell.validity.valid && summary.n > 0).to_string(),
                cell.validity.words(),
            ];
            text.push_str(&fields.map(|field| quoted(&field)).join(","));
            text.push_str("\r\n");
        }
    }
    text
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_that_need_it_are_quoted() {
        assert_eq!(quoted("plain text"), "plain text");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"x\"\n"), "\"say \"\"x\"\"\n\"");
    }
}
