//! The neighbours: real, large programs at their start. Each does the start-up work of such a
//! program, prints that it is ready and its result, and stays.
//!
//! | neighbour | until it is ready |
//! |---|---|
//! | `python` | CPython imports some eighty modules and fills a dict |
//! | `node` | Node.js loads what the runtime brings and fills a map |
//! | `java` | a JVM comes up, compiles a class from its source and fills a map |
//! | `build` | gcc -O2 compiles a generated file of C |
//!
//! What it is made of is not in the page cache when it starts: a program that was not run
//! for a while comes from the disk.

use super::image::Image;
use crate::env::find_program;
use crate::prelude::*;
use crate::process::output;
use rustix::fs::{Advice, fadvise};
use std::fmt::Write;
use std::fs::File;
use std::process::Stdio;

/// Which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum NeighbourKind {
    /// CPython imports many modules and fills a dict.
    Python,
    /// Node.js loads its modules and fills a map.
    Node,
    /// A JVM compiles a class and fills a map.
    Java,
    /// gcc -O2 on a generated file of C.
    Build,
}

impl NeighbourKind {
    /// The default neighbours: Python, one of the two with a JIT compiler, and the build.
    pub fn usual() -> Vec<Self> {
        let second = match find_program("node", "nodejs") {
            Ok(_) => Self::Node,
            Err(_) => Self::Java,
        };
        vec![Self::Python, second, Self::Build]
    }

    /// Bytes of its contract, where it fills so many MiB.
    pub fn frames(self, mib: u64) -> u64 {
        ((mib << 20) * self.part() / 100).next_multiple_of(PAGE as u64)
    }

    /// The contract, in percent of the memory that it fills: less than it needs, so that it
    /// pages.
    fn part(self) -> u64 {
        match self {
            Self::Python | Self::Node | Self::Java => 75,
            Self::Build => 60,
        }
    }

    /// Its executable, and what Debian calls the package.
    fn executable(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python3", "python3"),
            Self::Node => ("node", "nodejs"),
            Self::Java => ("java", "default-jdk-headless"),
            Self::Build => ("gcc", "gcc"),
        }
    }
}

/// A neighbour, ready to be started many times.
pub struct Neighbour {
    /// Which.
    pub name: NeighbourKind,
    /// Bytes of its contract.
    pub frames: u64,
    /// What its executable is made of.
    pub image: Image,
    program: PathBuf,
    arguments: Vec<String>,
    /// What it comes from.
    files: Vec<PathBuf>,
    _own: Vec<OwnedFile>,
}

impl Neighbour {
    /// One that fills so many MiB, about.
    pub fn new(name: NeighbourKind, env: &TestEnv, mib: u64) -> Result<Self> {
        let (executable, package) = name.executable();
        let program = find_program(executable, package)?;
        let program = program.canonicalize().at("find", &program)?;
        let mut neighbour = Self {
            name,
            frames: name.frames(mib),
            image: Image::of(&program)?,
            files: vec![program.clone()],
            program,
            arguments: Vec::new(),
            _own: Vec::new(),
        };
        match name {
            NeighbourKind::Python => neighbour.python(mib)?,
            NeighbourKind::Node => neighbour.node(mib),
            NeighbourKind::Java => neighbour.java(env, mib)?,
            NeighbourKind::Build => neighbour.build(env, mib)?,
        }
        Ok(neighbour)
    }

    /// How it is started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// What it is made of leaves the page cache, but for what other programs have mapped.
    pub fn cool(&self) {
        for path in &self.files {
            leave(path);
        }
    }

    fn python(&mut self, mib: u64) -> Result<()> {
        let script = include_str!("heap.py");
        self.set_arguments(&["-I", "-c", script, &mib.to_string()]);
        let mut query = Command::new(&self.program);
        query.args(["-I", "-c", "import os; print(os.path.dirname(os.__file__))"]);
        self.files.push(answer(query)?);
        Ok(())
    }

    fn node(&mut self, mib: u64) {
        self.set_arguments(&["-e", include_str!("heap.js"), &mib.to_string()]);
    }

    fn java(&mut self, env: &TestEnv, mib: u64) -> Result<()> {
        let path = env.file("Heap.java")?;
        write(&path, include_str!("Heap.java"))?;
        let most = format!("-Xmx{}m", 2 * mib.max(64));
        self.set_arguments(&[&most, &path.to_string_lossy(), &mib.to_string()]);
        self._own.push(path);
        // .../bin/java: beside it is the library, which is the virtual machine.
        if let Some(home) = self.program.parent().and_then(Path::parent) {
            self.image = Image::of(&home.join("lib/server/libjvm.so"))?;
            self.files.push(home.join("lib"));
        }
        Ok(())
    }

    /// A shell that compiles: its contract, its cgroup and its figures are the whole tree's.
    fn build(&mut self, env: &TestEnv, mib: u64) -> Result<()> {
        let (source, object) = (env.file("large.c")?, env.file("large.o")?);
        write(&source, &c_source(mib))?;
        let mut query = Command::new(&self.program);
        query.arg("-print-prog-name=cc1");
        let compiler = answer(query)?;
        if !compiler.is_absolute() {
            return Err(unavailable(
                "gcc has no compiler for C here: apt-get install gcc",
            ));
        }
        self.image = Image::of(&compiler)?;
        self.files.push(compiler);
        let script = "\"$1\" -O2 -w -pipe -frandom-seed=1 -c \"$2\" -o \"$3\" && \
                      set -- $(cksum < \"$3\") && echo ready $1 && read _; true";
        let gcc = std::mem::replace(&mut self.program, find_program("sh", "dash")?);
        let words = [&*gcc, &*source, &*object].map(|path| path.to_string_lossy().into_owned());
        self.set_arguments(&["-c", script, "sh", &words[0], &words[1], &words[2]]);
        self._own.extend([source, object]);
        Ok(())
    }

    fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
    }
}

fn answer(command: Command) -> Result<PathBuf> {
    let said = output(command, Stdio::null())?;
    Ok(String::from_utf8_lossy(&said).trim().into())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).at("write", path)
}

/// A file, or all below a folder. What cannot be read is not there to be left.
fn leave(path: &Path) {
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries.flatten() {
            leave(&entry.path());
        }
    } else if let Ok(file) = File::open(path) {
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
}

/// Initialisers in a table, for each MiB that the compiler is to fill.
const NUMBERS: u64 = 2_500;

/// For each function.
const NUMBERS_A_FUNCTION: u64 = 2_000;

/// A table, which makes generated files large, and functions that use it.
fn c_source(mib: u64) -> String {
    let numbers = mib * NUMBERS;
    let mut text = String::from("typedef unsigned long word;\nstatic const word table[] = {\n");
    for n in 0..numbers {
        let _ = write!(text, "{},", mix(n) >> 40);
        text.push(if n % 16 == 15 { '\n' } else { ' ' });
    }
    text.push_str("};\n");
    for n in 0..numbers / NUMBERS_A_FUNCTION {
        let [turns, shift, odd] = [1, 2, 3].map(|k| mix(n << 2 | k) % 31 + 1);
        let _ = writeln!(
            text,
            "word step{n}(word a, word b, word *p) {{\n\
             for (word i = 0; i < {turns}; i++) {{\n\
             a ^= (b << {shift}) + p[i & 7];\n\
             if (a % {} == 1) b += table[(a + i) % {numbers}]; else p[(a ^ i) & 7] -= a * {odd};\n\
             }}\nreturn a ^ b; }}",
            odd + 1
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_file_is_the_same_each_time_and_grows_with_what_is_to_be_filled() {
        assert_eq!(c_source(1), c_source(1));
        assert!(c_source(2).len() > c_source(1).len() * 3 / 2);
        assert!(c_source(2).contains("word step1("));
    }

    #[test]
    fn every_contract_is_less_than_what_is_filled() {
        for name in NeighbourKind::value_variants() {
            assert!((1..100).contains(&name.part()), "{name:?}");
        }
    }
}
