//! The clip: made once, by Debian's ffmpeg, from nothing, and decoded by it in every run.
//!
//! A moving test picture with noise of equal strength everywhere, so that every frame costs
//! about as much as another, in a lossless codec (FFV1), whose decoding takes a good part of
//! a frame's time on one thread. It is short and goes round, so that it stays in the page
//! cache: its disk is not what is measured.

use super::lateness::due;
use crate::ExperimentError;
use crate::error::while_doing;
use crate::keeper::Owed;
use crate::real::ground::{Grounds, found};
use crate::real::launch::{last_words, processor_time};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Pixels.
const SIZE: (usize, usize) = (640, 360);

/// Frames a second, as the paper's clip.
pub const PER_SECOND: u32 = 30;

/// Seconds until it goes round.
const SECONDS: u32 = 4;

/// Strength of the noise, which dominates the cost of a frame.
const NOISE: u32 = 12;

/// A clip, and what decodes it.
pub struct Clip {
    ffmpeg: PathBuf,
    path: PathBuf,
    size: u64,
    /// Processor time of a frame, decoded alone.
    pub cost: Duration,
    _owed: Owed,
}

impl Clip {
    /// Makes it.
    pub fn new(grounds: &Grounds<'_>) -> Result<Self, ExperimentError> {
        let ffmpeg = found("ffmpeg", "ffmpeg")?;
        let (path, owed) = grounds.base.file("clip.mkv")?;
        let (width, height) = SIZE;
        let picture =
            format!("testsrc2=size={width}x{height}:rate={PER_SECOND},noise=alls={NOISE}:allf=t");
        let mut command = Command::new(&ffmpeg);
        command.args(["-nostdin", "-loglevel", "error", "-y"]);
        command.args(["-f", "lavfi", "-i", &picture, "-t", &SECONDS.to_string()]);
        command.args([
            "-pix_fmt", "yuv420p", "-c:v", "ffv1", "-level", "3", "-g", "1",
        ]);
        command.arg(&path);
        done(command, "make the clip")?;
        let mut clip = Self {
            ffmpeg,
            size: length(&path)?,
            path,
            cost: Duration::ZERO,
            _owed: owed,
        };
        clip.cost = clip.measured()?;
        Ok(clip)
    }

    /// Decodes it for ever, to standard output, on one thread.
    pub fn decoder(&self) -> Command {
        let mut command = self.opened(&["-stream_loop", "-1"]);
        command.args(["-f", "rawvideo", "-pix_fmt", "yuv420p", "pipe:1"]);
        command
    }

    /// Bytes of a decoded frame.
    pub fn frame_bytes() -> usize {
        let (width, height) = SIZE;
        width * height * 3 / 2
    }

    /// Its description in the report's header.
    pub fn about(&self) -> String {
        let (width, height) = SIZE;
        format!(
            "clip: {width}x{height} at {PER_SECOND} frames/s, FFV1, {} MiB, in the page cache; a frame takes {:.1} ms of {:.1} to decode on one thread",
            self.size >> 20,
            self.cost.as_secs_f64() * 1e3,
            due(1, PER_SECOND).as_secs_f64() * 1e3
        )
    }

    /// Of a frame, decoded to nowhere.
    fn measured(&self) -> Result<Duration, ExperimentError> {
        let mut command = self.opened(&[]);
        command.args(["-f", "rawvideo", "-pix_fmt", "yuv420p", "-y", "/dev/null"]);
        let before = processor_time();
        done(command, "decode the clip")?;
        Ok((processor_time() - before) / (SECONDS * PER_SECOND))
    }

    fn opened(&self, how: &[&str]) -> Command {
        let mut command = Command::new(&self.ffmpeg);
        command.args(["-nostdin", "-loglevel", "error", "-threads", "1"]);
        command.args(how).arg("-i").arg(&self.path);
        command.args(["-filter_threads", "1"]);
        command
    }
}

fn done(mut command: Command, doing: &str) -> Result<(), ExperimentError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(while_doing(doing))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(ExperimentError::Worker(format!(
            "could not {doing}: {}",
            last_words(&output.stderr)
        ))),
    }
}

fn length(path: &Path) -> Result<u64, ExperimentError> {
    let about = std::fs::metadata(path);
    about
        .map(|about| about.len())
        .map_err(while_doing(format!("find {}", path.display())))
}
