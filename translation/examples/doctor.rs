//! Prints what translation finds on this machine: `cargo run -p translation --example doctor`.

fn main() {
    let without = std::env::var("SELFPAGE_WITHOUT").unwrap_or_default();
    match translation::Report::gather(&without) {
        Ok(report) => print!("{report}"),
        Err(unknown) => eprintln!("SELFPAGE_WITHOUT: {unknown}"),
    }
}
