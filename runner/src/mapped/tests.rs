//! Tests that arrays are found where plans place them, and that plans that do not fit are refused.

use std::cell::RefCell;
use std::fs::File;

use super::*;

thread_local!(static BLOBS: RefCell<Blobs> = RefCell::default());

/// Adds a blob with an array `lead` bytes behind its beginning; returns the array.
fn array(dtype: &str, lead: usize, bytes: &[u8]) -> Array {
    let blob = BLOBS.with_borrow_mut(|blobs| {
        blobs.0.push(Arc::new(Blob::Read([&vec![0; lead], bytes].concat())));
        blobs.0.len() - 1
    });
    Array { blob, offset: lead as u64, size: bytes.len() as u64, dtype: dtype.to_owned() }
}

fn plan_blob(name: &str, size: u64) -> protocol::Blob {
    protocol::Blob { name: name.to_owned(), size, unchanged: None }
}

fn plan(dtype: &str, group: u64, shape: &[u64], weight: Array) -> protocol::Tensor {
    protocol::Tensor {
        name: "w".to_owned(),
        dtype: dtype.to_owned(),
        group,
        shape: shape.to_vec(),
        weight,
        scale: None,
        bias: None,
        global_scale: None,
    }
}

fn tensor(plan: &protocol::Tensor) -> Result<MappedTensor> {
    BLOBS.with_borrow(|blobs| Mapper(blobs).tensor(plan, encoding(plan).expect("a known encoding")))
}

fn numbers(tensor: &MappedTensor) -> Vec<f32> {
    tensor.numbers()
}

#[test]
fn block_fp8_has_its_scales_in_another_blob() {
    // E4M3: 1, 2, -1.5, 0.
    let codes = [0x38, 0x40, 0xbc, 0x00, 0x38, 0x38];
    let mut plan = plan("fp8_1x2", 2, &[2, 3], array("F8_E4M3", 0, &codes));
    let scales: Vec<u8> = [1.0f32, 10.0, 0.5, 4.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    plan.scale = Some(array("F32", 0, &scales));
    let tensor = tensor(&plan).expect("a weight");
    assert_eq!(tensor.size(), 6 + 16);
    assert_eq!(numbers(&tensor), [1.0, 2.0, -15.0, 0.0, 0.5, 4.0]);
}

#[test]
fn arrays_may_lie_anywhere() {
    let bytes: Vec<u8> = [1.5f32, -2.0, 3.25].iter().flat_map(|n| n.to_le_bytes()).collect();
    for lead in 0..8 {
        let plan = plan("F32", 0, &[3], array("F32", lead, &bytes));
        assert_eq!(numbers(&tensor(&plan).expect("a weight")), [1.5, -2.0, 3.25], "{lead} bytes before it");
    }
}

#[test]
fn parts_are_read_where_they_lie() {
    let floats = |count: u8| -> Vec<u8> { (0..count).flat_map(|n| f32::from(n).to_le_bytes()).collect() };
    let plain = tensor(&plan("F32", 0, &[4, 3], array("F32", 4, &floats(12)))).expect("whole");
    let rows = plain.rows(1, 2).expect("rows");
    assert_eq!((rows.shape.as_slice(), numbers(&rows)), (&[2, 3][..], vec![3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    let vector = tensor(&plan("F32", 0, &[4], array("F32", 0, &floats(4)))).expect("whole");
    assert_eq!(numbers(&vector.rows(2, 2).expect("numbers")), [2.0, 3.0]);
    let stack = tensor(&plan("F32", 0, &[2, 2, 3], array("F32", 0, &floats(12))));
    let item = stack.expect("whole").item(1).expect("a matrix");
    assert_eq!((item.shape.as_slice(), numbers(&item)), (&[2, 3][..], vec![6.0, 7.0, 8.0, 9.0, 10.0, 11.0]));
    // Codes of 1 with scales by row.
    let mut affine = plan("int8", 32, &[2, 32], array("U32", 0, &[1; 64]));
    let scales: Vec<u8> = [2.0f32, 3.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    affine.scale = Some(array("F32", 0, &scales));
    affine.bias = Some(array("F32", 0, &[0; 8]));
    let affine = tensor(&affine).expect("whole");
    assert_eq!(numbers(&affine.rows(1, 1).expect("a row")), [3.0; 32]);
    let mut fp8 = plan("fp8_2x2", 2, &[3, 2], array("F8_E4M3", 0, &[0x38; 6]));
    let scales: Vec<u8> = [1.0f32, 5.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    fp8.scale = Some(array("F32", 0, &scales));
    let fp8 = tensor(&fp8).expect("whole");
    assert_eq!(numbers(&fp8.rows(2, 1).expect("the last block")), [5.0, 5.0]);
    for (found, says) in [
        (fp8.rows(1, 1), "cut blocks of 2 rows"),
        (plain.rows(3, 2), "there are 4"),
        (plain.rows(u64::MAX, 2), "there are 4"),
        (plain.rows(0, 0), "there are 4"),
        (item.item(2), "item 2"),
        (vector.item(0), "item 0"),
    ] {
        let error = found.expect_err(says);
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn plans_that_do_not_fit_are_refused_by_name() {
    let codes = || array("U32", 0, &[0; 32]);
    let good = plan("int4", 64, &[1, 64], codes());
    let scale = array("BF16", 0, &[0; 2]);
    let short = Array { size: 31, ..codes() };
    let beyond = Array { offset: u64::MAX, ..codes() };
    let absent = Array { blob: usize::MAX, ..codes() };
    let integers = array("I16", 0, &[0; 2]);
    let with = |scale: &Array, bias: &Array| protocol::Tensor {
        scale: Some(scale.clone()),
        bias: Some(bias.clone()),
        ..good.clone()
    };
    tensor(&with(&scale, &scale)).expect("a weight");
    for (plan, says) in [
        (good.clone(), "Scale"),
        (with(&codes(), &scale), "scales of type U32"),
        (with(&integers, &integers), "scales of type I16"),
        (protocol::Tensor { weight: short, ..with(&scale, &scale) }, "31 bytes"),
        (protocol::Tensor { weight: beyond, ..good.clone() }, "beyond its blob"),
        (protocol::Tensor { weight: absent, ..good.clone() }, "names blob"),
        (protocol::Tensor { global_scale: Some(scale.clone()), ..good.clone() }, "global scale"),
        (protocol::Tensor { shape: vec![u64::MAX, 64], ..with(&scale, &scale) }, "overflows"),
    ] {
        let error = format!("{:#}", tensor(&plan).expect_err(says));
        assert!(error.starts_with("tensor `w`: ") && error.contains(says), "`{error}` should say `{says}`");
    }
}

#[test]
fn the_smallest_files_are_read_where_the_system_maps_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = [5000usize, 3, 900].iter().map(|size| {
        let path = folder.path().join(size.to_string());
        std::fs::write(&path, vec![7; *size]).expect("a file");
        path
    });
    let blobs = Blobs::of_files(&paths.collect::<Vec<_>>()).expect("files");
    assert!(blobs.0.iter().all(|blob| matches!(&**blob, Blob::Mapped(_))));
    let plan: Vec<_> = [5000, 3, 900].iter().map(|size| plan_blob(&format!("b{size}"), *size)).collect();
    let open = |sizes: [usize; 3]| {
        let mut sizes = sizes.into_iter();
        let folder = folder.path();
        move || Ok(File::open(folder.join(sizes.next().expect("three").to_string()))?.into())
    };
    let blobs = Blobs::take(&plan, 1, open([5000, 3, 900])).expect("files");
    let read: Vec<bool> = blobs.0.iter().map(|blob| matches!(&**blob, Blob::Read(_))).collect();
    assert_eq!(read, [false, true, true]);
    assert!(
        blobs.0.iter().zip(&plan).all(|(blob, plan)| blob.len() as u64 == plan.size && blob.iter().all(|x| *x == 7))
    );
    let error = format!("{:#}", Blobs::take(&plan, 9, open([5000, 900, 3])).expect_err("another file"));
    assert!(error.contains("`b3`") && error.contains("900 bytes, expected 3"), "{error}");
    assert!(most_maps() >= 1024);
}

#[test]
fn fifty_thousand_files_are_mapped() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), [1; 40]).expect("a file");
    let plan = vec![plan_blob("b", 40); 50_000];
    // Only one descriptor is open at a time. If the system maps fewer files, the rest are copied.
    for maps in [most_maps(), 20_000] {
        let blobs = Blobs::take(&plan, maps, || Ok(File::open(file.path())?.into())).expect("all of them");
        let mapped = blobs.0.iter().filter(|blob| matches!(&***blob, Blob::Mapped(_))).count();
        assert_eq!((blobs.0.len(), mapped), (50_000, maps.min(50_000)));
    }
}
