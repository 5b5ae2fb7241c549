//! The options of `selfpage bench launch`, and the settings that follow from them.

use super::arm::Arm;
use super::load;
use super::program::NeighbourKind;
use crate::cli_parse::within;
use crate::prelude::*;
use clap::value_parser;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct LaunchOptions {
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// Seconds of the clip that count: 16, or 8 with --quick. The neighbour is launched an
    /// eighth into them.
    #[arg(long, default_value = "16", default_value_if("quick", "true", "8"))]
    #[arg(value_parser = within(1.0..=3600.0))]
    pub seconds: f64,
    /// Only these neighbours.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<NeighbourKind>,
    /// Only these arms; there are two more than the usual ones.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub arms: Vec<Arm>,
    /// Frames that the player holds.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    #[arg(value_parser = value_parser!(u64).range(1..=64))]
    pub read_ahead: Vec<u64>,
    /// Processors' worth of constant load, instead of calibrating it.
    #[arg(long, value_parser = within(0.0..=load::max_load()))]
    pub load: Option<f64>,
    /// MiB that a neighbour fills, about: 192, or 96 with --quick. Its contract is less.
    #[arg(long, default_value = "192", default_value_if("quick", "true", "96"))]
    #[arg(value_parser = value_parser!(u64).range(16..=4096))]
    pub mib: u64,
    /// The neighbour's limit in ours-limited, as `run --fault-rate` takes it.
    #[arg(long, default_value = "auto")]
    pub fault_rate: String,
    /// The player's reservation in ours-limited, as `run --cpu` takes it; by default from
    /// what a frame was measured to take.
    #[arg(long)]
    pub cpu: Option<String>,
    /// One neighbour, one read-ahead, one repeat, a short clip: two minutes or so.
    #[arg(long)]
    pub quick: bool,
    /// Seconds that a round may take at most.
    #[arg(long, default_value_t = 180)]
    pub limit: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub env: EnvOptions,
    /// Draws the paper's figures in this folder, as SVG.
    #[arg(long, value_parser = crate::cli_parse::output_folder)]
    pub svg: Option<PathBuf>,
}

impl LaunchOptions {
    /// With the usual neighbours and arms where none are named, or as few as a quick look takes.
    pub fn settled(mut self) -> Result<Self> {
        if self.limit as f64 <= self.seconds {
            bail!("--limit must be longer than --seconds");
        }
        if self.only.is_empty() {
            self.only = NeighbourKind::usual();
        }
        if self.arms.is_empty() {
            self.arms = Arm::USUAL.to_vec();
        }
        if self.quick {
            self.repeats = 1;
            self.only.truncate(1);
            self.read_ahead.truncate(1);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;

    fn options(words: &[&str]) -> Result<LaunchOptions> {
        match crate::parse(&[&["launch"], words].concat())? {
            Bench::Launch(options) => options.settled(),
            _ => panic!("it is no launch"),
        }
    }

    #[test]
    fn what_is_usual_is_what_the_paper_compares_and_both_read_aheads() {
        let options = options(&[]).unwrap();
        assert_eq!((options.repeats, options.read_ahead), (5, vec![1, 4]));
        assert_eq!(options.arms, Arm::USUAL);
        assert_eq!(
            (options.only.len(), options.seconds, options.mib),
            (3, 16.0, 192)
        );
    }

    #[test]
    fn a_quick_run_is_of_the_first_of_each() {
        let words = ["--quick", "--only", "build,python", "--read-ahead", "4,1"];
        let options = options(&words).unwrap();
        assert_eq!(options.only, [NeighbourKind::Build]);
        assert_eq!(options.read_ahead, [4]);
        assert_eq!(
            (options.repeats, options.seconds, options.mib),
            (1, 8.0, 96)
        );
    }

    #[test]
    fn options_that_make_no_experiment_are_refused_by_name() {
        for (words, name) in [
            (["--repeats", "0"], "--repeats"),
            (["--seconds", "0.5"], "--seconds"),
            (["--seconds", "NaN"], "--seconds"),
            (["--mib", "1"], "--mib"),
            (["--read-ahead", "0"], "--read-ahead"),
            (["--load", "-1"], "--load"),
            (["--load", "9999"], "--load"),
            (["--limit", "3"], "--limit"),
        ] {
            let words = [&format!("{}={}", words[0], words[1])[..]];
            let refusal = options(&words).unwrap_err().to_string();
            assert!(refusal.contains(name), "{words:?}: {refusal}");
        }
    }
}
