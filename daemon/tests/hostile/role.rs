//! What a process of the test binary does: its role, and how it is started with one.

use crate::{attacks, flood, fuzz, honest, leaving, restart};
use daemon::Daemon;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tracing::level_filters::LevelFilter;

/// What a process of the test binary does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    Daemon,
    Fuzz,
    Scribble,
    Crowd,
    NeverReads,
    Linger,
    Whole,
    Leaver,
    Linked,
    Interrupted,
    Flood,
    Answers,
    Needs,
    Storm,
    Pages,
    Plain,
    Supervisor,
    Stranger,
    Returns,
    Channels,
    Reserves,
    Bells,
    Bequeaths,
    Leaks,
    Reopens,
    Refused,
}

const ROLES: [Role; 26] = [
    Role::Daemon,
    Role::Fuzz,
    Role::Scribble,
    Role::Crowd,
    Role::NeverReads,
    Role::Linger,
    Role::Whole,
    Role::Leaver,
    Role::Linked,
    Role::Interrupted,
    Role::Flood,
    Role::Answers,
    Role::Needs,
    Role::Storm,
    Role::Pages,
    Role::Plain,
    Role::Supervisor,
    Role::Stranger,
    Role::Returns,
    Role::Channels,
    Role::Reserves,
    Role::Bells,
    Role::Bequeaths,
    Role::Leaks,
    Role::Reopens,
    Role::Refused,
];

const ROLE: &str = "SELFPAGE_TEST_ROLE";
const FOLDER: &str = "SELFPAGE_TEST_FOLDER";
const SEED: &str = "SELFPAGE_TEST_SEED";

impl Role {
    pub fn of_this_process() -> Option<Self> {
        let name = std::env::var(ROLE).ok()?;
        ROLES.into_iter().find(|role| format!("{role:?}") == name)
    }
}

/// Plays a role. Roles report results by [`count`].
pub fn play(role: Role) {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let socket = folder.join("s");
    match role {
        Role::Daemon => {
            restart::limit_descriptors(seed);
            logging::init("selfpage system: ", LevelFilter::INFO).unwrap();
            let mut daemon = Daemon::start(&folder.join("config.toml")).unwrap();
            daemon.run().unwrap();
        }
        Role::Fuzz => attacks::fuzz(&socket, seed),
        Role::Scribble => attacks::scribble(&socket, seed),
        Role::Crowd => attacks::crowd(&socket),
        Role::NeverReads => attacks::never_read(&socket),
        Role::Linger => attacks::linger(&socket),
        Role::Whole => attacks::whole(&socket),
        Role::Leaver => leaving::hostile(&socket),
        Role::Linked => leaving::linked(&socket),
        Role::Interrupted => leaving::interrupted(&socket, &folder.join("go")),
        Role::Flood => flood::flood(&socket, &folder.join("go")),
        Role::Answers => flood::answers(&socket, &folder.join("go")),
        Role::Needs => flood::needs(&socket),
        Role::Storm => flood::storm(&socket, seed),
        Role::Pages => fuzz::pages(&socket, &folder),
        Role::Plain => fuzz::plain(&folder),
        Role::Supervisor => fuzz::supervisor(&folder, seed),
        Role::Stranger => restart::stranger(&socket),
        Role::Returns => restart::returns(&socket, 0),
        Role::Bells => leaving::keep_bells(&socket),
        Role::Bequeaths => honest::bequeath(&folder.join("read"), &socket),
        Role::Refused => flood::refused(&socket),
        Role::Leaks => flood::leak(&socket),
        Role::Reopens => restart::reopens(&socket, &folder.join("go")),
        Role::Reserves => restart::reserves(&socket),
        Role::Channels => restart::returns(&socket, restart::CHANNELS),
    }
}

/// Adds a number to the counts, which the test reads.
pub fn count(n: u64) {
    let mut out = File::options()
        .append(true)
        .open(PathBuf::from(std::env::var_os(FOLDER).unwrap()).join("counts"))
        .unwrap();
    out.write_all(&n.to_le_bytes()).unwrap();
}

/// This test binary, to be started with a role.
pub fn process(folder: &Path, role: Role, seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "a_process_with_a_role_plays_it", "--nocapture"])
        .env(ROLE, format!("{role:?}"))
        .env(FOLDER, folder)
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}
