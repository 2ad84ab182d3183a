//! Statistics of a tensor's values, computed from a sample of its rows.

use content::operation::Result;
use formats::dtype::element_count;
use formats::{Encoding, codec};
use import::{StoredTensor, TensorSource};
use library::{Library, Model};

use crate::Error;

/// Number of values that are sampled; 4 MiB as `f32`.
const SAMPLE: u64 = 1 << 20;

/// Statistics of a tensor's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Encoding of the values.
    pub encoding: Encoding,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Number of values in the tensor.
    pub numbers: u64,
    /// Number of values that were sampled. All other fields describe the sample.
    pub sampled: u64,
    /// Number of values that are infinite or NaN.
    pub not_finite: u64,
    /// Number of values that are 0.
    pub zeros: u64,
    /// Statistics of the finite values, if there are any.
    pub range: Option<Range>,
    /// Histogram: counts for equal parts of the range.
    pub bins: Vec<u64>,
}

/// Statistics of finite values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

/// Samples the values of a tensor: whole rows, evenly spaced, the same rows for every tensor of
/// this shape. Small tensors are read completely. Returns `None` if the encoding cannot be decoded.
pub(crate) fn sampled(library: &Library, tensor: &StoredTensor) -> Result<Option<Vec<f32>>> {
    if !codec::can_decode(tensor.encoding) {
        return Ok(None);
    }
    let source = TensorSource::of(tensor, &*library.opener())?;
    let mut numbers: Vec<f32> = Vec::new();
    source.sample(SAMPLE, &mut |piece| {
        let start = numbers.len();
        numbers.resize(start + piece.rows() * piece.columns(), 0.0);
        piece.decode(&mut numbers[start..]);
        Ok(())
    })?;
    Ok(Some(numbers))
}

/// Computes the statistics of a tensor's values from evenly spaced rows. Small tensors are read
/// completely.
///
/// # Errors
/// [`Error`] if the tensor does not exist or its encoding cannot be decoded; also if its blobs
/// cannot be read.
pub fn values(library: &Library, model: &Model, tensor: &str, bins: usize) -> Result<Values> {
    let catalogue = library.catalogue(&model.manifest)?;
    let found = catalogue.into_iter().find(|stored| stored.name == tensor);
    let stored = found.ok_or_else(|| Error::NoTensor { model: model.name.clone(), tensor: tensor.to_owned() })?;
    let Some(numbers) = sampled(library, &stored)? else {
        return Err(Error::NoNumbers { tensor: tensor.to_owned(), encoding: stored.encoding.to_string() }.into());
    };
    let finite = || numbers.iter().filter(|number| number.is_finite()).map(|number| f64::from(*number));
    let range = range(finite());
    Ok(Values {
        numbers: element_count(&stored.shape).unwrap_or(numbers.len() as u64),
        encoding: stored.encoding,
        shape: stored.shape,
        sampled: numbers.len() as u64,
        not_finite: numbers.iter().filter(|number| !number.is_finite()).count() as u64,
        zeros: numbers.iter().filter(|number| **number == 0.0).count() as u64,
        bins: range.map_or_else(Vec::new, |range| histogram(finite(), range, bins)),
        range,
    })
}

fn range(numbers: impl Iterator<Item = f64> + Clone) -> Option<Range> {
    let (count, sum, min, max) =
        numbers.clone().fold((0_u64, 0.0, f64::INFINITY, f64::NEG_INFINITY), |(count, sum, min, max), number| {
            (count + 1, sum + number, number.min(min), number.max(max))
        });
    if count == 0 {
        return None;
    }
    let mean = sum / count as f64;
    let squares: f64 = numbers.map(|number| (number - mean).powi(2)).sum();
    Some(Range { min, max, mean, deviation: (squares / count as f64).sqrt() })
}

#[expect(clippy::cast_sign_loss, reason = "no number is below the smallest")]
fn histogram(numbers: impl Iterator<Item = f64>, range: Range, bins: usize) -> Vec<u64> {
    let mut counts = vec![0; bins];
    // The largest value belongs to the last bin; if all values are equal, they belong to the first.
    let scale = if range.max > range.min { bins as f64 / (range.max - range.min) } else { 0.0 };
    for number in numbers {
        let place = ((number - range.min) * scale) as usize;
        counts[place.min(bins - 1)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_numbers() {
        let numbers = [-1.0, 0.0, 0.0, 0.5, 3.0];
        let found = range(numbers.into_iter()).expect("there are some");
        assert_eq!((found.min, found.max, found.mean), (-1.0, 3.0, 0.5));
        assert!((found.deviation - (9.0_f64 / 5.0).sqrt()).abs() < 1e-12, "{found:?}");
        assert_eq!(histogram(numbers.into_iter(), found, 4), [1, 3, 0, 1]);
        let same = range([2.0, 2.0].into_iter()).expect("there are some");
        assert_eq!(histogram([2.0, 2.0].into_iter(), same, 3), [2, 0, 0]);
        assert_eq!(range([].into_iter()), None);
    }
}
