//! The store of a Redis, for real, by a link that is slow or silent.

mod proxy;
mod server;

use objectstore::{ObjectError, ObjectStore, ObjectUrl, Written};
use proxy::{Proxy, Way};
use server::Redis;
use std::sync::mpsc::channel;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const SEGMENT: usize = 1 << 20;

fn open(url: &str, patience: Duration) -> ObjectStore {
    let url: ObjectUrl = url.parse().unwrap();
    ObjectStore::open(&url, patience).unwrap()
}

#[test]
fn an_object_is_written_read_and_deleted() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let store = open(&redis.url(), PATIENCE);
    store.wait(async {
        store.check("run/check").await.unwrap();
        store.put("run/1", vec![7; 10_000]).await.unwrap();
        assert_eq!(store.size("run/1").await.unwrap(), 10_000);
        let bytes = store.read("run/1", 4096..8192).await.unwrap();
        assert_eq!(bytes.to_vec(), [7; 4096]);
        let short = store.read("run/1", 8192..12_288).await.unwrap_err();
        assert!(short.to_string().contains("run/1"), "{short}");
        let is_gone = |error: ObjectError| error.is_not_found();
        assert!(is_gone(store.read("run/2", 0..10).await.unwrap_err()));
        store.delete("run/1").await.unwrap();
        store.delete("run/1").await.unwrap();
        assert!(is_gone(store.size("run/1").await.unwrap_err()));
    });
}

#[test]
fn a_range_a_write_and_many_deletions_are_one_command_each() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let store = open(&redis.url(), PATIENCE);
    let names: Vec<String> = (0..300).map(|index| format!("run/{index}")).collect();
    store.wait(async {
        for name in &names {
            store.put(name, vec![7; 4096]).await.unwrap();
            store.read(name, 0..4096).await.unwrap();
        }
        store.delete_all(&names).await.unwrap();
    });
    let expected = [("set", 300), ("getrange", 300), ("del", 2), ("ping", 0)];
    for (command, calls) in expected.into_iter().chain([("exists", 0), ("strlen", 0)]) {
        assert_eq!(redis.calls(command), calls, "{command}");
    }
}

#[test]
fn segments_that_a_slow_link_carries_for_longer_than_a_silent_store_is_waited_for_arrive() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let slow = Proxy::start(redis.port, |_| Way::Slow);
    let store = open(&slow.url(), Duration::from_millis(600));
    let (sender, written) = channel();
    for index in 0..4 {
        let (store, sender) = (store.clone(), sender.clone());
        let name = format!("run/{index}");
        store.clone().spawn(async move {
            let written = store.put(&name, vec![index; SEGMENT]).await;
            sender.send(written).unwrap();
        });
    }
    drop(sender);
    for written in written {
        assert_eq!(written.unwrap(), Written::Once);
    }
    assert_eq!(redis.calls("set"), 4);
    let read = store.wait(store.read("run/3", 0..SEGMENT as u64)).unwrap();
    assert_eq!(read.to_vec(), [3; SEGMENT]);
    assert_eq!(redis.calls("getrange"), 1);
}

#[test]
fn a_silent_server_is_waited_for_no_longer_than_the_patience() {
    let silent = Proxy::start(0, |_| Way::Silent);
    let store = open(&silent.url(), Duration::from_millis(300));
    store.wait(async {
        let read = store.read("run/1", 0..4096).await.unwrap_err();
        let put = store.put("run/1", vec![7; SEGMENT]).await.unwrap_err();
        for error in [read, put] {
            assert!(error.is_late() && error.to_string().contains("no answer"));
        }
    });
}

#[test]
fn reads_that_one_connection_leaves_without_an_answer_are_made_by_another() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let written = open(&redis.url(), PATIENCE);
    written
        .wait(written.put("run/1", vec![7; SEGMENT]))
        .unwrap();
    let silent_once = |connection| match connection {
        0 => Way::Silent,
        _ => Way::Fast,
    };
    let proxy = Proxy::start(redis.port, silent_once);
    let store = open(&proxy.url(), PATIENCE);
    let (sender, read) = channel();
    for page in 0..200u64 {
        let (store, sender) = (store.clone(), sender.clone());
        store.clone().spawn(async move {
            let range = page * 4096..(page + 1) * 4096;
            let read = store.read("run/1", range).await;
            sender.send(read.map(|bytes| bytes.to_vec())).unwrap();
        });
    }
    drop(sender);
    let read: Vec<Vec<u8>> = read.into_iter().map(Result::unwrap).collect();
    assert_eq!(read, vec![[7; 4096]; 200]);
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn a_write_that_was_tried_again_says_so() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cut_once = |connection| match connection {
        0 => Way::Cut,
        _ => Way::Fast,
    };
    let proxy = Proxy::start(redis.port, cut_once);
    let store = open(&proxy.url(), PATIENCE);
    for expected in [Written::Again, Written::Once] {
        let written = store.wait(store.put("run/1", vec![7; 100])).unwrap();
        assert_eq!(written, expected);
    }
}

#[test]
fn a_server_that_has_started_again_is_connected_to_again() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let store = open(&redis.url(), PATIENCE);
    store.wait(store.put("run/1", vec![7; 100])).unwrap();
    store.wait(store.read("run/1", 0..100)).unwrap();
    let port = redis.port;
    drop(redis);
    let _again = Redis::start_at(port, &[]).unwrap();
    let gone = store.wait(store.read("run/1", 0..100)).unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
    store.wait(store.put("run/1", vec![8; 100])).unwrap();
}

#[test]
fn a_url_names_a_database_and_a_prefix_of_the_keys() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let store = open(&format!("{}/2/some/prefix", redis.url()), PATIENCE);
    store.wait(store.put("run/1", vec![7; 100])).unwrap();
    let there = redis.ask(&["SELECT 2", "STRLEN some/prefix/run/1"]);
    assert_eq!(there, ["+OK", ":100"]);
    let lives = open(&format!("{}?default_ttl=1000s", redis.url()), PATIENCE);
    lives.wait(lives.put("run/1", vec![7; 100])).unwrap();
    let lives_for = redis.ask(&["TTL run/1"]);
    assert!(lives_for[0].starts_with(":9") || lives_for[0] == ":1000");
}

#[test]
fn an_endpoint_is_the_path_of_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let socket = socket.to_str().unwrap();
    let Some(redis) = Redis::start(&["--unixsocket", socket]) else {
        return;
    };
    let url = format!("redis://any?endpoint=unix://any{socket}");
    let store = open(&url, PATIENCE);
    store.wait(store.put("run/1", vec![7; 100])).unwrap();
    assert_eq!(redis.ask(&["STRLEN run/1"]), [":100"]);
}

#[test]
fn a_server_that_wants_a_password_says_so() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]) else {
        return;
    };
    let store = open(&redis.url(), Duration::from_millis(300));
    let error = store.wait(store.put("run/1", vec![7; 100])).unwrap_err();
    assert!(error.to_string().contains("NOAUTH"), "{error}");
    assert!(error.is_denied(), "{error}");
}

#[test]
fn a_server_without_memory_is_full_at_once() {
    let options = ["--maxmemory", "1", "--maxmemory-policy", "noeviction"];
    let Some(redis) = Redis::start(&options) else {
        return;
    };
    let store = open(&redis.url(), PATIENCE);
    let error = store.wait(store.put("run/1", vec![7; 100])).unwrap_err();
    assert!(error.is_full() && !error.is_denied(), "{error}");
}
