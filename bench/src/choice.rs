//! The name of a choice of the command line: reports use the same name.

use clap::ValueEnum;

/// Its name.
pub fn name(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |v| v.get_name().to_owned())
}

/// Its help text.
pub fn about(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value
        .and_then(|v| v.get_help().map(ToString::to_string))
        .unwrap_or_default()
}
