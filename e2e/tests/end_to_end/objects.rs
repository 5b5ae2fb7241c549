//! Pages in the objects of a store: a folder, and Redis.

mod redis_server;

use e2e::contract::{Contract, MIB, Size, Under};
use e2e::processes::Process;
use e2e::verdict::{Doing, Verdict, ensure};
use e2e::{Launch, Outcome, Running, Sandbox, hazard};
use libtest_mimic::Trial;
use redis_server::Redis;
use rustix::fs::OFlags;
use rustix::process::Signal;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server may take to serve, or a store to be emptied.
const PATIENCE: Duration = Duration::from_secs(90);
/// After this long the threads of a program page.
const UNDER_WAY: Duration = Duration::from_millis(700);
/// Longer than a write waits for a store that has a disk behind it.
const STOPPED: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// How often a client is killed, and the pause in which the next one serves.
const KILLS: u32 = 5;
const BETWEEN_KILLS: Duration = Duration::from_millis(400);
/// The program's memory, and the most that is stored of it, with what is being written and deleted:
/// `objectpages/src/segments.rs` has the rule.
const MEMORY_MIB: u64 = 64;
const MOST_STORED: u64 = (3 * MEMORY_MIB + 48) * MIB;

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "objects":
        pages_come_back_from_a_folder_that_is_empty_at_the_end => folder,
        pages_come_back_from_redis_that_is_empty_at_the_end => redis,
        an_object_client_killed_while_threads_page_loses_no_page => client_killed,
        an_object_client_killed_while_standard_error_is_full_stops_no_program =>
            client_killed_unread,
        an_object_client_killed_with_its_keeper_ends_the_program => keeper_killed,
        objects_that_are_gone_or_damaged_are_errors_and_no_wrong_pages => damaged,
        a_redis_that_is_stopped_for_a_second_loses_no_page => redis_stopped,
        a_redis_that_is_stopped_for_seconds_before_a_disk_loses_no_page =>
            redis_stopped_before_disk,
        a_full_redis_before_a_disk_loses_no_page_though_the_client_is_killed =>
            redis_full_before_disk,
        a_redis_that_has_started_again_is_an_error_and_no_wrong_page => redis_restarted,
        a_url_with_a_mistake_is_named_and_nothing_starts => refused,
    ]
}

/// Eight threads that write and check eight times their frames.
fn launch(sandbox: &Sandbox) -> Verdict<Launch<'_>> {
    let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(sandbox, &program).variable("HAZARD_MB", MEMORY_MIB.to_string());
    Ok(launch.limit(Duration::from_secs(120)))
}

fn contract(url: &str) -> Under {
    Under::Contract(Contract::new(8 * MIB).with(&format!("--store=opendal:{url},size=128M")))
}

/// Likewise, with a file for what the store does not take.
fn contract_with_disk(url: &str, sandbox: &Sandbox) -> Under {
    let file = sandbox.join("swap");
    let store = format!("opendal:{url},size=128M+disk:{},size=128M", file.display());
    Under::Contract(Contract::new(8 * MIB).with(&format!("--store={store}")))
}

/// A folder for objects, and its URL.
fn folder_of(sandbox: &Sandbox) -> Verdict<(PathBuf, String)> {
    let folder = sandbox.join("objects");
    std::fs::create_dir(&folder).doing(|| "make a folder".into())?;
    let url = format!("fs://{}", folder.display());
    Ok((folder, url))
}

/// The end of the name of the object that a client writes and deletes at its start.
const CHECK: &str = "-check";

/// The objects of pages in a folder, with their sizes.
fn objects_in(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(there) if there.is_dir() => found.extend(objects_in(&entry.path())),
            Ok(_)
                if entry
                    .path()
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(CHECK.as_bytes()) => {}
            Ok(there) => found.push((entry.path(), there.len())),
            // It was deleted meanwhile.
            Err(_) => {}
        }
    }
    found
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// The client deletes what there is after the program has ended.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Verdict {
    let begun = Instant::now();
    while !is_so() {
        ensure(begun.elapsed() < PATIENCE, || {
            format!("it is not so that {what}")
        })?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn check(outcome: Outcome, expected: &str) -> Verdict {
    let outcome = outcome.succeeded()?;
    ensure(outcome.text() == expected, || {
        format!("{} instead of {expected}", outcome.text())
    })
}

fn expected(sandbox: &Sandbox) -> Verdict<String> {
    Ok(launch(sandbox)?.run(&Under::Nothing)?.succeeded()?.text())
}

fn folder() -> Verdict {
    let sandbox = Sandbox::new("objects_folder")?;
    let (folder, url) = folder_of(&sandbox)?;
    let expected = expected(&sandbox)?;
    let mut running = launch(&sandbox)?.spawn(&contract(&url))?;
    let mut most = 0;
    while !running.ended() {
        most = most.max(objects_in(&folder).iter().map(|(_, bytes)| bytes).sum());
        std::thread::sleep(PAUSE);
    }
    println!("{} MiB stored at most", most / MIB);
    ensure(most > 0 && most <= MOST_STORED, || {
        format!("{most} bytes are stored")
    })?;
    check(running.wait()?, &expected)?;
    wait_until("the folder is empty", || is_empty(&folder))?;
    sandbox.check_clean()
}

/// The object client of a run, the child of its keeper.
fn client_of(running: &Running) -> Verdict<Process> {
    running
        .keeper_and_client("object-client")
        .map(|[_, client]| client)
}

/// Kills the client of a program again and again.
fn kill_clients(running: &mut Running) -> Verdict {
    let mut kills = 0;
    while kills < KILLS && !running.ended() {
        client_of(running)?.kill();
        kills += 1;
        std::thread::sleep(BETWEEN_KILLS);
    }
    println!("{kills} kills");
    Ok(())
}

fn client_killed() -> Verdict {
    let sandbox = Sandbox::new("objects_killed")?;
    let (folder, url) = folder_of(&sandbox)?;
    let expected = expected(&sandbox)?;
    let mut running = launch(&sandbox)?.spawn(&contract(&url))?;
    wait_until("pages are stored", || !objects_in(&folder).is_empty())?;
    kill_clients(&mut running)?;
    check(running.wait()?, &expected)?;
    wait_until("the folder is empty", || is_empty(&folder))?;
    sandbox.check_clean()
}

fn client_killed_unread() -> Verdict {
    let sandbox = Sandbox::new("objects_unread")?;
    let (folder, url) = folder_of(&sandbox)?;
    let expected = expected(&sandbox)?;
    let (mut unread, full) = full_pipe()?;
    let path = format!("/proc/self/fd/{}", full.as_raw_fd());
    let launch = launch(&sandbox)?.stderr(path);
    let mut running = launch.spawn(&contract(&url))?;
    drop(full);
    wait_until("pages are stored", || !objects_in(&folder).is_empty())?;
    kill_clients(&mut running)?;
    let stdout = sandbox.join("stdout");
    wait_until("the program has done its work", || {
        std::fs::read_to_string(&stdout).is_ok_and(|text| text == expected)
    })?;
    // `run` has lines to write before it ends.
    let reader = std::thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
    check(running.wait()?, &expected)?;
    ensure(reader.join().is_ok_and(|read| read.is_ok()), || {
        "standard error could not be read".into()
    })
}

/// A pipe that takes nothing more until it is read.
fn full_pipe() -> Verdict<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = std::io::pipe().doing(|| "make a pipe".into())?;
    let set = |flags| rustix::fs::fcntl_setfl(&writer, flags);
    set(OFlags::NONBLOCK).doing(|| "open the pipe for writing".into())?;
    while writer.write(&[b'.'; 4096]).is_ok() {}
    let set = rustix::fs::fcntl_setfl(&writer, OFlags::empty());
    set.doing(|| "open the pipe for writing".into())?;
    Ok((reader, writer))
}

fn keeper_killed() -> Verdict {
    let sandbox = Sandbox::new("objects_keeper")?;
    let (folder, url) = folder_of(&sandbox)?;
    let running = launch(&sandbox)?.spawn(&contract(&url))?;
    wait_until("pages are stored", || !objects_in(&folder).is_empty())?;
    // The keeper first: it would start another client.
    for process in running.keeper_and_client("object-client")? {
        process.kill();
    }
    let outcome = running.wait()?;
    let (status, said) = (outcome.status, &outcome.stderr);
    ensure(
        !status.success() && said.contains("the object client has ended"),
        || format!("it ended with {status:?} and said {said:?}"),
    )
}

/// The program ended by an error of its own pages, and found none with wrong contents.
fn ended_by_lost_pages(outcome: &Outcome) -> Verdict {
    let (status, said) = (outcome.status, &outcome.stderr);
    let is_error = !status.success() && said.contains("is lost");
    ensure(is_error && outcome.text().is_empty(), || {
        format!(
            "it ended with {status:?}, wrote {:?} and said {said:?}",
            outcome.text()
        )
    })
}

fn damaged() -> Verdict {
    for is_gone in [true, false] {
        let sandbox = Sandbox::new("objects_damaged")?;
        let (folder, url) = folder_of(&sandbox)?;
        let running = launch(&sandbox)?.spawn(&contract(&url))?;
        let stored = || objects_in(&folder).len() > 40;
        wait_until("pages are stored", stored)?;
        for (path, bytes) in objects_in(&folder) {
            // One that was deleted meanwhile is none to damage.
            let _ = match is_gone {
                true => std::fs::remove_file(path),
                false => std::fs::write(path, vec![0x55; bytes as usize]),
            };
        }
        ended_by_lost_pages(&running.wait()?)?;
    }
    Ok(())
}

fn redis() -> Verdict {
    let sandbox = Sandbox::new("objects_redis")?;
    let redis = Redis::start()?;
    let expected = expected(&sandbox)?;
    check(launch(&sandbox)?.run(&contract(&redis.url()))?, &expected)?;
    wait_until("Redis is empty", || redis.keys().as_deref() == Some(":0"))?;
    sandbox.check_clean()
}

fn redis_stopped() -> Verdict {
    let sandbox = Sandbox::new("objects_redis_stopped")?;
    let redis = Redis::start()?;
    let expected = expected(&sandbox)?;
    let running = launch(&sandbox)?.spawn(&contract(&redis.url()))?;
    wait_until("Redis has pages", || redis.has_pages())?;
    redis.signal(Signal::STOP);
    std::thread::sleep(UNDER_WAY);
    redis.signal(Signal::CONT);
    check(running.wait()?, &expected)
}

/// Writes do not wait for it: they go to the file. Reads of what it has do.
fn redis_stopped_before_disk() -> Verdict {
    let sandbox = Sandbox::new("objects_redis_disk")?;
    let redis = Redis::start()?;
    let expected = expected(&sandbox)?;
    let running = launch(&sandbox)?.spawn(&contract_with_disk(&redis.url(), &sandbox))?;
    wait_until("Redis has pages", || redis.has_pages())?;
    redis.signal(Signal::STOP);
    std::thread::sleep(STOPPED);
    redis.signal(Signal::CONT);
    check(running.wait()?, &expected)?;
    wait_until("Redis is empty", || redis.keys().as_deref() == Some(":0"))?;
    sandbox.check_clean()
}

fn redis_full_before_disk() -> Verdict {
    let sandbox = Sandbox::new("objects_redis_full")?;
    let redis = Redis::start_with(&["--maxmemory", "16mb", "--maxmemory-policy", "noeviction"])?;
    let expected = expected(&sandbox)?;
    let mut running = launch(&sandbox)?.spawn(&contract_with_disk(&redis.url(), &sandbox))?;
    wait_until("Redis has pages", || redis.has_pages())?;
    kill_clients(&mut running)?;
    check(running.wait()?, &expected)?;
    wait_until("Redis is empty", || redis.keys().as_deref() == Some(":0"))?;
    sandbox.check_clean()
}

fn redis_restarted() -> Verdict {
    let sandbox = Sandbox::new("objects_redis_restarted")?;
    let redis = Redis::start()?;
    let running = launch(&sandbox)?.spawn(&contract(&redis.url()))?;
    wait_until("Redis has pages", || redis.has_pages())?;
    let port = redis.port;
    drop(redis);
    let _empty = Redis::start_at(port, &[])?;
    ended_by_lost_pages(&running.wait()?)
}

fn refused() -> Verdict {
    let sandbox = Sandbox::new("objects_refused")?;
    let launch = Launch::new(&sandbox, "/bin/true");
    for (url, words) in [
        ("tape://x", "fs:///FOLDER"),
        ("fs://relative/folder", "three slashes"),
        ("fs:///proc/selfpage", "mkdir -p"),
        ("redis://me:secret@host", "REDISCLI_AUTH"),
    ] {
        let outcome = launch.run(&contract(url))?.ended_with(125)?;
        let said = &outcome.stderr;
        ensure(said.contains(words) && !said.contains("secret@"), || {
            format!("{url}: it says {said:?}")
        })?;
    }
    sandbox.check_clean()
}
