//! A server without descriptors to spare.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

#[path = "server/common.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod common;

fn limit_descriptors(current: u64) {
    let limit = Rlimit {
        current: Some(current),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn a_connection_that_finds_no_descriptor_is_served_once_there_is_one() {
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let server = common::start(16);
    let mut kept = common::Client::greeted(server.address(), common::incarnation(1, 1));
    // The client's end takes the last descriptor, so that the server's finds none.
    let free = std::fs::File::open("/dev/null").unwrap();
    limit_descriptors(free.as_raw_fd() as u64 + 1);
    drop(free);
    let stream = TcpStream::connect(server.address()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let renew = remote_wire::control::ControlRequest::Renew;
    kept.control(&renew).unwrap();
    limit_descriptors(before);
    let link = remote_wire::Link::plain(stream).unwrap();
    let mut client = common::Client::over(link, common::incarnation(2, 1));
    client.hello().unwrap();
}
