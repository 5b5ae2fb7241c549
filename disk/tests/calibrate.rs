//! Calibration on a real file.

use disk::calibrate::{CalibrateError, Calibration, CalibrationPhase, SIZES};
use disk::cost_model::Op;
use disk::swapfs::{Extent, FileName, FormatOptions, SwapFs, UNIT};
use rustix::fd::AsFd;
use std::fs::File;
use std::time::Duration;

/// Time for a few transactions of every kind; the tests do not check the figures.
const SHORT: Duration = Duration::from_millis(400);

fn format(units: u64) -> (tempfile::TempDir, SwapFs) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = FormatOptions {
        size: Some((2 + units) * UNIT),
        force: false,
    };
    let fs = SwapFs::format(&directory.path().join("swap"), &options).unwrap();
    (directory, fs)
}

#[test]
fn a_filesystem_is_measured_on_free_space_and_left_unchanged() {
    let (_directory, mut fs) = format(16);
    let kept = fs
        .create(FileName::new(b"a tenant's pages").unwrap(), 7 * UNIT, &[])
        .unwrap();
    let before = fs.files().to_vec();
    let mut doings = Vec::new();
    let measured = Calibration::of(&mut fs, SHORT, &mut |progress| {
        assert_eq!(progress.total, SHORT);
        doings.push(progress.phase);
    });
    let measured = measured.unwrap();
    assert_eq!(fs.files(), before);
    assert_eq!(fs.usage().free, 9 * UNIT);
    assert_eq!(fs.file(kept).unwrap().clean(), 0);

    assert_eq!(doings[0], CalibrationPhase::Filling);
    for op in [Op::Read, Op::Write] {
        for bytes in SIZES {
            assert!(doings.contains(&CalibrationPhase::Loading {
                op,
                bytes,
                depth: 1
            }));
            let knee = measured.knee(op, bytes).unwrap();
            let cost = measured.model.cost(op, bytes);
            assert!(knee >= 1 && cost.0 > 1, "{measured}");
        }
    }
    assert!(f64::from(measured.model.capacity) > 0.5);
    let text = serde_json::to_string(&measured).unwrap();
    let kept: Calibration = serde_json::from_str(&text).unwrap();
    assert_eq!(kept.model, measured.model);
    assert_eq!(kept.samples.len(), measured.samples.len());
}

#[test]
fn the_next_calibration_releases_what_a_killed_one_left() {
    let (_directory, mut fs) = format(2);
    let left = FileName::new(b"calibration's scratch").unwrap();
    fs.create(left, 2 * UNIT, &[]).unwrap();
    Calibration::of(&mut fs, SHORT, &mut |_| {}).unwrap();
    assert_eq!(fs.files(), []);
}

#[test]
fn a_full_filesystem_is_left_alone() {
    let (_directory, mut fs) = format(2);
    let name = FileName::new(b"a tenant's pages").unwrap();
    fs.create(name, 2 * UNIT, &[]).unwrap();
    let error = Calibration::of(&mut fs, SHORT, &mut |_| {}).unwrap_err();
    assert!(matches!(error, CalibrateError::File(_)), "{error}");
    assert_eq!(fs.files().len(), 1);
}

#[test]
fn a_failing_disk_is_an_error_and_does_not_hang() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let read_only = File::open(file.path()).unwrap();
    let extent = |len| Extent {
        file: 0,
        device: 0,
        len,
    };
    let measured = Calibration::on(read_only.as_fd(), &[extent(UNIT)], SHORT, &mut |_| {});
    assert_eq!(measured, Err(CalibrateError::Io(rustix::io::Errno::BADF)));
    let small = Calibration::on(read_only.as_fd(), &[extent(4096)], SHORT, &mut |_| {});
    let error = small.unwrap_err().to_string();
    assert!(
        error.contains("131072 bytes") && error.contains("has 4096"),
        "{error}"
    );
}
