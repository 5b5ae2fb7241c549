//! Calibrates a disk and prints the model: `calibrate FILE [SECONDS]`. Makes FILE and removes it
//! again.

use disk::calibrate::{Calibration, CalibrationPhase, TIME};
use disk::swapfs::{FormatOptions, SwapFs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(path) = args.next().map(PathBuf::from) else {
        eprintln!("calibrate FILE [SECONDS]");
        return ExitCode::FAILURE;
    };
    let seconds = args.next().and_then(|arg| arg.to_str()?.parse().ok());
    let time = seconds.map_or(TIME, Duration::from_secs_f64);
    let options = FormatOptions {
        size: Some(272 << 20),
        force: false,
    };
    let measured = SwapFs::format(&path, &options)
        .map_err(|error| error.to_string())
        .and_then(|mut fs| {
            let measured = Calibration::of(&mut fs, time, &mut |progress| {
                if let CalibrationPhase::Filling = progress.phase {
                    eprintln!("measuring for {:?}", progress.total);
                }
            });
            let _ = std::fs::remove_file(&path);
            measured.map_err(|error| error.to_string())
        });
    match measured {
        Ok(calibration) => {
            println!("{calibration}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
