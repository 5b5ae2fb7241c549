//! The store of a folder, for real.

use objectstore::{ObjectStore, ObjectUrl};
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
