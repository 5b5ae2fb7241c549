//! `selfpage trace`: a trace of the disk's scheduler.

use host::signals::{self, SignalFd};
use protocol::SOCKET;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tenant::list;
use tenant::trace::Tracer;
use wired::parse_time;

/// Polling interval: short enough that the daemon's event buffer does not fill.
const ASK: Duration = Duration::from_millis(100);

/// Record what the disk's scheduler does: a trace for ui.perfetto.dev.
///
/// Each transaction, its tenant and its charge; the time that the disk was kept for a tenant
/// with nothing to submit; the boundaries of periods. As in the right-hand plots of
/// figures 7 and 8 of the paper. Ctrl-C ends it early, with what has been recorded.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// The daemon's socket
    #[arg(long, value_name = "SOCKET", default_value = SOCKET)]
    system: PathBuf,

    /// Duration of the trace, as 500ms, 4s or 1min
    #[arg(long = "for", value_name = "TIME", default_value = "4s", value_parser = parse_time)]
    time: Duration,

    /// The file to write
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "selfpage-trace.json"
    )]
    output: PathBuf,
}

/// Writes a trace.
pub fn trace(args: TraceArgs) -> Result<ExitCode, Box<dyn Error>> {
    let mut tracer = Tracer::open(&args.system, u64::MAX)?;
    // A daemon that refuses leaves the file as it was.
    let mut seen = tracer.read()?;
    // Once there is something to trace, and before the time is spent.
    let fail = |why: std::io::Error| {
        format!(
            "cannot write {}: {why}; name another file with -o",
            args.output.display()
        )
    };
    let mut file = BufWriter::new(File::create(&args.output).map_err(fail)?);
    let requests_to_end = signals::set_of(&[libc::SIGINT, libc::SIGTERM]);
    signals::block(&requests_to_end);
    let end = SignalFd::open(&requests_to_end)?;
    let begin = Instant::now();
    let mut failed = None;
    while begin.elapsed() < args.time && failed.is_none() && end.next().is_none() {
        std::thread::sleep(ASK.min(args.time));
        match tracer.read() {
            Ok(more) => {
                seen.events.extend(more.events);
                seen.lost += more.lost;
            }
            Err(why) => failed = Some(why),
        }
    }
    let names: Vec<_> = list(&args.system)
        .unwrap_or_default()
        .into_iter()
        .map(|one| (one.client, format!("{} {}", one.tenant, one.name)))
        .collect();
    let name = |client: u32| {
        let known = names.iter().find(|(number, _)| *number == client);
        known.map_or_else(|| format!("client {client}"), |(_, name)| name.clone())
    };
    ::disk::trace::write_perfetto(&mut file, &seen.events, name).map_err(fail)?;
    // Dropped with bytes of it, it would not tell that they were not written.
    file.flush().map_err(fail)?;
    print_error!(
        "selfpage: {} events in {}{}",
        seen.events.len(),
        args.output.display(),
        match seen.lost {
            0 => String::new(),
            lost => format!("; {lost} were lost: the scheduler was faster than this could read"),
        }
    );
    failed.map_or(Ok(ExitCode::SUCCESS), |why| Err(why.into()))
}
