//! Options: the names of choices, which reports use too, and output files, which are checked before
//! anything is measured: nothing is worse than an hour's run whose end cannot write its file.

use crate::prelude::*;
use std::fs::OpenOptions;
use std::ops::RangeInclusive;

/// A choice of an option, as reports call it.
pub trait Choice: ValueEnum {
    /// Its name, on the command line and as a row's or column's head.
    fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// In words: its help text.
    fn about(&self) -> String {
        let value = self.to_possible_value();
        value
            .and_then(|v| v.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }
}

impl<T: ValueEnum> Choice for T {}

/// A number in a range. For an option.
pub fn within(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("it must be between {} and {}", range.start(), range.end()))
    }
}

/// A number above 0. For an option.
pub fn positive(text: &str) -> Result<f64, String> {
    within(f64::MIN_POSITIVE..=f64::MAX)(text).map_err(|_| "it must be more than 0".into())
}

/// A file that can be written; what is in it stays until the end. For an option.
pub fn output_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let was_there = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(&path);
    opened.map_err(|why| format!("cannot be written: {why}"))?;
    if !was_there {
        let _ = std::fs::remove_file(&path);
    }
    Ok(path)
}

/// A folder that files can be made in; it is made if need be. For an option.
pub fn output_folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    std::fs::create_dir_all(&path).map_err(|why| format!("cannot be made: {why}"))?;
    let probe = path.join(format!(".selfpage-{}", std::process::id()));
    output_file(&probe.to_string_lossy()).map(|_| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused_and_what_can_is_left_as_it_is() {
        let there = std::env::temp_dir().join(format!("selfpage-output-{}", std::process::id()));
        std::fs::create_dir_all(&there).unwrap();
        let path = |name: &str| there.join(name).display().to_string();
        assert!(output_file(&path("no/such/folder")).is_err());
        assert!(output_file(&path("new")).is_ok() && !there.join("new").exists());
        std::fs::write(path("old"), "figures").unwrap();
        assert!(output_file(&path("old")).is_ok() && output_folder(&path("made")).is_ok());
        assert!(output_folder(&path("old")).is_err());
        assert_eq!(std::fs::read_to_string(path("old")).unwrap(), "figures");
        std::fs::remove_dir_all(there).unwrap();
    }
}
