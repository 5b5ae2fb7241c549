//! The store of a folder, for real.

use objectstore::{ObjectStore, ObjectUrl};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{File, read_dir};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tempfile::TempDir;

fn store() -> (TempDir, ObjectStore) {
    let folder = tempfile::tempdir().unwrap();
    let url: ObjectUrl = format!("fs://{}", folder.path().display()).parse().unwrap();
    (
        folder,
        ObjectStore::open(&url, Duration::from_secs(20)).unwrap(),
    )
}

#[test]
fn an_object_is_written_read_listed_and_deleted() {
    let (_folder, store) = store();
    store.wait(async {
        store.check("run/check").await.unwrap();
        assert!(store.list("run/").await.unwrap().is_empty());
        store.put("run/1", vec![7; 10_000]).await.unwrap();
        assert_eq!(store.size("run/1").await.unwrap(), 10_000);
        let bytes = store.read("run/1", 4096..8192).await.unwrap();
        assert_eq!(bytes.to_vec(), [7; 4096]);
        assert_eq!(store.list("run/").await.unwrap(), ["run/1"]);
        store.delete("run/1").await.unwrap();
        store.delete("run/1").await.unwrap();
        assert!(store.size("run/1").await.unwrap_err().is_not_found());
    });
}

#[test]
fn the_last_operation_may_be_the_last_owner_of_the_store() {
    let (_folder, store) = store();
    let (go, gone) = tokio::sync::oneshot::channel();
    let (sender, ended) = std::sync::mpsc::channel();
    let own = store.clone();
    store.spawn(async move {
        gone.await.unwrap();
        drop(own);
        sender.send(()).unwrap();
    });
    drop(store);
    go.send(()).unwrap();
    ended.recv().unwrap();
}

#[test]
fn a_range_beyond_the_end_is_an_error_that_names_the_object() {
    let (_folder, store) = store();
    store.wait(async {
        store.put("short", vec![7; 100]).await.unwrap();
        let error = store.read("short", 0..4096).await.unwrap_err().to_string();
        assert!(error.contains("short at fs://"), "{error}");
    });
}

/// A file whose writer waits until it is read, as one of a disk that does not answer.
fn make_fifo(folder: &TempDir, name: &str) {
    let path = folder.path().join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[test]
fn writes_that_a_folder_holds_up_end_in_time_and_hold_up_no_read() {
    let (folder, store) = store();
    store.wait(store.put("there", vec![7; 100])).unwrap();
    // More than there are threads for files.
    let (sender, ended) = std::sync::mpsc::channel();
    for index in 0..40 {
        let name = format!("held-up-{index}");
        make_fifo(&folder, &name);
        let hurried = store.with_patience(Duration::from_millis(200));
        let sender = sender.clone();
        store.spawn(async move {
            let error = hurried.put(&name, vec![7; 100]).await.unwrap_err();
            sender.send(error.to_string()).unwrap();
        });
    }
    drop(sender);
    for error in ended {
        assert!(error.contains("no answer for 200ms"), "{error}");
    }
    // They wait still.
    let bytes = store.wait(store.read("there", 0..100)).unwrap();
    assert_eq!(bytes.to_vec(), [7; 100]);
}

#[test]
fn nothing_stays_of_a_write_that_was_given_up() {
    let (folder, store) = store();
    make_fifo(&folder, "late");
    let hurried = store.with_patience(Duration::from_millis(50));
    hurried.wait(hurried.put("late", vec![7; 100])).unwrap_err();
    let mut written = Vec::new();
    let mut late = File::open(folder.path().join("late")).unwrap();
    late.read_to_end(&mut written).unwrap();
    assert_eq!(written, [7; 100]);
    while read_dir(folder.path()).unwrap().count() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_name_that_leaves_the_folder_is_an_error() {
    let (_folder, store) = store();
    for name in ["../there", "/there"] {
        store.wait(store.put(name, vec![7])).unwrap_err();
    }
}

#[test]
fn a_folder_without_permission_is_an_error() {
    if is_root() {
        println!("skipped: root may write everywhere");
        return;
    }
    let (folder, store) = store();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let error = store.wait(store.check("x")).unwrap_err();
    assert!(!error.is_not_found() && !error.is_full(), "{error}");
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t"))
}

#[test]
fn a_folder_that_is_not_there_is_not_made() {
    let (folder, store) = store();
    let path = folder.path().to_owned();
    drop(folder);
    store.wait(store.put("run/1", vec![7; 100])).unwrap_err();
    let url: ObjectUrl = format!("fs://{}", path.display()).parse().unwrap();
    let error = ObjectStore::open(&url, Duration::from_secs(20))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("mount its file system"),
        "{error}"
    );
    assert!(!path.exists());
}
