//! The clip: made once, by Debian's ffmpeg, from nothing, and decoded by it in every run.
//!
//! A moving test picture with noise of equal strength everywhere, so that every frame costs
//! about as much as another, in a lossless codec (FFV1), whose decoding takes a good part of
//! a frame's time on one thread. It is short and goes round, so that it stays in the page
//! cache: its disk is not what is measured.

use super::deadline_misses::due;
use crate::env::find_program;
use crate::machine::processor_time;
use crate::prelude::*;
use crate::process::output;
use std::process::Stdio;

/// Pixels.
const SIZE: (usize, usize) = (640, 360);

/// Frames a second, as the paper's clip.
pub const PER_SECOND: u32 = 30;

/// Seconds until it goes round.
const SECONDS: u32 = 4;

/// Strength of the noise, which dominates the cost of a frame.
const NOISE: u32 = 12;

/// A clip, and what decodes it.
pub struct VideoClip {
    ffmpeg: PathBuf,
    path: OwnedFile,
    size: u64,
    /// Processor time of a frame, decoded alone.
    pub cost: Duration,
}

impl VideoClip {
    /// Makes it.
    pub fn new(env: &TestEnv) -> Result<Self> {
        let ffmpeg = find_program("ffmpeg", "ffmpeg")?;
        let path = env.file("clip.mkv")?;
        let (width, height) = SIZE;
        let picture =
            format!("testsrc2=size={width}x{height}:rate={PER_SECOND},noise=alls={NOISE}:allf=t");
        let mut command = Command::new(&ffmpeg);
        command.args(["-nostdin", "-loglevel", "error", "-y"]);
        command.args(["-f", "lavfi", "-i", &picture, "-t", &SECONDS.to_string()]);
        command.args([
            "-pix_fmt", "yuv420p", "-c:v", "ffv1", "-level", "3", "-g", "1",
        ]);
        command.arg(&*path);
        output(command, Stdio::null())?;
        let about = std::fs::metadata(&path);
        let about = about.at("find", &path)?;
        let mut clip = Self {
            ffmpeg,
            size: about.len(),
            path,
            cost: Duration::ZERO,
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

    /// The part of a processor that playing it takes.
    pub fn demand(&self) -> f64 {
        self.cost.as_secs_f64() / due(1, PER_SECOND).as_secs_f64()
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
    fn measured(&self) -> Result<Duration> {
        let mut command = self.opened(&[]);
        command.args(["-f", "rawvideo", "-pix_fmt", "yuv420p", "-y", "/dev/null"]);
        let before = processor_time();
        output(command, Stdio::null())?;
        Ok((processor_time() - before) / (SECONDS * PER_SECOND))
    }

    fn opened(&self, how: &[&str]) -> Command {
        let mut command = Command::new(&self.ffmpeg);
        command.args(["-nostdin", "-loglevel", "error", "-threads", "1"]);
        command.args(how).arg("-i").arg(&*self.path);
        command.args(["-filter_threads", "1"]);
        command
    }
}
