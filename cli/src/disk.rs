//! `selfpage disk`: reads files in contracted disk time.

use clap::builder::RangedU64ValueParser;
use protocol::SOCKET;
use protocol::contract_spec::DiskSpec;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tenant::file::{MAX_RUN, ReservedFile};
use wired::{Bytes, PAGE, parse_time};

/// Requests under way, at most.
const MOST_DEPTH: u64 = u16::MAX as u64;
/// Pages of a request, at most.
const MOST_PAGES: u64 = MAX_RUN as u64;

/// Read files in contracted disk time.
#[derive(clap::Args)]
pub struct DiskArgs {
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(clap::Subcommand)]
enum DiskCommand {
    /// Read a file to standard output, with many requests under way
    Read {
        /// The file, on the disk whose time the daemon schedules
        file: PathBuf,

        /// Disk time: 125ms/250ms,extra,laxity=10ms
        #[arg(long, value_name = "SLICE/PERIOD")]
        disk: DiskSpec,

        /// The daemon's socket
        #[arg(long, value_name = "SOCKET", default_value = SOCKET)]
        system: PathBuf,

        /// Requests under way
        #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = count(1..=MOST_DEPTH))]
        depth: usize,

        /// Pages of a request, 1 to 32
        #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = count(1..=MOST_PAGES))]
        pages: usize,

        /// Read it repeatedly for this time, and print lines of the seconds so far and the bytes read so
        /// far alone, each interval
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        repeat: Option<Duration>,

        /// How often the bytes read are printed with --repeat
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
        interval: Duration,
    },
}

fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// Reads.
pub fn disk(args: DiskArgs) -> Result<ExitCode, Box<dyn Error>> {
    let DiskCommand::Read {
        file: path,
        disk,
        system,
        depth,
        pages,
        repeat,
        interval,
    } = args.command;
    let file = File::open(&path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned();
    let mut file = ReservedFile::open(&system, &name, &file, disk, depth, pages)?;
    if file.size() == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    match repeat {
        Some(time) => over_and_over(&mut file, pages, time, interval)?,
        None => {
            let begin = Instant::now();
            let bytes = in_order(&mut file, pages)?;
            let seconds = begin.elapsed().as_secs_f64();
            print_error!("selfpage: {} in {seconds:.2} s", Bytes(bytes));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the file to standard output in order: a block read early waits for those before it.
fn in_order(file: &mut ReservedFile, pages: usize) -> Result<u64, Box<dyn Error>> {
    let step = (pages * PAGE) as u64;
    let mut offsets = vec![0; file.depth()];
    let mut early: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let (size, mut next, mut written) = (file.size(), 0, 0);
    for (slot, offset) in offsets.iter_mut().enumerate() {
        if next < size {
            *offset = next;
            file.read(slot, next);
            next += step;
        }
    }
    let mut out = std::io::stdout().lock();
    while let Some(over) = file.wait() {
        let over = over?;
        let slot = over.slot;
        early.insert(offsets[slot], over.data.to_vec());
        while let Some(data) = early.remove(&written) {
            // The last request reads whole pages.
            let len = (size - written).min(step) as usize;
            let there = data.get(..len).unwrap_or(&data);
            out.write_all(there).map_err(stdout_fails)?;
            if there.len() < len {
                let (end, size) = (Bytes(written + there.len() as u64), Bytes(size));
                return Err(format!("the file had {size} and ends at {end} now").into());
            }
            written += step;
        }
        if next < size {
            offsets[slot] = next;
            file.read(slot, next);
            next += step;
        }
    }
    out.flush().map_err(stdout_fails)?;
    Ok(size)
}

fn stdout_fails(why: std::io::Error) -> String {
    format!("cannot write to standard output: {why}")
}

fn over_and_over(
    file: &mut ReservedFile,
    pages: usize,
    time: Duration,
    interval: Duration,
) -> Result<(), Box<dyn Error>> {
    let step = (pages * PAGE) as u64;
    let (size, begin) = (file.size(), Instant::now());
    let (mut next, mut read, mut told) = (0, 0, interval);
    for slot in 0..file.depth() {
        file.read(slot, next % size / step * step);
        next += step;
    }
    while begin.elapsed() < time {
        let Some(over) = file.wait() else { break };
        let over = over?;
        read += over.data.len() as u64;
        let slot = over.slot;
        file.read(slot, next % size / step * step);
        next += step;
        if begin.elapsed() >= told {
            println!("{:.3} {read}", begin.elapsed().as_secs_f64());
            told += interval;
        }
    }
    println!("{:.3} {read}", begin.elapsed().as_secs_f64());
    Ok(())
}
