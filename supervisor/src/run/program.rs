//! The program to run, found as the shell would.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A program and its arguments.
pub struct Program {
    /// The file.
    pub path: CString,
    /// The arguments, the program's name first.
    pub arguments: Vec<CString>,
}

/// The reason that a program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No program has that name.
    #[error("{}: not found", if .0.is_empty() { "\"\"" } else { .0 })]
    NotFound(String),
    /// The file exists, but may not be executed.
    #[error("{0}: cannot be executed: {1}")]
    NotExecutable(String, String),
}

impl ExecError {
    /// The exit status for this error.
    pub fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(..) => 126,
        }
    }

    /// Converts exec's error.
    pub fn from_exec(program: &Program, errno: Errno) -> Self {
        let name = program.name();
        match errno {
            // The file exists, but its interpreter does not.
            Errno::NOENT if Path::new(OsStr::from_bytes(program.path.to_bytes())).exists() => {
                Self::NotFound(format!("{name}: the interpreter it names"))
            }
            Errno::NOENT | Errno::NOTDIR => Self::NotFound(name),
            other => Self::NotExecutable(name, other.to_string()),
        }
    }
}

impl Program {
    /// Looks a command up. A name with a slash is a path; any other is searched for on PATH.
    pub fn find(command: Vec<OsString>) -> Result<Self, ExecError> {
        let name = command.first().cloned().unwrap_or_default();
        let shown = name.to_string_lossy().into_owned();
        let path = if name.as_bytes().contains(&b'/') {
            executable(Path::new(&name)).map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR => ExecError::NotFound(shown.clone()),
                other => ExecError::NotExecutable(shown.clone(), other.to_string()),
            })?;
            PathBuf::from(&name)
        } else {
            search(&name).map_err(|denied| match denied {
                Some(errno) => ExecError::NotExecutable(shown.clone(), errno.to_string()),
                None => ExecError::NotFound(shown.clone()),
            })?
        };
        // Arguments of a command line contain no zero byte.
        let c = |bytes: Vec<u8>| CString::new(bytes).unwrap_or_default();
        Ok(Self {
            path: c(path.into_os_string().into_vec()),
            arguments: command
                .into_iter()
                .map(|argument| c(argument.into_vec()))
                .collect(),
        })
    }

    /// The program's name, as given.
    pub fn name(&self) -> String {
        self.arguments
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// The first executable file with this name on PATH; else the error of a file that may not be
/// executed, or `None` where no file has the name.
fn search(name: &OsStr) -> Result<PathBuf, Option<Errno>> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut denied = None;
    if name.is_empty() {
        return Err(None);
    }
    for folder in std::env::split_paths(&path) {
        // An empty entry is the current folder.
        let file = if folder.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            folder.join(name)
        };
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(errno) => denied = Some(errno),
        }
    }
    Err(denied)
}

fn executable(file: &Path) -> Result<(), Errno> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => return Err(Errno::ISDIR),
        Ok(_) => {}
        Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::NOENT)),
    }
    accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Result<Program, ExecError> {
        Program::find(vec![name.into()])
    }

    #[test]
    fn a_name_is_searched_for_and_a_path_is_not() {
        assert!(find("sh").unwrap().path.to_bytes().ends_with(b"/sh"));
        assert_eq!(find("/bin/sh").unwrap().path.as_c_str(), c"/bin/sh");
        assert_eq!(find("./sh-is-not-here").err().unwrap().status(), 127);
        assert_eq!(find("no such program").err().unwrap().status(), 127);
        assert_eq!(find("").err().unwrap().status(), 127);
        assert_eq!(find("/etc").err().unwrap().status(), 126);
        assert_eq!(find("/etc/passwd").err().unwrap().status(), 126);
    }
}
