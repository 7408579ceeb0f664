//! Figures as PNG, drawn by a browser: what reads SVG everywhere is as large as
//! one, and needs fonts besides.

use crate::exit::{Exit, Failure};
use longhaul_report::page::Report;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What draws: the first one that is in `PATH`.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// Pixels of a picture for each of a figure: letters stay sharp in print.
const SHARP: u32 = 2;
/// How long one picture may take: a browser that starts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// What such a file begins with (PNG, 5.2).
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// A directory of the browser's own, until it is dropped.
struct Profile(PathBuf);

impl Drop for Profile {
    fn drop(&mut self) {
        // A directory that cannot be removed is recognized by its name, which has the process ID.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Draws the figures that are in `dir`; how many.
pub(super) fn draw(dir: &Path, made: &Report) -> Result<usize, Failure> {
    let partly = |message: String| {
        Failure::new(Exit::Partly, format!("{message}; the page, its SVG figures and its CSV are written"))
    };
    let browser = find(std::env::var_os("PATH").unwrap_or_default().as_os_str()).ok_or_else(|| {
        partly(format!(
            "--png takes Chromium or Chrome, and none of {} is in PATH: install one, or leave --png out",
            BROWSERS.join(", ")
        ))
    })?;
    let profile = Profile(std::env::temp_dir().join(format!("longhaul-report-{}", std::process::id())));
    let mut drawn = 0;
    for (name, svg) in made.files.iter().filter(|(name, _)| name.ends_with(".svg")) {
        let file = dir.join(name);
        picture(&browser, &profile.0, &file, size(svg))
            .map_err(|why| partly(format!("{} could not be drawn as PNG: {why}", file.display())))?;
        drawn += 1;
    }
    Ok(drawn)
}

/// The browser in one of these directories.
fn find(path: &OsStr) -> Option<PathBuf> {
    let dirs: Vec<PathBuf> = std::env::split_paths(path).collect();
    BROWSERS.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name))).find(|path| path.is_file())
}

/// Width and height of a figure, in pixels.
fn size(svg: &str) -> (u32, u32) {
    let number = |name: &str| {
        let (_, rest) = svg.split_once(&format!(" {name}=\""))?;
        rest.split('"').next()?.parse::<u32>().ok()
    };
    (number("width").unwrap_or(720), number("height").unwrap_or(480))
}

/// Draws a figure beside itself.
fn picture(browser: &Path, profile: &Path, svg: &Path, (width, height): (u32, u32)) -> Result<(), String> {
    let svg = std::path::absolute(svg).map_err(|e| e.to_string())?;
    let png = svg.with_extension("png");
    // It goes by the end of the name.
    let beside = svg.with_extension(format!("{}.png", std::process::id()));
    let mut option = OsString::from("--screenshot=");
    option.push(&beside);
    let mut data = OsString::from("--user-data-dir=");
    data.push(profile);
    let mut command = Command::new(browser);
    command.args(["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]);
    // As root it has no other way; it is shown nothing but what was drawn here.
    command.args(rustix::process::geteuid().is_root().then_some("--no-sandbox"));
    command.args([format!("--force-device-scale-factor={SHARP}"), format!("--window-size={width},{height}")]);
    command.args([data, option, address(&svg)]);
    // It keeps things beside its profile, too: they are to go with that.
    command.env("XDG_CONFIG_HOME", profile).env("XDG_CACHE_HOME", profile);
    let drawn = finish(&mut command).and_then(|()| {
        let is_png = fs::read(&beside).is_ok_and(|bytes| bytes.starts_with(SIGNATURE));
        match is_png {
            true => fs::rename(&beside, &png).map_err(|e| format!("{}: {e}", png.display())),
            false => Err(format!("{} ended without a picture", browser.display())),
        }
    });
    if drawn.is_err() {
        // There may be nothing to remove.
        let _ = fs::remove_file(&beside);
    }
    drawn
}

/// Runs it to its end, or to the end of patience.
fn finish(command: &mut Command) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{name} failed ({status})")),
            Err(e) => return Err(format!("{name}: {e}")),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            Ok(None) => {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} took longer than {} s", PATIENCE.as_secs()));
            }
        }
    }
}

/// A file as an address.
fn address(path: &Path) -> OsString {
    let mut text = String::from("file://");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_say_how_large_they_are() {
        let figure = longhaul_report::figure::Figure { title: "A".into(), ..Default::default() };
        let (width, height) = size(&figure.file());
        assert_eq!(width, longhaul_report::figure::WIDE as u32);
        assert!(height > 200, "{height}");
    }

    #[test]
    fn a_browser_is_looked_for_in_path() {
        let dir = tempfile::tempdir().expect("directory");
        let path = std::env::join_paths([Path::new("/nonexistent"), dir.path()]).expect("joined");
        assert_eq!(find(&path), None);
        let chrome = dir.path().join("google-chrome");
        fs::write(&chrome, "").expect("written");
        assert_eq!(find(&path), Some(chrome));
    }

    #[test]
    fn addresses_have_no_spaces() {
        assert_eq!(address(Path::new("/a b/ü#.svg")), "file:///a%20b/%C3%BC%23.svg");
    }
}
