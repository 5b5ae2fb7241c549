//! The disk: calibrated, with a file on it that is written completely.

use crate::Outcome;
use disk::calibrate::Calibration;
use disk::swapfs::{Extents, FileName, FormatOptions, SwapFs};
use disk::usd::{Usd, UsdConfig};
use rustix::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use wired::{PAGE, WiredMemory};

/// Bytes of the file.
const FILE: u64 = 256 << 20;

pub struct Ground {
    pub fs: SwapFs,
    pub extents: Extents,
    pub calibration: Calibration,
}

impl Ground {
    pub fn new(path: &Path) -> Outcome<Self> {
        let format = FormatOptions {
            size: Some(2 * FILE),
            force: false,
        };
        let mut fs = SwapFs::format(path, &format)?;
        let calibration = Calibration::of(&mut fs, Duration::from_secs(4), &mut |_| {})?;
        let file = fs.create(FileName::new(b"of all the clients")?, FILE, &[])?;
        while let Some(mut scrub) = fs.scrub(file)? {
            scrub.run()?;
            fs.complete_scrub(scrub)?;
        }
        let extents = fs.extents(file)?;
        // Reading blocks that were never written costs no disk time.
        let buffer = WiredMemory::private(1 << 20)?;
        // SAFETY: fresh memory of that size, used only here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), 1 << 20) };
        let fill = |(at, byte): (usize, &mut u8)| *byte = at as u8;
        bytes.iter_mut().enumerate().for_each(fill);
        for extent in extents.list() {
            for at in (0..extent.len).step_by(1 << 20) {
                rustix::io::pwrite(fs.medium().as_fd(), &*bytes, extent.device + at)?;
            }
        }
        Ok(Self {
            fs,
            extents,
            calibration,
        })
    }

    /// The disk's thread, with the calibrated bound.
    pub fn usd(&self, spin: Duration) -> Outcome<Usd> {
        let model = self.calibration.model;
        let settings = UsdConfig {
            model,
            bound: model.bound,
            spin,
        };
        Ok(Usd::start(self.fs.medium().clone(), settings)?)
    }

    /// A random page of the file.
    pub fn anywhere(random: &mut fastrand::Rng) -> u64 {
        random.u64(..FILE / PAGE as u64) * PAGE as u64
    }

    /// Device offset of a page of the file.
    pub fn device(&self, offset: u64) -> Outcome<u64> {
        let mut places = self.extents.translate(offset, PAGE as u64)?;
        Ok(places.next().ok_or("a place")?.device)
    }
}
