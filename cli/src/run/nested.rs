//! A run within another, which has the contract and the store.

use super::RunArgs;
use link::client::SupervisorPort;

/// Returns true if this process is of another `run`'s tree: its children page there.
pub fn is_nested() -> bool {
    unsafe extern "C" {
        static environ: *const *const std::ffi::c_char;
    }
    // SAFETY: this process has one thread and changes no variable.
    unsafe { SupervisorPort::from_environ(environ) }.is_ok_and(|port| port.is_open())
}

/// Notes where a program pages, and which of the options do nothing there.
pub fn notice(args: &RunArgs, program: &str) {
    let unused = match in_words(&unused_options(args)) {
        Some(options) => format!("; {options} given here are not used"),
        None => String::new(),
    };
    tracing::warn!(
        "this is inside another `selfpage run`: {program} pages in that one's frames and store{unused}"
    );
}

fn unused_options(args: &RunArgs) -> Vec<&'static str> {
    let options = [
        (args.frames.is_some(), "--frames"),
        (args.system.is_some(), "--system"),
        (args.disk.is_some(), "--disk"),
        (args.name.is_some(), "--name"),
        (args.numa_node.is_some(), "--numa-node"),
        (args.swap.is_some(), "--swap"),
        (args.ram.is_some(), "--ram"),
        (args.store.is_some(), "--store"),
        (args.fault_rate.is_some(), "--fault-rate"),
        (args.share_store, "--share-store"),
    ];
    let given = options.into_iter().chain(args.remote.given());
    let given = given.filter(|(is_given, _)| *is_given);
    given.map(|(_, option)| option).collect()
}

/// None of none.
fn in_words(options: &[&str]) -> Option<String> {
    let (last, others) = options.split_last()?;
    Some(match others.is_empty() {
        true => (*last).to_owned(),
        false => format!("{} and {last}", others.join(", ")),
    })
}
