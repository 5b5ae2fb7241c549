//! Compares the shares that clients received with their promises: pure functions.
//!
//! Jain's index (R. Jain, D. Chiu, W. Hawe, *A quantitative measure of fairness*, DEC
//! TR-301, 1984) over what each got for each unit of its promise: 1 where all got the same,
//! 1/n where one got everything.

/// The relative error of each client's part of the total: 0.01 is 1 % too much.
pub fn errors(got: &[f64], promised: &[f64]) -> Vec<f64> {
    let mean = got.iter().sum::<f64>() / promised.iter().sum::<f64>();
    let error = |(got, promised): (&f64, &f64)| got / promised / mean - 1.0;
    got.iter().zip(promised).map(error).collect()
}

/// The farthest of [`errors`], in either direction.
pub fn worst(got: &[f64], promised: &[f64]) -> f64 {
    let errors = errors(got, promised).into_iter().map(f64::abs);
    errors.fold(0.0, f64::max)
}

/// Jain's index, weighted.
pub fn jain(got: &[f64], promised: &[f64]) -> f64 {
    let each: Vec<f64> = got.iter().zip(promised).map(|(g, p)| g / p).collect();
    let sum: f64 = each.iter().sum();
    let squares: f64 = each.iter().map(|x| x * x).sum();
    sum * sum / (each.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISED: [f64; 3] = [25.0, 50.0, 100.0];

    #[test]
    fn the_promised_shares_have_no_error() {
        let got = [5.0, 10.0, 20.0];
        assert!(worst(&got, &PROMISED) < 1e-12);
        assert!((jain(&got, &PROMISED) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn too_much_and_too_little_are_both_errors() {
        let errors = errors(&[6.0, 10.0, 19.0], &PROMISED);
        assert!((errors[0] - 0.2).abs() < 1e-12 && (errors[2] + 0.05).abs() < 1e-12);
        assert!((worst(&[4.0, 10.0, 21.0], &PROMISED) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn one_client_with_everything_is_the_least_fair() {
        let index = jain(&[1.0, 0.0, 0.0], &[1.0, 1.0, 1.0]);
        assert!((index - 1.0 / 3.0).abs() < 1e-12);
    }
}
