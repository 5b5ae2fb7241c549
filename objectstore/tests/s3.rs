//! Requests as an S3 server receives them.

use objectstore::{ObjectPath, ObjectStore, ObjectUrl, ObjectVersion, Written};
use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

const SEGMENT: usize = 1 << 20;

/// A server that answers one request, and returns the request's first line and body.
fn server(answer: &'static str) -> (String, JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let (status, text) = answer.split_once('\n').unwrap_or((answer, ""));
        let length = text.len();
        let head =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        reader.get_mut().write_all(head.as_bytes()).unwrap();
        reader.get_mut().write_all(text.as_bytes()).unwrap();
        (first, body)
    });
    let url =
        format!("s3://pages/folder?region=us-east-1&endpoint=http://{address}&skip_signature=true");
    (url, serving)
}

fn store(url: &str) -> ObjectStore {
    let url: ObjectUrl = url.parse().unwrap();
    ObjectStore::open(&url, Duration::from_secs(20)).unwrap()
}

#[test]
fn an_object_is_put_into_the_folder_of_its_bucket() {
    let (url, serving) = server("200 OK");
    let store = store(&url);
    store.wait(store.put("run/1", vec![7; 5000])).unwrap();
    let (first, body) = serving.join().unwrap();
    assert_eq!(first.trim(), "PUT /pages/folder/run/1 HTTP/1.1");
    assert_eq!(body, [7; 5000]);
}

#[test]
fn a_server_that_refuses_is_an_error_without_further_attempts() {
    let (url, serving) = server("403 Forbidden");
    let store = store(&url);
    let error = store.wait(store.put("run/1", vec![7; 10])).unwrap_err();
    // The server is gone: a second attempt would find nothing that listens.
    assert!(!error.to_string().contains("refused"), "{error}");
    serving.join().unwrap();
}

#[test]
fn an_error_of_a_bucket_or_its_credentials_says_what_to_change() {
    for (answer, remedy) in [
        (
            "404 Not Found\n<Error><Code>NoSuchBucket</Code></Error>",
            "make it, or name another",
        ),
        (
            "301 Moved\n<Error><Code>PermanentRedirect</Code></Error>",
            "?region=REGION",
        ),
        (
            "403 Forbidden\n<Error><Code>RequestTimeTooSkewed</Code></Error>",
            "clock",
        ),
        (
            "403 Forbidden\n<Error><Code>AccessDenied</Code></Error>",
            "permit",
        ),
    ] {
        let (url, serving) = server(answer);
        let store = store(&url);
        let error = store
            .wait(store.put("run/1", vec![7; 10]))
            .unwrap_err()
            .to_string();
        assert!(error.contains(remedy), "{error}");
        serving.join().unwrap();
    }
}

/// A server behind a link that carries 72 KiB a second, whose packets are as small as those of networks, and which
/// answers one request.
fn behind_a_slow_link() -> (String, JoinHandle<()>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    socket.set_tcp_mss(1400).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    socket.listen(4).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let serving = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut part = [0; 9 << 10];
        let (mut head, mut received) = (Vec::<u8>::new(), 0);
        while received < SEGMENT {
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "the connection is given up");
            match received {
                0 => {
                    head.extend(&part[..count]);
                    let end = head.windows(4).position(|at| at == b"\r\n\r\n");
                    received = end.map_or(0, |end| head.len() - end - 4);
                }
                _ => received += count,
            }
            std::thread::sleep(Duration::from_millis(125) * count as u32 / part.len() as u32);
        }
        let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).unwrap();
    });
    let url =
        format!("s3://pages/folder?region=us-east-1&endpoint=http://{address}&skip_signature=true");
    (url, serving)
}

#[test]
fn a_segment_that_a_link_carries_slowly_is_written_at_the_first_attempt() {
    let (url, serving) = behind_a_slow_link();
    let store = store(&url).with_patience(Duration::from_secs(6));
    let written = store.wait(store.put("run/1", vec![7; SEGMENT])).unwrap();
    assert_eq!(written, Written::Once);
    serving.join().unwrap();
}

/// A server that sends nothing to its first connection, and bytes to the next.
fn silent_once(bytes: &'static [u8]) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = spawn(move || {
        let (_silent, _) = listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            bytes.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(bytes).unwrap();
    });
    let url =
        format!("s3://pages/folder?region=us-east-1&endpoint=http://{address}&skip_signature=true");
    (url, serving)
}

#[test]
fn a_read_that_one_connection_leaves_without_an_answer_is_made_on_another() {
    let (url, serving) = silent_once(b"pages");
    let store = store(&url);
    let read = store.wait(store.read("run/1", 3..8)).unwrap();
    assert_eq!(read.to_vec(), b"pages");
    serving.join().unwrap();
}

/// A server that answers each of its connections, and returns the heads of the requests, in lower case.
fn answers(answers: &'static [&'static str]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = spawn(move || {
        let answer = |answer: &&str| {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                reader.read_line(&mut head).unwrap();
            }
            let text = format!("HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n");
            reader.get_mut().write_all(text.as_bytes()).unwrap();
            head.to_ascii_lowercase()
        };
        answers.iter().map(answer).collect()
    });
    (
        format!(
            "s3://pages/folder/guest?region=us-east-1&endpoint=http://{address}&skip_signature=true"
        ),
        serving,
    )
}

#[test]
fn a_version_of_an_object_is_read_and_no_other() {
    let (url, serving) = answers(&[
        "200 OK\r\nContent-Length: 5000\r\nETag: \"one\"",
        "412 Precondition Failed\r\nContent-Length: 0",
    ]);
    let path: ObjectPath = url.parse().unwrap();
    let patience = Duration::from_secs(20);
    let version = ObjectVersion::ask(&path.url, &path.name, patience).unwrap();
    assert_eq!((version.size, &*version.tag), (5000, "\"one\""));
    let store = ObjectStore::open(&path.url, patience).unwrap();
    let read = store.wait(store.read_version(&path.name, 0..100, &version));
    assert!(read.is_err());
    let [asked, read] = &serving.join().unwrap()[..] else {
        panic!("other requests than two");
    };
    assert!(asked.starts_with("head /pages/folder/guest "), "{asked}");
    assert!(read.starts_with("get /pages/folder/guest "), "{read}");
    for header in ["if-match: \"one\"", "range: bytes=0-99"] {
        assert!(read.contains(header), "{read}");
    }
}
